"""The turn machine: every event in every state, legal or refused; and no order of events breaks what it promises."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.core.errors import IllegalTransitionError
from runner.core.events import NativeTurnEnded
from runner.core.turn import (
    OVER,
    Abandon,
    Abandoned,
    Admit,
    Admitted,
    AnnounceEnd,
    AttachBroke,
    Claimed,
    CloseAttach,
    Effect,
    Event,
    Finish,
    Forget,
    Forwarded,
    Interrupt,
    KnownOver,
    LeaseLost,
    NativeEnded,
    NativeEndFound,
    NativeStarted,
    NotEnded,
    Observed,
    OpenAttach,
    Prepare,
    Prepared,
    QuiesceTimedOut,
    Refused,
    ReportReceived,
    Resumed,
    SendMessage,
    Settle,
    Settled,
    StopRequested,
    StopTimedOut,
    TurnMachine,
    TurnState,
    Unavailable,
    WillNotEnd,
)
from runner.core.values import Cause, Outcome

CAUSE = Cause("SOME_REASON", "some message")
GOOD_END = NativeTurnEnded(failed=False, cancelled=False, reason="completed", error=None, status=None)
BAD_END = NativeTurnEnded(failed=True, cancelled=False, reason="api_error", error="no", status=403)
CANCEL = StopRequested(Outcome.CANCELLED, CAUSE)
LATE = StopRequested(Outcome.TIMED_OUT, CAUSE)

EVENTS: dict[str, Event] = {
    "Claimed": Claimed(),
    "KnownOver": KnownOver(Outcome.COMPLETED, None),
    "Resumed": Resumed(),
    "Prepared": Prepared(),
    "ReportReceived": ReportReceived(),
    "Admitted": Admitted(),
    "Forwarded": Forwarded(),
    "NativeStarted": NativeStarted(),
    "WillNotEnd": WillNotEnd(CAUSE),
    "NativeEnded good": NativeEnded(GOOD_END),
    "NativeEnded bad": NativeEnded(BAD_END),
    "Observed end": Observed(native_end_seen=True),
    "Observed no end": Observed(native_end_seen=False),
    "Observed exit": Observed(native_end_seen=False, cause=CAUSE),
    "AttachBroke before": AttachBroke(CAUSE, before_forwarded=True, refused=False),
    "AttachBroke refused": AttachBroke(CAUSE, before_forwarded=True, refused=True),
    "AttachBroke after": AttachBroke(CAUSE, before_forwarded=False, refused=False),
    "Refused": Refused(CAUSE),
    "Unavailable": Unavailable(CAUSE),
    "StopRequested cancel": CANCEL,
    "StopRequested late": LATE,
    "StopTimedOut": StopTimedOut(),
    "QuiesceTimedOut": QuiesceTimedOut(),
    "LeaseLost": LeaseLost(CAUSE),
    "Settled": Settled(),
    "NotEnded": NotEnded(CAUSE),
    "NativeEndFound": NativeEndFound(),
    "Abandoned": Abandoned(Outcome.INTERRUPTED, None),
}

WAY: dict[TurnState, list[Event]] = {
    TurnState.ACCEPTED: [],
    TurnState.PREPARING: [Claimed()],
    TurnState.ACTIVATING: [Claimed(), Prepared()],
    TurnState.ADMITTING: [Claimed(), Prepared(), ReportReceived()],
    TurnState.RUNNING: [Claimed(), Prepared(), ReportReceived(), Admitted()],
    TurnState.QUIESCING: [Claimed(), Prepared(), ReportReceived(), Admitted(), NativeEnded(GOOD_END)],
    TurnState.SETTLING: [
        Claimed(),
        Prepared(),
        ReportReceived(),
        Admitted(),
        NativeEnded(GOOD_END),
        Observed(native_end_seen=True),
    ],
    TurnState.ABANDONING: [Resumed()],
    TurnState.SETTLED: [Resumed(), NativeEndFound(), Settled()],
    TurnState.ENDED: [Refused(CAUSE)],
    TurnState.FORGOTTEN: [Unavailable(CAUSE)],
}


def machine_in(state: TurnState) -> TurnMachine:
    machine = TurnMachine()
    for event in WAY[state]:
        machine.step(event)
    assert machine.state is state
    return machine


def abandon(outcome: Outcome, cause: Cause | None, *, sent: bool) -> Abandon:
    return Abandon(outcome, cause, may_have_been_sent=sent)


NOT_SENT = abandon(Outcome.NOT_SENT, CAUSE, sent=False)
REFUSED = abandon(Outcome.REFUSED, CAUSE, sent=False)
CANCELLED = abandon(Outcome.CANCELLED, CAUSE, sent=False)
TIMED_OUT = abandon(Outcome.TIMED_OUT, CAUSE, sent=False)
S = TurnState

# Every legal pair: the state after it, and the effects. Every pair that is not here must raise.
LEGAL: dict[tuple[TurnState, str], tuple[TurnState, list[Effect]]] = {
    (S.ACCEPTED, "Claimed"): (S.PREPARING, [Prepare()]),
    (S.ACCEPTED, "KnownOver"): (S.ENDED, [Finish(Outcome.COMPLETED, None)]),
    (S.ACCEPTED, "Resumed"): (S.ABANDONING, [abandon(Outcome.INTERRUPTED, None, sent=True)]),
    (S.ACCEPTED, "Refused"): (S.ENDED, [Finish(Outcome.REFUSED, CAUSE)]),
    (S.ACCEPTED, "Unavailable"): (S.FORGOTTEN, [Forget(CAUSE)]),
    (S.ACCEPTED, "StopRequested cancel"): (S.ABANDONING, [CANCELLED]),
    (S.ACCEPTED, "StopRequested late"): (S.ABANDONING, [TIMED_OUT]),
    (S.PREPARING, "Prepared"): (S.ACTIVATING, [OpenAttach()]),
    (S.PREPARING, "Refused"): (S.ABANDONING, [REFUSED]),
    (S.PREPARING, "Unavailable"): (S.FORGOTTEN, [Forget(CAUSE)]),
    (S.PREPARING, "StopRequested cancel"): (S.ABANDONING, [CANCELLED]),
    (S.PREPARING, "StopRequested late"): (S.ABANDONING, [TIMED_OUT]),
    (S.ACTIVATING, "ReportReceived"): (S.ADMITTING, [Admit()]),
    (S.ADMITTING, "Admitted"): (S.RUNNING, [SendMessage()]),
    (S.RUNNING, "Forwarded"): (S.RUNNING, []),
    (S.RUNNING, "NativeStarted"): (S.RUNNING, []),
    (S.RUNNING, "WillNotEnd"): (
        S.ABANDONING,
        [
            CloseAttach(),
            AnnounceEnd(Outcome.INTERRUPTED, CAUSE),
            abandon(Outcome.INTERRUPTED, CAUSE, sent=True),
        ],
    ),
    (S.RUNNING, "NativeEnded good"): (S.QUIESCING, [AnnounceEnd(Outcome.COMPLETED, None)]),
    (S.RUNNING, "NativeEnded bad"): (S.QUIESCING, [AnnounceEnd(Outcome.FAILED, None)]),
    (S.RUNNING, "Observed end"): (S.SETTLING, [AnnounceEnd(Outcome.FAILED, None), Settle(replay=False)]),
    (S.RUNNING, "Observed no end"): (
        S.ABANDONING,
        [AnnounceEnd(Outcome.INTERRUPTED, None), abandon(Outcome.INTERRUPTED, None, sent=True)],
    ),
    (S.RUNNING, "Observed exit"): (
        S.ABANDONING,
        [AnnounceEnd(Outcome.INTERRUPTED, CAUSE), abandon(Outcome.INTERRUPTED, CAUSE, sent=True)],
    ),
    (S.RUNNING, "AttachBroke before"): (
        S.ABANDONING,
        [CloseAttach(), AnnounceEnd(Outcome.NOT_SENT, CAUSE), abandon(Outcome.NOT_SENT, CAUSE, sent=True)],
    ),
    (S.RUNNING, "AttachBroke refused"): (
        S.ABANDONING,
        [CloseAttach(), AnnounceEnd(Outcome.REFUSED, CAUSE), abandon(Outcome.REFUSED, CAUSE, sent=True)],
    ),
    (S.RUNNING, "AttachBroke after"): (
        S.ABANDONING,
        [CloseAttach(), AnnounceEnd(Outcome.INTERRUPTED, CAUSE), abandon(Outcome.INTERRUPTED, CAUSE, sent=True)],
    ),
    (S.RUNNING, "StopRequested cancel"): (S.RUNNING, [Interrupt(Outcome.CANCELLED)]),
    (S.RUNNING, "StopRequested late"): (S.RUNNING, [Interrupt(Outcome.TIMED_OUT)]),
    (S.RUNNING, "LeaseLost"): (
        S.ABANDONING,
        [CloseAttach(), AnnounceEnd(Outcome.INTERRUPTED, CAUSE), abandon(Outcome.INTERRUPTED, CAUSE, sent=True)],
    ),
    (S.QUIESCING, "Forwarded"): (S.QUIESCING, []),
    (S.QUIESCING, "Observed end"): (S.SETTLING, [Settle(replay=False)]),
    (S.QUIESCING, "Observed no end"): (S.SETTLING, [Settle(replay=False)]),
    (S.QUIESCING, "Observed exit"): (S.SETTLING, [Settle(replay=False)]),
    (S.QUIESCING, "QuiesceTimedOut"): (S.SETTLING, [CloseAttach(), Settle(replay=False)]),
    (S.QUIESCING, "LeaseLost"): (S.QUIESCING, []),
    (S.SETTLING, "Settled"): (S.SETTLED, []),
    (S.SETTLING, "NotEnded"): (S.ABANDONING, [abandon(Outcome.INTERRUPTED, CAUSE, sent=True)]),
    (S.SETTLING, "LeaseLost"): (S.SETTLING, []),
    (S.ABANDONING, "NativeEndFound"): (S.SETTLING, [Settle(replay=True)]),
    (S.ABANDONING, "Abandoned"): (S.ENDED, [Finish(Outcome.INTERRUPTED, None)]),
    (S.ABANDONING, "LeaseLost"): (S.ABANDONING, []),
}
for _state in (S.ACTIVATING, S.ADMITTING):
    for _name, _effect in (
        ("AttachBroke before", NOT_SENT),
        ("AttachBroke after", NOT_SENT),
        ("AttachBroke refused", REFUSED),
        ("Refused", REFUSED),
        ("Unavailable", NOT_SENT),
        ("LeaseLost", NOT_SENT),
        ("StopRequested cancel", CANCELLED),
        ("StopRequested late", TIMED_OUT),
    ):
        LEGAL[_state, _name] = (S.ABANDONING, [CloseAttach(), _effect])
for _name in ("AttachBroke before", "AttachBroke after", "AttachBroke refused"):
    LEGAL[S.QUIESCING, _name] = (S.SETTLING, [CloseAttach(), Settle(replay=False)])
for _state in (S.QUIESCING, S.SETTLING, S.ABANDONING, S.SETTLED, S.ENDED, S.FORGOTTEN):
    for _name in ("StopRequested cancel", "StopRequested late"):
        LEGAL[_state, _name] = (_state, [])


@pytest.mark.parametrize("name", sorted(EVENTS))
@pytest.mark.parametrize("state", list(TurnState), ids=lambda state: str(state.value))
def test_every_event_in_every_state_is_legal_as_said_or_changes_nothing(state: TurnState, name: str) -> None:
    machine = machine_in(state)
    before = copy.deepcopy(vars(machine))
    event = EVENTS[name]
    if (state, name) in LEGAL:
        expected_state, expected_effects = LEGAL[state, name]
        assert machine.step(event) == expected_effects
        assert machine.state is expected_state
        return
    if isinstance(event, Observed) and state in (S.ACTIVATING, S.ADMITTING):
        effects = machine.step(event)
        assert [type(effect) for effect in effects] == [CloseAttach, Abandon]
        return
    with pytest.raises(IllegalTransitionError):
        machine.step(event)
    assert vars(machine) == before


def test_the_first_stop_counts() -> None:
    machine = machine_in(TurnState.RUNNING)
    machine.step(LATE)
    assert machine.step(CANCEL) == []
    [announce] = machine.step(NativeEnded(BAD_END))
    assert announce == AnnounceEnd(Outcome.TIMED_OUT, CAUSE)


def test_an_interrupt_before_the_cli_began_is_repeated_when_it_does() -> None:
    machine = machine_in(TurnState.RUNNING)
    machine.step(CANCEL)
    assert machine.step(NativeStarted()) == [Interrupt(Outcome.CANCELLED)]


def test_a_stop_that_brings_no_native_end_gives_the_turn_up_as_what_was_asked_for() -> None:
    for event in (StopTimedOut(), Observed(native_end_seen=False), WillNotEnd(CAUSE)):
        machine = machine_in(TurnState.RUNNING)
        machine.step(CANCEL)
        assert machine.step(event)[-1] == abandon(Outcome.CANCELLED, CAUSE, sent=True)


def test_after_it_was_forwarded_no_word_of_the_host_agent_makes_it_not_sent() -> None:
    machine = machine_in(TurnState.RUNNING)
    machine.step(Forwarded())
    effects = machine.step(AttachBroke(CAUSE, before_forwarded=True, refused=False))
    assert effects[-1] == abandon(Outcome.INTERRUPTED, CAUSE, sent=True)


def test_the_end_is_announced_once() -> None:
    machine = machine_in(TurnState.SETTLING)
    machine.step(NotEnded(CAUSE))
    effects = machine.step(NativeEndFound())
    assert not any(isinstance(effect, AnnounceEnd) for effect in effects)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(sorted(EVENTS)), max_size=25))
def test_no_order_of_events_breaks_what_a_turn_promises(names: list[str]) -> None:
    machine = TurnMachine()
    effects: list[Effect] = []
    for name in names:
        before = (machine.state, machine.stop, machine.native_end, machine.forwarded)
        was_over = machine.is_over
        try:
            new = machine.step(EVENTS[name])
        except IllegalTransitionError:
            assert (machine.state, machine.stop, machine.native_end, machine.forwarded) == before
            continue
        assert not (was_over and new), "nothing happens after the end"
        effects += new

    def counts(kind: type) -> int:
        return sum(isinstance(effect, kind) for effect in effects)

    assert counts(SendMessage) <= 1, "the message is handed over at most once"
    assert counts(AnnounceEnd) <= 1
    assert counts(OpenAttach) <= 1, "an activation is attached once"
    assert counts(Finish) + counts(Forget) <= 1
    if counts(SendMessage):
        assert machine.state is not TurnState.FORGOTTEN, "what may have been sent is never forgotten"
        assert all(effect.may_have_been_sent for effect in effects if isinstance(effect, Abandon))
    if machine.state in OVER and machine.state is not TurnState.SETTLED:
        assert counts(Finish) + counts(Forget) == 1
