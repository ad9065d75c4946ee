"""Messages that wait for their turn: in order, verbatim, each for itself, held and said so, none lost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from standfast.runner.v1 import runner_pb2 as pb
from standfast.types.v1 import types_pb2
from standfast_chassis.errors import StandfastError
from standfast_chassis.rpc_status import remote_errors
from tests.wire.runner_house import WAIT_S, Cli, House, ScriptedError, Told, house_in, ordinary_turn

KEY = types_pb2.ConversationKey(conversation_id="c1")
QUEUE = {"when_busy": pb.WHEN_BUSY_QUEUE}


class Held:
    """A host's script whose turns end when the test says so. `answers` are taken in order."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.began: list[str] = []

    async def script(self, cli: Cli) -> None:
        await cli.activate()
        await cli.take_message()
        self.began.append(cli.frames[-1]["message"]["content"][0]["text"])
        await cli.begin()
        await self.may_end.wait()
        await cli.print_lines(cli.assistant("plum"), cli.result(), cli.lifecycle("completed"))
        await cli.observed()


@pytest.fixture
async def house(tmp_path: Path) -> Any:
    async with house_in(tmp_path / "state") as made:
        yield made


async def send(house: House, turn_id: str, message: str = "next", **more: Any) -> pb.Turn:
    request = house.request(turn_id, message, **(QUEUE | more))
    with remote_errors():
        answer = await house.stub.SendMessage(pb.SendMessageRequest(turn=request), timeout=WAIT_S)
    return answer.turn


async def queue(house: House) -> pb.Queue:
    with remote_errors():
        return (await house.stub.ListQueue(pb.ListQueueRequest(conversation=KEY))).queue


async def release(house: House) -> pb.Queue:
    with remote_errors():
        return (await house.stub.ReleaseQueue(pb.ReleaseQueueRequest(conversation=KEY))).queue


async def take_out(house: House, turn_id: str) -> pb.Turn:
    with remote_errors():
        answer = await house.stub.CancelQueued(pb.CancelQueuedRequest(conversation=KEY, turn_id=turn_id))
    return answer.turn


def sent(house: House) -> list[str]:
    return [
        frame["message"]["content"][0]["text"]
        for cli in house.host.clis
        for frame in cli.frames
        if frame["type"] == "user"
    ]


async def until_running(house: House, turn_id: str) -> None:
    await house.until_state(turn_id, "RUNNING")


async def cut(cli: Cli) -> None:
    """The CLI dies in the turn."""
    await cli.activate()
    await cli.take_message()
    await cli.begin()
    raise ScriptedError(grpc.StatusCode.ABORTED, "CLI_DIED")


async def test_messages_go_one_after_the_other_as_they_are(house: House) -> None:
    held = Held()
    house.host.scripts = [held.script]
    texts = ["first", " two\r\nlines ", "/slash", "first"]
    first = asyncio.create_task(house.turn("t1", texts[0]))
    await until_running(house, "t1")
    for number, text in enumerate(texts[1:], 2):
        turn = await send(house, f"t{number}", text)
        assert turn.state == "QUEUED"
    shown = await queue(house)
    assert [(one.turn_id, one.message) for one in shown.messages] == [
        (f"t{number}", text) for number, text in enumerate(texts[1:], 2)
    ]
    assert (shown.running_turn, shown.HasField("held"), shown.messages_max) == ("t1", False, 32)
    assert held.began == ["first"]
    held.may_end.set()
    assert (await first).outcome == "COMPLETED"
    told = [await house.watch(f"t{number}") for number in (2, 3, 4)]
    assert [one.outcome for one in told] == ["COMPLETED"] * 3
    assert sent(house) == texts
    assert len(house.manager.of("AdmitTurn")) == 4
    assert told[0].kinds[:3] == ["accepted", "queued", "dequeued"]
    assert [one.events[1].queued.ahead for one in told] == [0, 1, 2]
    assert [event.sequence for event in told[2].events] == list(range(1, len(told[2].events) + 1))
    assert (await queue(house)).messages == []


async def test_a_queued_turn_is_followed_by_its_own_call_and_never_sent_twice(house: House) -> None:
    held = Held()
    house.host.scripts = [held.script]
    first = asyncio.create_task(house.turn("t1"))
    await until_running(house, "t1")
    views = [asyncio.create_task(house.turn("t2", "two", **QUEUE)) for _ in range(3)]
    await house.until_state("t2", "QUEUED")
    assert (await send(house, "t2", "two")).state == "QUEUED"
    with pytest.raises(StandfastError) as refused:
        await send(house, "t2", "another")
    assert refused.value.reason == "MESSAGE_CHANGED"
    held.may_end.set()
    await first
    assert {(await view).outcome for view in views} == {"COMPLETED"}
    assert held.began == ["what was the word?", "two"]


