"""The turn machine: its story, and every state and event, legal or refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from direct_agent.loop.turn import (
    Answered,
    Ask,
    Begin,
    Cancel,
    End,
    Entry,
    Event,
    IllegalEventError,
    Outcome,
    Record,
    Recorded,
    RecordEnd,
    RecordFailed,
    RoundFailed,
    RunTools,
    SayEnd,
    Steer,
    StopWork,
    ToolsDone,
    TurnMachine,
    TurnState,
)
from direct_agent.transcript import AssistantMessage, Finish, RunState, ToolCall, ToolResult, UserMessage

CALL = ToolCall("c1", "shell", "{}")
TEXT = AssistantMessage("done")
CALLING = AssistantMessage("going", tool_calls=(CALL,), finish=Finish.TOOL_CALLS)
BEGIN = Begin("m1", "go")
COMPLETED = RecordEnd("m1", End(Outcome.COMPLETED))
CANCELLED = RecordEnd("m1", End(Outcome.CANCELLED, "cancelled"))


def machine_after(*events: Event) -> TurnMachine:
    machine = TurnMachine()
    for event in events:
        machine.step(event)
    return machine


STATES: dict[TurnState, Callable[[], TurnMachine]] = {
    TurnState.NEW: machine_after,
    TurnState.RECORDING: lambda: machine_after(BEGIN),
    TurnState.ASKING: lambda: machine_after(BEGIN, Recorded()),
    TurnState.STORING: lambda: machine_after(BEGIN, Recorded(), Answered(CALLING)),
    TurnState.ACTING: lambda: machine_after(BEGIN, Recorded(), Answered(CALLING), Recorded()),
    TurnState.ENDING: lambda: machine_after(BEGIN, Recorded(), Answered(TEXT), Recorded()),
    TurnState.ENDED: lambda: machine_after(BEGIN, Recorded(), Answered(TEXT), Recorded(), Recorded()),
}
EVENTS: list[Event] = [
    BEGIN,
    Recorded(),
    RecordFailed("STORAGE_FULL", "full"),
    Answered(TEXT),
    RoundFailed("quota", "no money"),
    ToolsDone(),
    Cancel(),
    Steer("m2", "also this"),
]
LEGAL: dict[TurnState, set[type]] = {
    TurnState.NEW: {Begin},
    TurnState.RECORDING: {Recorded, RecordFailed, Cancel, Steer},
    TurnState.ASKING: {Answered, RoundFailed, Cancel, Steer},
    TurnState.STORING: {Recorded, RecordFailed, Cancel, Steer},
    TurnState.ACTING: {ToolsDone, RecordFailed, Cancel, Steer},
    TurnState.ENDING: {Recorded, RecordFailed, Cancel},
    TurnState.ENDED: set(),
}


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("state", list(TurnState))
def test_every_state_takes_its_events_and_refuses_all_others_unchanged(state: TurnState, event: Event) -> None:
    machine = STATES[state]()
    assert machine.state is state
    if type(event) in LEGAL[state]:
        machine.step(event)
    else:
        before = dict(vars(machine))
        with pytest.raises(IllegalEventError):
            machine.step(event)
        assert vars(machine) == before


def test_a_turn_with_a_tool() -> None:
    machine = TurnMachine()
    assert machine.step(BEGIN) == [Record((Entry(UserMessage("go"), "m1"),))]
    assert machine.step(Recorded()) == [Ask()]
    assert machine.step(Answered(CALLING)) == [Record((Entry(CALLING),))]
    assert machine.step(Recorded()) == [RunTools((CALL,))]
    assert machine.step(ToolsDone()) == [Ask()]
    assert machine.step(Answered(TEXT)) == [Record((Entry(TEXT),))]
    assert machine.step(Recorded()) == [COMPLETED]
    assert machine.step(Recorded()) == [SayEnd("m1", End(Outcome.COMPLETED))]
    assert machine.rounds == 2


def test_the_message_comes_after_the_placeholders_and_has_the_facts_with_it() -> None:
    placeholder = ToolResult("c0", "shell", "?", RunState.UNKNOWN)
    (record,) = TurnMachine().step(Begin("m1", "go", (placeholder,), "facts"))
    assert record == Record((Entry(placeholder), Entry(UserMessage("go"), "m1", facts="facts")))


@pytest.mark.parametrize("finish", [Finish.LENGTH, Finish.INCOMPLETE, Finish.CONTENT_FILTER])
def test_calls_of_a_cut_answer_are_stored_as_not_run_and_the_model_is_asked_again(finish: Finish) -> None:
    machine = machine_after(BEGIN, Recorded(), Answered(AssistantMessage(tool_calls=(CALL,), finish=finish)))
    (record,) = machine.step(Recorded())
    assert isinstance(record, Record)
    (entry,) = record.entries
    assert isinstance(entry.message, ToolResult)
    assert entry.message.state is RunState.NOT_STARTED
    assert machine.step(Recorded()) == [Ask()]


def test_a_complete_answer_that_comes_after_a_cancel_is_not_stored_and_runs_nothing() -> None:
    machine = STATES[TurnState.ASKING]()
    assert machine.step(Cancel()) == [StopWork()]
    assert machine.step(Answered(CALLING)) == [CANCELLED]


def test_a_cancel_while_tools_run_stops_them_and_asks_nothing_more() -> None:
    machine = STATES[TurnState.ACTING]()
    assert machine.step(Cancel()) == [StopWork()]
    assert machine.step(Cancel()) == []
    assert machine.step(ToolsDone()) == [CANCELLED]


def test_a_cancel_while_the_answer_is_stored_gives_its_calls_to_the_tools_which_say_that_they_were_cancelled() -> None:
    machine = STATES[TurnState.STORING]()
    machine.step(Cancel())
    assert machine.step(Recorded()) == [RunTools((CALL,))]
    assert machine.step(ToolsDone()) == [CANCELLED]


def test_a_failure_after_a_cancel_is_a_cancel() -> None:
    machine = STATES[TurnState.ASKING]()
    machine.step(Cancel())
    assert machine.step(RoundFailed("headers", "503", 503)) == [CANCELLED]


def test_a_steering_text_is_recorded_before_the_next_round() -> None:
    machine = STATES[TurnState.ACTING]()
    machine.step(Steer("m2", "also this"))
    assert machine.step(ToolsDone()) == [Record((Entry(UserMessage("also this"), "m2", steers="m1"),))]
    assert machine.step(Recorded()) == [Ask()]


def test_a_steering_text_that_comes_with_the_last_answer_is_heard_before_the_turn_ends() -> None:
    machine = machine_after(BEGIN, Recorded(), Steer("m2", "wait"), Answered(TEXT))
    assert machine.step(Recorded()) == [Record((Entry(UserMessage("wait"), "m2", steers="m1"),))]
    assert machine.step(Recorded()) == [Ask()]


@pytest.mark.parametrize("state", [TurnState.RECORDING, TurnState.STORING, TurnState.ACTING])
def test_what_cannot_be_stored_ends_the_turn_at_once(state: TurnState) -> None:
    end = End(Outcome.FAILED, "STORAGE_FULL", "full")
    assert STATES[state]().step(RecordFailed("STORAGE_FULL", "full")) == [SayEnd("m1", end)]


def test_an_end_that_cannot_be_stored_is_no_completed_one() -> None:
    machine = STATES[TurnState.ENDING]()
    (said,) = machine.step(RecordFailed("STORE_UNWRITABLE", "broken"))
    assert said == SayEnd("m1", End(Outcome.FAILED, "STORE_UNWRITABLE", "broken"))


def test_a_model_that_never_ends_is_ended() -> None:
    machine = TurnMachine(rounds_max=2)
    machine.step(BEGIN)
    machine.step(Recorded())
    for _ in range(2):
        machine.step(Answered(CALLING))
        machine.step(Recorded())
        (effect,) = machine.step(ToolsDone())
    assert isinstance(effect, RecordEnd)
    assert effect.end.reason == "rounds_max"
