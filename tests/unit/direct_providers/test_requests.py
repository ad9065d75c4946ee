"""Requests: the follow-up carries what was received, nothing invented, and the same input gives the same bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from direct_agent.core.endpoint import Endpoint, EndpointKind, Thinking, Wire, kind_of, request_url
from direct_agent.core.projection import base_view
from direct_agent.core.request_settings import RequestSettings
from direct_agent.providers.request import frozen_request
from direct_agent.transcript import (
    AssistantMessage,
    Message,
    Reasoning,
    ReasoningKind,
    ReasoningState,
    RunState,
    ToolCall,
    ToolResult,
    UserMessage,
)
from standfast_lab.recovery.turn_runner import EchoTool
from tests.unit.direct_providers.recorded import STREAMS, reader

SETTINGS = RequestSettings("Be terse.", (EchoTool(),))


def endpoint(wire: Wire, kind: EndpointKind = EndpointKind.STRICT_DEEPSEEK, **fields: Any) -> Endpoint:
    return Endpoint(wire, kind, "http://x", "m", **fields)


def body(one: Endpoint, *view: Message, settings: RequestSettings = SETTINGS) -> dict[str, Any]:
    value = json.loads(frozen_request(one, view, settings).body)
    assert isinstance(value, dict)
    return value


def answer(wire: Wire) -> AssistantMessage:
    one = reader(wire)
    one.feed(STREAMS[f"{wire.value} tool"][1])
    return one.finish().message


def after_tool(wire: Wire) -> tuple[Message, ...]:
    message = answer(wire)
    call = message.tool_calls[0]
    return UserMessage("go"), message, ToolResult(call.call_id, call.name, "echoed: hi", RunState.COMPLETED)


def test_chat_follow_up() -> None:
    *_, assistant, result = body(endpoint(Wire.CHAT), *after_tool(Wire.CHAT))["messages"]
    call = {"id": "call_1", "type": "function", "function": {"name": "echo", "arguments": '{"text":"hi"}'}}
    assert assistant == {
        "role": "assistant",
        "content": None,
        "reasoning_content": "I should list the files — alle Übersichten.",
        "tool_calls": [call],
    }
    assert list(assistant) == ["role", "content", "reasoning_content", "tool_calls"]
    assert result == {"role": "tool", "content": "echoed: hi", "tool_call_id": "call_1", "name": "echo"}


def test_responses_follow_up_sends_the_item_unchanged() -> None:
    _, item, call, output = body(endpoint(Wire.RESPONSES), *after_tool(Wire.RESPONSES))["input"]
    assert item["content"] == [{"type": "reasoning_text", "text": "need a listing ü"}]
    assert item["summary"] == []
    assert call == {"type": "function_call", "call_id": "call_1", "name": "echo", "arguments": '{"text":"hi"}'}
    assert output == {"type": "function_call_output", "call_id": "call_1", "output": "echoed: hi"}


def test_messages_follow_up_sends_the_signature_that_was_received() -> None:
    _, assistant, user = body(endpoint(Wire.MESSAGES), *after_tool(Wire.MESSAGES))["messages"]
    assert assistant["content"] == [
        {"type": "thinking", "thinking": "call echo safely ü", "signature": "EqQB"},
        {"type": "tool_use", "id": "toolu_1", "name": "echo", "input": {"text": "hi"}},
    ]
    assert user["content"] == [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "echoed: hi"}]


def test_messages_never_sends_an_empty_signature() -> None:
    thinking = Reasoning(ReasoningKind.THINKING, "hm")
    view = (UserMessage("a"), AssistantMessage("b", (thinking,)), UserMessage("c"))
    block = body(endpoint(Wire.MESSAGES, EndpointKind.UNKNOWN_GATEWAY), *view)["messages"][1]["content"][0]
    assert block == {"type": "thinking", "thinking": "hm"}


BARE = (UserMessage("a"), AssistantMessage("", tool_calls=(ToolCall("c", "echo", "{}"),)), ToolResult("c", "echo", "x"))


def test_only_deepseek_chat_is_sent_the_empty_field() -> None:
    assert body(endpoint(Wire.CHAT), *BARE)["messages"][2]["reasoning_content"] == ""
    for kind in (EndpointKind.OFFICIAL, EndpointKind.SELF_HOSTED):
        assert "reasoning_content" not in body(endpoint(Wire.CHAT, kind), *BARE)["messages"][2]
    off = endpoint(Wire.CHAT, thinking=Thinking.OFF)
    assert "reasoning_content" not in body(off, *BARE)["messages"][2]


def test_no_reasoning_item_is_invented_and_an_empty_one_is_left_out() -> None:
    assert [entry.get("type") for entry in body(endpoint(Wire.RESPONSES), *BARE)["input"]] == [
        None,
        "function_call",
        "function_call_output",
    ]
    empty = Reasoning(ReasoningKind.ITEM, raw_json='{"type":"reasoning","content":[],"summary":[]}')
    message = replace(BARE[1], reasoning=(empty,)) if isinstance(BARE[1], AssistantMessage) else BARE[1]
    entries = body(endpoint(Wire.RESPONSES), BARE[0], message, BARE[2])["input"]
    assert "reasoning" not in [entry.get("type") for entry in entries]


def test_two_merged_assistant_messages_have_their_thinking_in_front() -> None:
    one = AssistantMessage("a", (Reasoning(ReasoningKind.THINKING, "t1"),))
    two = AssistantMessage("b", (Reasoning(ReasoningKind.THINKING, "t2"),))
    content = body(endpoint(Wire.MESSAGES), UserMessage("x"), one, two)["messages"][1]["content"]
    assert [block["type"] for block in content] == ["thinking", "thinking", "text", "text"]


@pytest.mark.parametrize("wire", Wire)
def test_the_same_history_gives_the_same_bytes_and_no_credential(wire: Wire) -> None:
    one, two = (frozen_request(endpoint(wire), after_tool(wire), SETTINGS) for _ in range(2))
    assert one == two
    assert not {name for name, _ in one.headers} & {"authorization", "x-api-key"}


@pytest.mark.parametrize("wire", Wire)
def test_intents_never_reach_a_provider(wire: Wire) -> None:
    call = ToolCall("c", "write", "{}", ('{"version":99,"future":"secret-future"}',))
    stored = (
        UserMessage("a"),
        AssistantMessage("", tool_calls=(call,)),
        ToolResult("c", "write", "ok", RunState.COMPLETED),
    )
    sent = frozen_request(endpoint(wire), base_view(stored), SETTINGS).body
    assert b"secret-future" not in sent
    assert call.intents == ('{"version":99,"future":"secret-future"}',)


@pytest.mark.parametrize(
    ("wire", "kind", "fields", "expected"),
    [
        (Wire.CHAT, "deepseek", {"thinking": Thinking.ON, "effort": "max"}, {"thinking": {"type": "enabled"}, "reasoning_effort": "max"}),
        (Wire.CHAT, "deepseek", {"thinking": Thinking.OFF}, {"thinking": {"type": "disabled"}}),
        (Wire.CHAT, "deepseek", {"effort": "none"}, {"thinking": {"type": "disabled"}}),
        (Wire.MESSAGES, "deepseek", {"effort": "none"}, {"thinking": {"type": "disabled"}}),
        (Wire.CHAT, "openai", {"effort": "low"}, {"reasoning_effort": "low"}),
        (Wire.CHAT, "openai", {"thinking": Thinking.OFF}, {"reasoning_effort": "none"}),
        (Wire.CHAT, "none", {"thinking": Thinking.OFF}, {"chat_template_kwargs": {"enable_thinking": False}}),
        (Wire.CHAT, "none", {}, {}),
        (Wire.RESPONSES, "deepseek", {"effort": "low"}, {"reasoning": {"effort": "low"}}),
        (Wire.RESPONSES, "deepseek", {"thinking": Thinking.OFF}, {"reasoning": {"effort": "none"}}),
        (Wire.RESPONSES, "openai", {}, {"include": ["reasoning.encrypted_content"]}),
        (
            Wire.MESSAGES, "anthropic", {"thinking": Thinking.ON, "effort": "high"},
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},
        ),
        (Wire.MESSAGES, "deepseek", {"thinking": Thinking.ON}, {"thinking": {"type": "enabled"}}),
        (Wire.MESSAGES, "deepseek", {"thinking": Thinking.ADAPTIVE}, {"thinking": {"type": "adaptive"}}),
        (Wire.MESSAGES, "none", {"thinking": Thinking.OFF}, {"thinking": {"type": "disabled"}}),
        (Wire.MESSAGES, "none", {}, {}),
    ],
)  # fmt: skip
def test_thinking_and_effort(wire: Wire, kind: str, fields: dict[str, Any], expected: dict[str, Any]) -> None:
    sent = body(endpoint(wire, kind_of(wire, "http://x", kind), **fields), UserMessage("a"))
    names = ("thinking", "reasoning_effort", "reasoning", "include", "output_config", "chat_template_kwargs")
    assert {name: sent[name] for name in names if name in sent} == expected


@pytest.mark.parametrize(
    ("wire", "kind", "name"),
    [
        (Wire.CHAT, EndpointKind.OFFICIAL, "max_completion_tokens"),
        (Wire.CHAT, EndpointKind.SELF_HOSTED, "max_tokens"),
        (Wire.RESPONSES, EndpointKind.OFFICIAL, "max_output_tokens"),
        (Wire.MESSAGES, EndpointKind.NATIVE_CLAUDE, "max_tokens"),
    ],
)
def test_the_output_limit_has_the_protocols_own_name(wire: Wire, kind: EndpointKind, name: str) -> None:
    assert body(endpoint(wire, kind, max_tokens=77), UserMessage("a"))[name] == 77


def test_text_that_utf8_cannot_carry_is_sent_all_the_same() -> None:
    view = (UserMessage("a\ud83d\x00b"),)
    for wire in Wire:
        assert "a\N{REPLACEMENT CHARACTER}\x00b" in json.dumps(body(endpoint(wire), *view), ensure_ascii=False).replace(
            "\\u0000", "\x00"
        )


@pytest.mark.parametrize(
    ("wire", "base", "kind"),
    [
        (Wire.MESSAGES, None, EndpointKind.NATIVE_CLAUDE),
        (Wire.MESSAGES, "https://api.anthropic.com", EndpointKind.NATIVE_CLAUDE),
        (Wire.MESSAGES, "https://api.deepseek.com/anthropic", EndpointKind.STRICT_DEEPSEEK),
        (Wire.MESSAGES, "https://deepseek.example.com", EndpointKind.UNKNOWN_GATEWAY),
        (Wire.MESSAGES, "https://api.anthropic.com.example.com", EndpointKind.UNKNOWN_GATEWAY),
        (Wire.MESSAGES, "https://api.anthropic.com@example.com/", EndpointKind.UNKNOWN_GATEWAY),
        (Wire.MESSAGES, "https://example.com/api.anthropic.com", EndpointKind.UNKNOWN_GATEWAY),
        (Wire.MESSAGES, "HTTPS://API.Anthropic.com:443/v1", EndpointKind.NATIVE_CLAUDE),
        (Wire.MESSAGES, "https://[::1]:8080", EndpointKind.UNKNOWN_GATEWAY),
        (Wire.CHAT, "https://api.openai.com/v1", EndpointKind.OFFICIAL),
        (Wire.CHAT, "https://api.deepseek.com", EndpointKind.STRICT_DEEPSEEK),
        (Wire.RESPONSES, "http://127.0.0.1:8000/v1", EndpointKind.SELF_HOSTED),
    ],
)
def test_kinds_by_host(wire: Wire, base: str | None, kind: EndpointKind) -> None:
    assert kind_of(wire, base) is kind


def test_the_configuration_wins_and_a_word_that_does_not_fit_is_refused() -> None:
    assert kind_of(Wire.MESSAGES, "http://gateway", "deepseek") is EndpointKind.STRICT_DEEPSEEK
    assert kind_of(Wire.MESSAGES, "https://api.deepseek.com", "none") is EndpointKind.UNKNOWN_GATEWAY
    with pytest.raises(ValueError, match="does not fit"):
        kind_of(Wire.MESSAGES, None, "openai")


@pytest.mark.parametrize(
    ("wire", "base", "url"),
    [
        (Wire.MESSAGES, "http://h", "http://h/v1/messages"),
        (Wire.MESSAGES, "http://h/v1/", "http://h/v1/messages"),
        (Wire.MESSAGES, "http://h/v1/messages", "http://h/v1/messages"),
        (Wire.CHAT, "http://h/v1", "http://h/v1/chat/completions"),
        (Wire.RESPONSES, "http://h/v1", "http://h/v1/responses"),
    ],
)
def test_addresses(wire: Wire, base: str, url: str) -> None:
    assert request_url(wire, base) == url


def test_a_message_of_empty_text_is_left_out_and_neighbours_alternate() -> None:
    view = base_view(
        (UserMessage("one"), AssistantMessage(""), UserMessage("two"), AssistantMessage("  "), UserMessage("three"))
    )
    messages = body(endpoint(Wire.MESSAGES), *view)["messages"]
    assert [message["role"] for message in messages] == ["user"]
    assert [block["text"] for block in messages[0]["content"]] == ["one", "two", "three"]


def test_legacy_thinking_text_is_one_unsigned_block() -> None:
    legacy = AssistantMessage("a", (Reasoning(ReasoningKind.TEXT, "old"),), ReasoningState.UNSET)
    sent = body(endpoint(Wire.MESSAGES), UserMessage("x"), legacy)["messages"][1]["content"]
    assert sent[0] == {"type": "thinking", "thinking": "old"}