async def test_a_message_for_a_free_conversation_begins_at_once(house: House) -> None:
    assert (await send(house, "t1")).state != "QUEUED"
    told = await house.watch("t1")
    assert told.outcome == "COMPLETED"
    assert "queued" not in told.kinds


async def test_reject_is_still_refused_while_a_turn_runs(house: House) -> None:
    held = Held()
    house.host.scripts = [held.script]
    first = asyncio.create_task(house.turn("t1"))
    await until_running(house, "t1")
    for when_busy in (pb.WHEN_BUSY_UNSPECIFIED, pb.WHEN_BUSY_REJECT):
        with pytest.raises(StandfastError) as refused:
            await send(house, "t2", when_busy=when_busy)
        assert refused.value.reason == "CONVERSATION_BUSY"
    with pytest.raises(StandfastError) as refused:
        await send(house, "t2", when_busy=pb.WHEN_BUSY_STEER)
    assert refused.value.reason == "WHEN_BUSY_UNSUPPORTED"
    assert "joins" in refused.value.metadata["why"]
    held.may_end.set()
    await first
    assert (await queue(house)).messages == []


async def test_after_an_end_that_is_not_normal_the_queue_is_held_and_says_so_until_it_is_released(house: House) -> None:
    may_die = asyncio.Event()

    async def dying(cli: Cli) -> None:
        await cli.activate()
        await cli.take_message()
        await cli.begin()
        await may_die.wait()
        raise ScriptedError(grpc.StatusCode.ABORTED, "CLI_DIED")

    house.host.scripts = [dying, ordinary_turn]
    first = asyncio.create_task(house.turn("t1"))
    await until_running(house, "t1")
    await send(house, "t2", "two")
    await send(house, "t3", "three")
    may_die.set()
    assert (await first).outcome == "INTERRUPTED"
    for turn_id in ("t2", "t3"):
        await house.until_state(turn_id, "HELD")
    shown = await queue(house)
    assert (shown.held.after_turn, shown.held.outcome) == ("t1", types_pb2.OUTCOME_INTERRUPTED)
    assert shown.held.reason == "CLI_DIED"
    assert shown.running_turn == ""
    assert sent(house) == ["what was the word?"]
    # A turn beside it is run, and releases nothing.
    assert (await house.turn("t4", "direct")).outcome == "COMPLETED"
    assert (await send(house, "t5", "five")).state == "HELD"
    assert sent(house) == ["what was the word?", "direct"]
    await release(house)
    told = [await house.watch(turn_id) for turn_id in ("t2", "t3", "t5")]
    assert [one.outcome for one in told] == ["COMPLETED"] * 3
    assert told[0].kinds[:4] == ["accepted", "queued", "held", "dequeued"]
    assert sent(house) == ["what was the word?", "direct", "two", "three", "five"]
    assert not (await release(house)).messages


async def test_a_cancelled_turn_holds_those_behind_it_and_a_settled_failure_does_not(house: House) -> None:
    async def failing(cli: Cli) -> None:
        await cli.activate()
        await cli.take_message()
        await cli.answer(is_error=True)

    held = Held()
    house.host.scripts = [held.script, failing, ordinary_turn]
    first = asyncio.create_task(house.turn("t1"))
    await until_running(house, "t1")
    await send(house, "t2")
    await send(house, "t3")
    held.may_end.set()
    assert (await first).outcome == "COMPLETED"
    assert (await house.watch("t2")).outcome == "FAILED"
    assert (await house.watch("t3")).outcome == "COMPLETED"


async def test_a_message_taken_out_is_never_sent_and_the_others_keep_their_order(house: House) -> None:
    held = Held()
    house.host.scripts = [held.script]
    first = asyncio.create_task(house.turn("t1"))
    await until_running(house, "t1")
    for number in (2, 3, 4):
        await send(house, f"t{number}", f"message {number}")
    view = asyncio.create_task(house.watch("t3"))
    turn = await take_out(house, "t3")
    assert (turn.outcome, turn.state) == (types_pb2.OUTCOME_CANCELLED, "ENDED")
    assert (await take_out(house, "t3")).outcome == types_pb2.OUTCOME_CANCELLED
    assert (await view).outcome == "CANCELLED"
    assert (await house.cancel("t4")).outcome == types_pb2.OUTCOME_CANCELLED
    for turn_id, reason in (("t1", "TURN_NOT_QUEUED"), ("never", "TURN_UNKNOWN")):
        with pytest.raises(StandfastError) as refused:
            await take_out(house, turn_id)
        assert refused.value.reason == reason
    held.may_end.set()
    await first
    assert (await house.watch("t2")).outcome == "COMPLETED"
    assert sent(house) == ["what was the word?", "message 2"]
    with pytest.raises(StandfastError) as refused:
        await take_out(house, "t2")
    assert refused.value.metadata["state"] == "SETTLED"


