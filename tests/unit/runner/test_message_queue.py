"""The queue of one conversation: every state and event, and that no order of them loses, merges or reorders a message."""

from __future__ import annotations

import random

import pytest

from runner.core.errors import IllegalTransitionError
from runner.core.message_queue import (
    Begin,
    Cancelled,
    Event,
    Hold,
    MessageQueue,
    PutBack,
    Queued,
    QueueFullError,
    RecordHold,
    Released,
    TakenUp,
    TellHeld,
    TellQueued,
    TurnBegan,
    TurnNotQueuedError,
    TurnOver,
    hold_after,
)
from runner.core.values import Outcome

HOLD = Hold("t0", Outcome.INTERRUPTED, "ATTACH_LOST")


def running(*waiting: str, messages_max: int = 8) -> MessageQueue:
    queue = MessageQueue(messages_max)
    queue.step(TurnBegan("t0"))
    for turn_id in waiting:
        queue.step(Queued(turn_id))
    return queue


def held(*waiting: str) -> MessageQueue:
    queue = running(*waiting)
    queue.step(TurnOver("t0", HOLD))
    return queue


def test_a_message_waits_behind_those_before_it() -> None:
    queue = running()
    assert queue.step(Queued("a")) == [TellQueued("a", 0)]
    assert queue.step(Queued("b")) == [TellQueued("b", 1)]
    assert (queue.running, queue.waiting) == ("t0", ["a", "b"])


def test_a_message_for_a_free_conversation_begins_at_once() -> None:
    queue = MessageQueue(8)
    assert queue.step(Queued("a")) == [Begin("a")]
    assert queue.running == "a"


def test_after_a_normal_end_the_first_begins_and_only_that_one() -> None:
    queue = running("a", "b")
    assert queue.step(TurnOver("t0", None)) == [Begin("a")]
    assert (queue.running, queue.waiting) == ("a", ["b"])
    assert queue.step(TurnOver("a", None)) == [Begin("b")]
    assert queue.step(TurnOver("b", None)) == []
    assert queue.is_idle


def test_after_another_end_all_are_held_and_told_so_once() -> None:
    queue = running("a", "b")
    assert queue.step(TurnOver("t0", HOLD)) == [RecordHold(HOLD), TellHeld("a", HOLD), TellHeld("b", HOLD)]
    assert queue.running is None
    assert queue.step(Queued("c")) == [TellQueued("c", 2), TellHeld("c", HOLD)]
    assert not queue.is_idle


def test_an_end_that_is_not_normal_holds_nothing_where_nothing_waits() -> None:
    queue = running()
    assert queue.step(TurnOver("t0", HOLD)) == []
    assert queue.is_idle


def test_a_released_queue_begins_its_first_and_releasing_it_again_changes_nothing() -> None:
    queue = held("a", "b")
    assert queue.step(Released()) == [RecordHold(None), Begin("a")]
    assert queue.step(Released()) == []
    assert (queue.running, queue.waiting) == ("a", ["b"])


def test_a_turn_beside_a_held_queue_releases_nothing() -> None:
    queue = held("a")
    assert queue.step(TurnBegan("direct")) == []
    assert queue.step(TurnOver("direct", None)) == []
    assert (queue.hold, queue.waiting) == (HOLD, ["a"])
    queue.step(TurnBegan("another"))
    assert queue.step(Released()) == [RecordHold(None)]
    assert queue.step(TurnOver("another", None)) == [Begin("a")]


def test_a_message_that_could_not_be_begun_is_back_at_the_front_and_the_queue_is_held() -> None:
    queue = running("a", "b")
    queue.step(TurnOver("t0", None))
    hold = Hold("a", None, "MANAGER_UNAVAILABLE")
    assert queue.step(PutBack("a", hold)) == [RecordHold(hold), TellHeld("a", hold), TellHeld("b", hold)]
    assert queue.waiting == ["a", "b"]


def test_a_cancelled_message_is_out_and_the_others_keep_their_order() -> None:
    queue = held("a", "b", "c")
    assert queue.step(Cancelled("b")) == []
    assert queue.waiting == ["a", "c"]
    queue.step(Cancelled("a"))
    assert queue.step(Cancelled("c")) == [RecordHold(None)]
    assert queue.is_idle


