"""The repaired view, the overlay that keeps it, and the record of it: the stored transcript never changes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from direct_agent.core.acceptance import accept
from direct_agent.core.endpoint import Endpoint, EndpointKind, Thinking, Wire
from direct_agent.core.projection import base_view, closed_arguments
from direct_agent.recovery.attempt_machine import RepairKind
from direct_agent.recovery.facts import FileFinding
from direct_agent.recovery.memory import RepairMemory
from direct_agent.recovery.overlay import Overlay, RecordState, fingerprint, overlay_of, provider_view, record_from
from direct_agent.recovery.repaired_view import has_something_to_strip, repaired
from direct_agent.transcript import (
    CANCELLED_BEFORE_OUTPUT,
    INTERRUPTED_OUTPUT,
    AssistantMessage,
    Message,
    Reasoning,
    ReasoningKind,
    ReasoningState,
    RunState,
    ToolCall,
    ToolResult,
    Transcript,
    UserMessage,
    run_state,
)
from direct_agent.transcript_json import from_json, to_json

CHAT = Endpoint(Wire.CHAT, EndpointKind.STRICT_DEEPSEEK, "http://x", "m", Thinking.ON)
NATIVE = Endpoint(Wire.MESSAGES, EndpointKind.NATIVE_CLAUDE, "http://x", "m", Thinking.ON)
THOUGHT = (Reasoning(ReasoningKind.TEXT, "secret thought"),)


def called(
    call_id: str = "call_1", name: str = "echo", text: str = "", reasoning: tuple[Reasoning, ...] = THOUGHT
) -> Message:
    return AssistantMessage(
        text, reasoning, ReasoningState.COMPLETE, (ToolCall(call_id, name, '{"secret":"argument"}'),)
    )


def result(
    call_id: str = "call_1", name: str = "echo", output: str = "MARK-7", state: RunState | None = RunState.COMPLETED
) -> Message:
    return ToolResult(call_id, name, output, state)


HISTORY: Transcript = (
    UserMessage("first"),
    AssistantMessage("plain", THOUGHT, ReasoningState.COMPLETE),
    UserMessage("read the mark"),
    called(),
    result(),
)


def texts(view: Transcript) -> list[str]:
    return [each.output if isinstance(each, ToolResult) else each.text for each in view]


def test_calls_become_facts_at_the_last_user_message_and_plain_text_stays() -> None:
    view = repaired(HISTORY, HISTORY)
    assert [type(each) for each in view] == [UserMessage, AssistantMessage, UserMessage]
    assert texts(view)[:2] == ["first", "plain"]
    before, _, after = texts(view)[2].partition("\n\nread the mark\n\n")
    assert before.startswith("<interrupted-turn-recovery>")
    assert '"user_turn":2' in after
    assert "MARK-7" in after
    assert "secret" not in json.dumps([to_json(each) for each in view])


def test_an_assistant_message_with_text_and_a_call_keeps_its_text() -> None:
    view = repaired((UserMessage("a"), called(text="let me look"), result()), HISTORY)
    assert isinstance(view[1], AssistantMessage)
    assert view[1].text == "let me look"
    assert view[1].tool_calls == ()


def test_a_call_that_came_without_reasoning_is_stripped_too() -> None:
    view = (UserMessage("a"), called(reasoning=()), result())
    assert has_something_to_strip(view)
    assert len(repaired(view, view)) == 1


def test_a_healthy_or_repaired_view_is_the_same_object() -> None:
    plain: Transcript = (UserMessage("a"), AssistantMessage("b"), UserMessage("c"))
    assert repaired(plain, plain) is plain
    once = repaired(HISTORY, HISTORY)
    assert repaired(once, HISTORY) is once
    assert base_view(HISTORY) is HISTORY
    assert provider_view(CHAT, HISTORY) is HISTORY


@pytest.mark.parametrize(
    ("receipts", "listed"),
    [
        ([result(state=RunState.COMPLETED)], "completed_tools: echo"),
        ([result(state=RunState.NOT_STARTED)], "not_started_tools: echo"),
        ([result(state=RunState.UNKNOWN)], "unknown_outcome_tools: echo"),
        ([], "unknown_outcome_tools: echo"),
        ([result(), result(output="again")], "unknown_outcome_tools: echo"),
        ([result(name="other")], "unknown_outcome_tools: echo"),
        ([result(output="all done, success!", state=RunState.UNKNOWN)], "unknown_outcome_tools: echo"),
        ([result(output=INTERRUPTED_OUTPUT, state=None)], "unknown_outcome_tools: echo"),
        ([result(output=CANCELLED_BEFORE_OUTPUT, state=None)], "not_started_tools: echo"),
    ],
)
def test_the_state_comes_from_the_receipt_alone(receipts: list[Message], listed: str) -> None:
    canonical = (UserMessage("a"), called(), *receipts)
    view = repaired(base_view(canonical), canonical)
    assert listed in texts(view)[0]
    assert ("<completed-tool-results>" in texts(view)[0]) == listed.startswith("completed")


def test_findings_of_a_write_are_told() -> None:
    canonical = (UserMessage("a"), called(name="write"))
    view = repaired(base_view(canonical), canonical, lambda _call: (FileFinding("/w/a", "satisfied"),))
    assert "targets of write: /w/a (satisfied)" in texts(view)[0]


@pytest.mark.parametrize(
    ("text", "state"),
    [
        (INTERRUPTED_OUTPUT, RunState.UNKNOWN),
        ("Write outcome unknown", RunState.UNKNOWN),
        ("cancelled by the user before execution", RunState.NOT_STARTED),
        ("Cancelled", RunState.UNKNOWN),
        ("fine", RunState.COMPLETED),
    ],
)
def test_an_old_session_is_classified_by_text(text: str, state: RunState) -> None:
    assert run_state(ToolResult("c", "t", text)) is state


# --- staying repaired


def test_what_comes_after_the_anchor_is_sent_as_it_is() -> None:
    overlay = overlay_of(HISTORY)
    later = (*HISTORY, called("call_2"), result("call_2"), AssistantMessage("done"), UserMessage("next"))
    view = provider_view(CHAT, later, overlay)
    assert view[-4:] == later[-4:]
    assert view[:-4] == repaired(HISTORY, later)


def test_facts_stay_on_the_original_of_two_equal_user_texts() -> None:
    history = (UserMessage("continue"), called(), result())
    later = (*history, AssistantMessage("ok"), UserMessage("continue"))
    view = provider_view(CHAT, later, overlay_of(history))
    assert "MARK-7" in texts(view)[0]
    assert texts(view)[-1] == "continue"


def test_a_rewound_history_drops_the_overlay() -> None:
    overlay = overlay_of(HISTORY)
    rewound = (*HISTORY[:3], called("other"), result("other"))
    assert overlay.end_in(rewound) is None
    assert provider_view(CHAT, rewound, overlay) is rewound


def test_an_anchor_before_the_cutoff_does_not_count() -> None:
    assert Overlay(3, fingerprint(HISTORY[0])).end_in(HISTORY) is None


def test_intents_and_states_do_not_move_the_anchor() -> None:
    stored = list(HISTORY)
    call = replace(HISTORY[3].tool_calls[0], intents=("{}",)) if isinstance(HISTORY[3], AssistantMessage) else None
    assert call is not None
    assert isinstance(HISTORY[3], AssistantMessage)
    stored[3] = replace(HISTORY[3], tool_calls=(call,))
    assert fingerprint(stored[3]) == fingerprint(HISTORY[3])


def test_a_signed_turn_of_native_claude_keeps_its_form_while_a_bad_one_is_repaired() -> None:
    signed = AssistantMessage("first", (Reasoning(ReasoningKind.THINKING, "t1", "c2ln"),), ReasoningState.COMPLETE)
    bad = called(reasoning=(Reasoning(ReasoningKind.THINKING, "t3"),))
    history = (UserMessage("one"), signed, UserMessage("three"), bad, result())
    view = provider_view(NATIVE, history, overlay_of(history, is_selective=True))
    assert view[1] is signed
    assert len(view) == 3
    assert "MARK-7" in texts(view)[2]


# --- records


def memory_with(kind: RepairKind = RepairKind.HISTORY, *, is_active: bool = True) -> RepairMemory:
    memory = RepairMemory(CHAT)
    record = memory.record("id-1", kind, HISTORY, overlay_of(HISTORY))
    memory.saved(record)
    if is_active:
        memory.activate(memory.activated(record))
    return memory


def test_a_record_survives_and_its_overlay_comes_back() -> None:
    memory = memory_with()
    record = record_from(memory.records[-1])
    assert record is not None
    assert record.state is RecordState.ACTIVE
    assert record.to_bytes() == memory.records[-1]
    again = RepairMemory.restored(CHAT, memory.records, (*HISTORY, AssistantMessage("x")))
    assert again.overlay == memory.overlay
    assert again.records == memory.records


def test_a_pending_record_gives_no_overlay_but_its_allowance_is_used() -> None:
    again = RepairMemory.restored(CHAT, memory_with(is_active=False).records, HISTORY)
    assert again.overlay is None
    assert not again.may_repair_history(HISTORY)


def test_another_configuration_or_another_history_restores_nothing() -> None:
    records = memory_with().records
    other = replace(CHAT, model="other")
    assert RepairMemory.restored(other, records, HISTORY).overlay is None
    changed = (UserMessage("changed"), *HISTORY[1:])
    assert RepairMemory.restored(CHAT, records, changed).overlay is None
    assert RepairMemory.restored(CHAT, records, HISTORY[:3]).overlay is None


@pytest.mark.parametrize("raw", [b'{"version":99,"future":"x" }', b'{"version":2}', b"not json", b"[]"])
def test_a_record_of_another_version_stays_byte_for_byte_and_counts_as_used(raw: bytes) -> None:
    memory = RepairMemory.restored(CHAT, [raw], HISTORY)
    assert memory.records == [raw]
    assert memory.overlay is None
    assert not memory.may_repair_history(HISTORY)
    assert memory.may_repair_history((*HISTORY, called("call_2"), result("call_2")))


def test_the_same_incident_is_not_repaired_twice_until_a_new_call_or_reasoning() -> None:
    memory = memory_with()
    assert not memory.may_repair_history((*HISTORY, AssistantMessage("text"), UserMessage("go on")))
    assert memory.may_repair_history((*HISTORY, AssistantMessage("text", THOUGHT)))


def test_three_healthy_tool_rounds_end_an_incident_of_missing_reasoning() -> None:
    memory = RepairMemory(CHAT)
    memory.saved(memory.record("r", RepairKind.REGENERATE, HISTORY[:3], None))
    rounds: list[Message] = [called("regenerated"), result("regenerated")]
    for at in range(3):
        transcript = (*HISTORY[:3], *rounds)
        assert memory.is_regeneration_used
        assert RepairMemory.restored(CHAT, memory.records, transcript).is_regeneration_used
        answer = called(f"c{at}")
        assert isinstance(answer, AssistantMessage)
        memory.committed(accept(CHAT, answer, is_whole=True), answer, was_regenerated=False)
        rounds += [answer, result(f"c{at}")]
    assert not memory.is_regeneration_used
    assert not RepairMemory.restored(CHAT, memory.records, (*HISTORY[:3], *rounds)).is_regeneration_used


# --- the plain projection


def test_a_lost_result_gets_a_placeholder_of_unknown_outcome() -> None:
    two = AssistantMessage("", tool_calls=(ToolCall("r", "read", "{}"), ToolCall("w", "write", "{}")))
    stored = (UserMessage("a"), two, ToolResult("r", "read", "n", RunState.COMPLETED))
    view = base_view(stored)
    assert view[2] is stored[2]
    placeholder = view[3]
    assert isinstance(placeholder, ToolResult)
    assert (placeholder.call_id, placeholder.output, placeholder.state) == ("w", INTERRUPTED_OUTPUT, RunState.UNKNOWN)


@pytest.mark.parametrize(
    ("arguments", "closed"),
    [
        ('{"a":1}', '{"a":1}'),
        ('{"a":"x', '{"a": "x"}'),
        ('{"a":1', '{"a": 1}'),
        ("nonsense", "{}"),
        ("", "{}"),
        ("[1]", "{}"),
    ],
)
def test_stored_arguments_that_were_cut_are_closed_in_the_view(arguments: str, closed: str) -> None:
    assert closed_arguments(arguments) == closed


@pytest.mark.parametrize("message", [*HISTORY, ToolResult("c", "t", "x", None, True), UserMessage("h", is_host=True)])
def test_messages_survive_json(message: Message) -> None:
    assert from_json(json.loads(json.dumps(to_json(message)))) == message


def test_an_unknown_state_is_read_as_unknown_and_an_unknown_key_is_refused() -> None:
    value = to_json(HISTORY[4]) | {"state": "half_done"}
    loaded = from_json(value)
    assert isinstance(loaded, ToolResult)
    assert loaded.state is RunState.UNKNOWN
    with pytest.raises(ValueError, match="future"):
        from_json(to_json(HISTORY[0]) | {"future": 1})