async def test_a_queue_has_a_bound(tmp_path: Path) -> None:
    held = Held()
    async with house_in(tmp_path / "state", settings={"queue_max": 2}) as house:
        house.host.scripts = [held.script]
        first = asyncio.create_task(house.turn("t1"))
        await until_running(house, "t1")
        await send(house, "t2")
        await send(house, "t3")
        with pytest.raises(StandfastError) as refused:
            await send(house, "t4")
        assert refused.value.reason == "QUEUE_FULL"
        held.may_end.set()
        await first
        assert (await house.watch("t3")).outcome == "COMPLETED"
        with pytest.raises(StandfastError) as refused:
            await house.get("t4")
        assert refused.value.reason == "TURN_UNKNOWN"


async def test_a_message_whose_turn_cannot_be_begun_keeps_its_place(tmp_path: Path) -> None:
    held = Held()
    async with house_in(tmp_path / "state", settings={"manager_wait_s": 0.2}) as house:
        house.host.scripts = [held.script]
        first = asyncio.create_task(house.turn("t1"))
        await until_running(house, "t1")
        await send(house, "t2", "two")
        await send(house, "t3", "three")
        view = asyncio.create_task(house.watch("t2"))
        away = ScriptedError(grpc.StatusCode.RESOURCE_EXHAUSTED, "NO_HOST")
        house.manager.script.failures["ClaimTurn"] = [away]
        held.may_end.set()
        assert (await first).outcome == "COMPLETED"
        await house.until_state("t3", "HELD")
        assert (await view).error.reason == "NO_HOST"
        shown = await queue(house)
        assert [one.turn_id for one in shown.messages] == ["t2", "t3"]
        assert (shown.held.after_turn, shown.held.reason) == ("t2", "NO_HOST")
        await release(house)
        assert [(await house.watch(turn_id)).outcome for turn_id in ("t2", "t3")] == ["COMPLETED"] * 2
        assert sent(house) == ["what was the word?", "two", "three"]


async def test_a_restart_keeps_the_queue_in_its_order_and_holds_it_behind_the_interrupted_turn(house: House) -> None:
    held = Held()
    house.host.scripts = [held.script, ordinary_turn]
    first = asyncio.create_task(house.turn("t1"))
    await until_running(house, "t1")
    for number in (2, 3):
        await send(house, f"t{number}", f"message {number}", turn_limit_ms=60_000)
    before = await house.watch_some("t2")
    await house.restart_runner()
    await first
    assert (await house.until_state("t1", "ENDED", "SETTLED")).outcome == types_pb2.OUTCOME_INTERRUPTED
    await house.until_state("t2", "HELD")
    shown = await queue(house)
    assert [one.turn_id for one in shown.messages] == ["t2", "t3"]
    assert shown.held.after_turn == "t1"
    assert sent(house) == ["what was the word?"]
    await house.restart_runner()
    assert (await queue(house)).held.after_turn == "t1"
    await release(house)
    told: list[Told] = [await house.watch(turn_id) for turn_id in ("t2", "t3")]
    assert [one.outcome for one in told] == ["COMPLETED"] * 2
    assert sent(house) == ["what was the word?", "message 2", "message 3"]
    assert told[0].kinds[: len(before)] == before
    assert [event.sequence for event in told[0].events] == list(range(1, len(told[0].events) + 1))


async def test_a_queue_that_is_not_held_goes_on_after_a_restart(house: House) -> None:
    held = Held()
    house.host.scripts = [held.script, ordinary_turn]
    first = asyncio.create_task(house.turn("t1"))
    await until_running(house, "t1")
    await send(house, "t2", "two")
    # As if the runner had died between the end of the first turn and the beginning of the second.
    house.manager.script.failures["ClaimTurn"] = [None]
    held.may_end.set()
    await first
    assert (await house.watch("t2")).outcome == "COMPLETED"
    await house.restart_runner()
    assert (await house.watch("t2")).outcome == "COMPLETED"
    assert sent(house) == ["what was the word?", "two"]


async def test_a_removed_conversation_takes_its_queue_along(house: House) -> None:
    house.host.scripts = [cut, ordinary_turn]
    held = Held()
    house.host.scripts = [held.script]
    first = asyncio.create_task(house.turn("t1"))
    await until_running(house, "t1")
    view = asyncio.create_task(house.turn("t2", "two", **QUEUE))
    await house.until_state("t2", "QUEUED")
    with remote_errors():
        await house.stub.RemoveConversation(pb.RemoveConversationRequest(conversation=KEY, force=True))
    assert (await view).error.reason == "CONVERSATION_REMOVED"
    assert (await queue(house)).messages == []
    held.may_end.set()
    await first
    assert sent(house) == ["what was the word?"]
