"""Which answers commit, by endpoint; and native Claude's lossless conversion."""

from __future__ import annotations

from dataclasses import replace

import pytest

from direct_agent.core.acceptance import Acceptance, Decision, Issue, accept
from direct_agent.core.endpoint import Endpoint, EndpointKind, Thinking, Wire
from direct_agent.core.native_text import converts_to_text, with_unsigned_as_text
from direct_agent.transcript import (
    AssistantMessage,
    Finish,
    Opaque,
    Reasoning,
    ReasoningKind,
    ReasoningState,
    ToolCall,
    UserMessage,
)

NATIVE, STRICT, GATEWAY = EndpointKind.NATIVE_CLAUDE, EndpointKind.STRICT_DEEPSEEK, EndpointKind.UNKNOWN_GATEWAY
CALLS = (ToolCall("c", "echo", "{}"),)
UNSIGNED = (Reasoning(ReasoningKind.THINKING, "hm"),)
SIGNED = (Reasoning(ReasoningKind.THINKING, "hm", "sig"),)
COMPLETE = ReasoningState.COMPLETE


def endpoint(kind: EndpointKind, wire: Wire = Wire.MESSAGES, thinking: Thinking = Thinking.ON) -> Endpoint:
    return Endpoint(wire, kind, "http://x", "m", thinking)


def decision(one: Endpoint, message: AssistantMessage, *, is_whole: bool = True) -> Decision:
    return accept(one, message, is_whole=is_whole).decision


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        (NATIVE, AssistantMessage("a", UNSIGNED, COMPLETE), Decision.COMPATIBLE),
        (NATIVE, AssistantMessage("a", UNSIGNED, COMPLETE, CALLS), Decision.RECOVER),
        (NATIVE, AssistantMessage("a", (), COMPLETE, CALLS), Decision.RECOVER),
        (NATIVE, AssistantMessage("a", SIGNED, COMPLETE, CALLS), Decision.DIRECT),
        (NATIVE, AssistantMessage("a"), Decision.DIRECT),
        (GATEWAY, AssistantMessage("a", UNSIGNED, COMPLETE, CALLS), Decision.DIRECT),
        (GATEWAY, AssistantMessage("a", (), COMPLETE, CALLS), Decision.DIRECT),
        (STRICT, AssistantMessage("a", UNSIGNED, COMPLETE, CALLS), Decision.DIRECT),
        (STRICT, AssistantMessage("a", (), COMPLETE, CALLS), Decision.RECOVER),
        (STRICT, AssistantMessage("a"), Decision.DIRECT),
        (STRICT, AssistantMessage("a", opaque=(Opaque("search", "{}"),)), Decision.RECOVER),
        (NATIVE, AssistantMessage("a", UNSIGNED, ReasoningState.INCOMPLETE), Decision.REJECT),
        (GATEWAY, AssistantMessage("a", UNSIGNED, ReasoningState.INCOMPLETE), Decision.REJECT),
        (NATIVE, AssistantMessage("a", UNSIGNED, ReasoningState.TRUNCATED), Decision.REJECT),
        (GATEWAY, AssistantMessage("a", UNSIGNED, ReasoningState.TRUNCATED), Decision.REJECT),
        (GATEWAY, AssistantMessage("a", (replace(UNSIGNED[0], is_complete=False),), COMPLETE), Decision.REJECT),
    ],
)
def test_messages(kind: EndpointKind, message: AssistantMessage, expected: Decision) -> None:
    assert decision(endpoint(kind), message) is expected


def test_an_unfinished_native_answer_is_rejected() -> None:
    assert accept(endpoint(NATIVE), AssistantMessage("a", SIGNED, COMPLETE), is_whole=False) == Acceptance(
        Decision.REJECT, Issue.UNFINISHED
    )


@pytest.mark.parametrize("wire", [Wire.CHAT, Wire.RESPONSES])
def test_deepseek_takes_an_empty_substitute_outside_messages(wire: Wire) -> None:
    assert decision(endpoint(STRICT, wire), AssistantMessage("a", tool_calls=CALLS)) is Decision.COMPATIBLE


def test_blank_chat_reasoning_is_not_replayable() -> None:
    blank = AssistantMessage("a", (Reasoning(ReasoningKind.TEXT, "  "),), COMPLETE, CALLS)
    assert decision(endpoint(STRICT, Wire.CHAT), blank) is Decision.COMPATIBLE


@pytest.mark.parametrize("kind", [NATIVE, STRICT, GATEWAY])
def test_thinking_switched_off_requires_nothing(kind: EndpointKind) -> None:
    off = endpoint(kind, thinking=Thinking.OFF)
    assert decision(off, AssistantMessage("a", tool_calls=CALLS)) is Decision.DIRECT


@pytest.mark.parametrize("kind", [STRICT, EndpointKind.OFFICIAL, EndpointKind.SELF_HOSTED])
def test_an_incomplete_response_with_a_call_is_rejected_and_its_text_alone_is_not(kind: EndpointKind) -> None:
    one = endpoint(kind, Wire.RESPONSES)
    state = ReasoningState.INCOMPLETE
    with_call = AssistantMessage("a", (), state, CALLS, finish=Finish.LENGTH)
    assert accept(one, with_call, is_whole=False) == Acceptance(Decision.REJECT, Issue.UNFINISHED)
    assert accept(one, AssistantMessage("a", (), state, finish=Finish.LENGTH), is_whole=False).commits


def test_conversion_joins_thinking_and_answer_by_blank_lines_and_is_stable() -> None:
    two = (Reasoning(ReasoningKind.THINKING, "one"), Reasoning(ReasoningKind.THINKING, "two"))
    healthy = AssistantMessage("kept", SIGNED, COMPLETE)
    view = (UserMessage("u"), AssistantMessage("answer", two, COMPLETE), healthy)
    once = with_unsigned_as_text(view)
    converted = once[1]
    assert isinstance(converted, AssistantMessage)
    assert converted.text == "one\n\ntwo\n\nanswer"
    assert converted.reasoning == ()
    assert once[0] is view[0]
    assert once[2] is healthy
    assert with_unsigned_as_text(once) is once


@pytest.mark.parametrize(
    "message",
    [
        AssistantMessage("a", SIGNED, COMPLETE),
        AssistantMessage("a", (*UNSIGNED, *SIGNED), COMPLETE),
        AssistantMessage("a", (Reasoning(ReasoningKind.REDACTED, data="x"),), COMPLETE),
        AssistantMessage("a", UNSIGNED, COMPLETE, CALLS),
        AssistantMessage("a", UNSIGNED, COMPLETE, opaque=(Opaque("s", "{}"),)),
        AssistantMessage("a"),
    ],
)
def test_what_carries_proof_or_activity_is_never_converted(message: AssistantMessage) -> None:
    assert not converts_to_text(message)
    view = (message,)
    assert with_unsigned_as_text(view) is view