@pytest.mark.parametrize("turn_id", ["t0", "never"])
def test_a_turn_that_does_not_wait_cannot_be_taken_out(turn_id: str) -> None:
    queue = running("a")
    with pytest.raises(TurnNotQueuedError):
        queue.step(Cancelled(turn_id))
    assert queue.waiting == ["a"]


def test_a_full_queue_refuses_and_says_how_many_may_wait() -> None:
    queue = running("a", "b", messages_max=2)
    with pytest.raises(QueueFullError) as refused:
        queue.step(Queued("c"))
    assert refused.value.metadata["messages_max"] == "2"
    assert queue.waiting == ["a", "b"]


@pytest.mark.parametrize(
    ("queue", "event"),
    [
        (running("a"), TurnBegan("x")),
        (running("a"), TurnOver("a", None)),
        (running("a"), PutBack("a", HOLD)),
        (held("a"), TurnOver("t0", None)),
        (running("a"), Queued("a")),
        (running("a"), Queued("t0")),
        (MessageQueue(8), TurnOver("t0", None)),
    ],
)
def test_what_cannot_happen_raises_and_changes_nothing(queue: MessageQueue, event: Event) -> None:
    before = (queue.running, list(queue.waiting), queue.hold)
    with pytest.raises(IllegalTransitionError):
        queue.step(event)
    assert (queue.running, queue.waiting, queue.hold) == before


def test_after_a_restart_a_queue_goes_on_unless_it_is_held_or_a_turn_runs() -> None:
    assert MessageQueue(8, waiting=("a", "b")).step(TakenUp()) == [Begin("a")]
    assert MessageQueue(8, waiting=("a", "b"), hold=HOLD).step(TakenUp()) == []
    queue = MessageQueue(8, waiting=("a",))
    queue.step(TurnBegan("t0"))
    assert queue.step(TakenUp()) == []


@pytest.mark.parametrize("outcome", list(Outcome))
@pytest.mark.parametrize("is_settled", [True, False])
def test_only_a_completed_turn_or_a_settled_failure_is_a_normal_end(outcome: Outcome, is_settled: bool) -> None:
    hold = hold_after("t0", outcome, is_settled=is_settled, reason="R")
    is_normal = outcome is Outcome.COMPLETED or (outcome is Outcome.FAILED and is_settled)
    assert hold == (None if is_normal else Hold("t0", outcome, "R"))


@pytest.mark.parametrize("seed", range(200))
def test_no_order_of_events_loses_merges_or_reorders_a_message(seed: int) -> None:
    """Each message begins at most once, in the order of its coming, or was taken out; one turn runs at a time."""
    chance = random.Random(seed)
    queue = MessageQueue(6)
    came: list[str] = []
    begun: list[str] = []
    taken_out: set[str] = set()
    for number in range(60):
        events: list[Event] = [Queued(f"m{number}"), Released(), TakenUp()]
        if queue.running is None:
            events.append(TurnBegan(f"direct{number}"))
        else:
            events += [
                TurnOver(queue.running, None),
                TurnOver(queue.running, Hold(queue.running, Outcome.CANCELLED, "")),
            ]
            if queue.running.startswith("m"):
                events.append(PutBack(queue.running, Hold(queue.running, None, "AWAY")))
        if queue.waiting:
            events.append(Cancelled(chance.choice(queue.waiting)))
        event = chance.choice(events)
        was_running = queue.running
        try:
            effects = queue.step(event)
        except QueueFullError:
            assert len(queue.waiting) == 6
            continue
        match event:
            case Queued(turn_id):
                came.append(turn_id)
            case Cancelled(turn_id):
                taken_out.add(turn_id)
            case PutBack(turn_id):
                begun.remove(turn_id)
            case _:
                pass
        for effect in effects:
            if isinstance(effect, Begin):
                assert was_running is None or isinstance(event, TurnOver)
                begun.append(effect.turn_id)
        assert len([effect for effect in effects if isinstance(effect, Begin)]) <= 1
        assert queue.hold is None or queue.waiting or queue.running
    assert begun == [turn_id for turn_id in came if turn_id in set(begun)]
    assert sorted(begun) == sorted(set(begun))
    assert set(came) == set(begun) | taken_out | set(queue.waiting)
