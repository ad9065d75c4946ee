"""The failure cases about provider streams and history replay, from `tests/cases`, against the direct agent."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from direct_agent.conductors.round import RoundOutcome
from direct_agent.core.endpoint import Endpoint, EndpointKind, Thinking, Wire
from direct_agent.transcript import (
    INTERRUPTED_OUTPUT,
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
from standfast_lab.recovery import answers
from standfast_lab.recovery.scripted_server import Framing, ScriptedServer, Step
from standfast_lab.recovery.turn_runner import Conversation

INPUTS = Path(__file__).parents[2] / "cases" / "inputs"


def case(name: str) -> Any:
    return json.loads((INPUTS / name).read_text())


def conversation(wire: Wire, kind: EndpointKind = EndpointKind.STRICT_DEEPSEEK) -> Conversation:
    return Conversation(Endpoint(wire, kind, "http://127.0.0.1", "m-think", Thinking.ON, name="lab"))


async def ask(one: Conversation, *steps: Step) -> tuple[RoundOutcome, ScriptedServer]:
    async with ScriptedServer(steps, one.clock.monotonic) as server:
        one.endpoint = replace(one.endpoint, base_url=server.base_url)
        outcome = await (one.turn("go") if not one.transcript else one.go_on())
    return outcome, server


def closed(body: str) -> Step:
    """A body whose end is the end of the connection."""
    return Step(body.encode(), framing=Framing.CLOSE)


def kind_of(outcome: RoundOutcome) -> str | None:
    return outcome.fault.fault_class.value if outcome.fault is not None else None


async def test_overload_inside_a_200() -> None:
    bodies = case("prov-overload-inside-200.json")["bodies"]
    one = conversation(Wire.MESSAGES)
    outcome, server = await ask(one, *[closed(body) for body in bodies])
    assert outcome.message is not None
    assert outcome.message.text == "hello"
    assert len(server.heard) == 3
    assert one.clock.sleeps == [2.0, 4.0]


async def test_overload_inside_every_200_enters_the_documented_waiting() -> None:
    one = conversation(Wire.MESSAGES)
    one.events.heard = lambda event: one.cancel.set() if event.get("waiting") else None
    outcome, server = await ask(one, closed(case("prov-overload-inside-200.json")["bodies"][0]))
    assert (outcome.end.value, len(server.heard), one.clock.sleeps) == ("cancelled", 4, [2.0, 4.0, 8.0])


@pytest.mark.parametrize(
    ("name", "end", "word", "requests"),
    [
        ("body_a", "committed", None, 2),
        ("body_b", "failed", "malformed_event", 1),
        ("body_c", "failed", "malformed_event", 1),
    ],
)
async def test_cut_inside_json_against_bad_json(name: str, end: str, word: str | None, requests: int) -> None:
    bodies = case("prov-cut-inside-json-vs-bad-json.json")
    one = conversation(Wire.CHAT)
    outcome, server = await ask(one, closed(bodies[name]), closed(bodies["good"]))
    assert (outcome.end.value, kind_of(outcome), len(server.heard), one.executions) == (end, word, requests, 0)
    if outcome.message is not None:
        assert outcome.message.text == "hi"


async def test_cut_tool_arguments_are_never_run_and_never_forgotten() -> None:
    body = (INPUTS / "prov-tool-arguments-cut.sse").read_text()
    one = conversation(Wire.CHAT)
    outcome, server = await ask(one, closed(body))
    assert (outcome.end.value, kind_of(outcome)) == ("failed", "truncated_tool_call")
    assert (len(server.heard), one.executions) == (4, 0)
    assert one.history() == (UserMessage("go"),)


async def test_cut_tool_arguments_under_a_length_limit_are_answered_and_not_asked_again() -> None:
    body = (
        (INPUTS / "prov-tool-arguments-cut.sse")
        .read_text()
        .replace('"finish_reason":"tool_calls"', '"finish_reason":"length"')
    )
    one = conversation(Wire.CHAT)
    _, server = await ask(one, closed(body), Step(answers.text(Wire.CHAT)))
    assert (len(server.heard), one.executions) == (2, 0)
    assert server.heard[0].body != server.heard[1].body
    result = one.transcript[2]
    assert isinstance(result, ToolResult)
    assert result.state is RunState.NOT_STARTED


@pytest.mark.parametrize("in_stream", [False, True])
async def test_quota_gone(in_stream: bool) -> None:
    given = case("prov-quota-gone-429.json")
    body = json.dumps(given["body"]).encode()
    step = Step(b"data: " + body + b"\n\n") if in_stream else Step(body, given["status"], framing=Framing.LENGTH)
    one = conversation(Wire.CHAT)
    outcome, server = await ask(one, step)
    assert (outcome.end.value, kind_of(outcome), len(server.heard), one.clock.sleeps) == ("failed", "quota", 1, [])


@pytest.mark.parametrize("kind", [EndpointKind.STRICT_DEEPSEEK, EndpointKind.SELF_HOSTED])
async def test_chat_reasoning_missing(kind: EndpointKind) -> None:
    given = case("replay-chat-reasoning-missing.json")
    one = conversation(Wire.CHAT, kind)
    one.transcript = chat_history(given["request"]["messages"])
    stored = one.history()
    refusal = Step(json.dumps(given["reply_1"]["body"]).encode(), given["reply_1"]["status"], framing=Framing.LENGTH)
    outcome, server = await ask(one, refusal, Step(answers.text(Wire.CHAT, given["reply_2"]["text"])))
    assert outcome.message is not None
    assert (outcome.message.text, len(server.heard), one.executions) == ("MARK-7", 2, 0)
    repaired = server.heard[1].body.decode()
    assert "MARK-7" in repaired
    assert "untrusted data" in repaired
    assert "reasoning_content" not in repaired
    assert one.history()[: len(stored)] == stored


async def test_a_chat_history_that_has_its_reasoning_goes_as_stored() -> None:
    messages = case("replay-chat-reasoning-missing.json")["request"]["messages"]
    messages[1]["reasoning_content"] = "kept"
    one = conversation(Wire.CHAT)
    one.transcript = chat_history(messages)
    _, server = await ask(one, Step(answers.text(Wire.CHAT)))
    sent = json.loads(server.heard[0].body)["messages"][1:]
    assert sent[0] == messages[0]
    assert sent[1] == messages[1]
    assert sent[2]["content"] == "MARK-7"


async def test_thinking_without_signature() -> None:
    one = conversation(Wire.MESSAGES, EndpointKind.NATIVE_CLAUDE)
    given = case("replay-thinking-without-signature.json")["messages"]
    one.transcript = messages_history(given)
    stored = one.history()
    _, server = await ask(one, Step(answers.text(Wire.MESSAGES)))
    sent = json.loads(server.heard[0].body)["messages"]
    assert sent[1] == given[1]
    assert sent[3]["content"] == [{"type": "text", "text": "t2\n\nsecond"}]
    assert [message["role"] for message in sent] == ["user", "assistant", "user", "assistant", "user"]
    assert "completed-tool-results" in json.dumps(sent[4])
    assert "t3" not in json.dumps(sent)
    assert '"signature": ""' not in json.dumps(sent)
    assert one.history()[: len(stored)] == stored
    # Once more: the same view again.
    one.transcript = [*stored, AssistantMessage("done"), UserMessage("next")]
    _, again = await ask(one, Step(answers.text(Wire.MESSAGES)))
    assert json.loads(again.heard[0].body)["messages"][:5] == sent


async def test_tool_call_without_result() -> None:
    one = conversation(Wire.MESSAGES, EndpointKind.UNKNOWN_GATEWAY)
    one.transcript = messages_history(case("hist-tool-call-without-result.json")["messages"])
    stored = one.history()
    _, server = await ask(one, Step(answers.text(Wire.MESSAGES)))
    results = json.loads(server.heard[0].body)["messages"][2]["content"]
    assert results[0] == {"type": "tool_result", "tool_use_id": "toolu_r", "content": "n"}
    assert (results[1]["tool_use_id"], results[1]["content"]) == ("toolu_w", INTERRUPTED_OUTPUT)
    assert one.history()[: len(stored)] == stored


async def test_empty_assistant_turn() -> None:
    one = conversation(Wire.MESSAGES, EndpointKind.UNKNOWN_GATEWAY)
    one.transcript = messages_history(case("hist-empty-assistant-turn.json")["messages"])
    stored = one.history()
    _, server = await ask(one, Step(answers.text(Wire.MESSAGES)))
    sent = json.loads(server.heard[0].body)["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "user"]
    assert [block["text"] for block in sent[0]["content"]] == ["one", "two"]
    assert sent[1]["content"] == [{"type": "tool_use", "id": "toolu_1", "name": "read_mark", "input": {}}]
    assert [block["type"] for block in sent[2]["content"]] == ["tool_result", "text"]
    assert sent[2]["content"][1]["text"] == "three"
    assert one.history()[: len(stored)] == stored


async def test_an_error_with_empty_content_is_a_failed_round_and_no_empty_success() -> None:
    """The turn-end case of another agent, asked of this one."""
    one = conversation(Wire.CHAT)
    outcome, _ = await ask(one, answers.refusal(404, {"message": "model not available to this account"}))
    assert (outcome.end.value, outcome.message, one.history()) == ("failed", None, (UserMessage("go"),))


def chat_history(messages: list[dict[str, Any]]) -> list[Message]:
    history: list[Message] = []
    names: dict[str, str] = {}
    for message in messages:
        if message["role"] == "user":
            history.append(UserMessage(message["content"]))
        elif message["role"] == "tool":
            call_id = message["tool_call_id"]
            history.append(ToolResult(call_id, names[call_id], message["content"], RunState.COMPLETED))
        else:
            calls = [
                ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
                for call in message["tool_calls"]
            ]
            names |= {call.call_id: call.name for call in calls}
            thought = message.get("reasoning_content")
            reasoning = (Reasoning(ReasoningKind.TEXT, thought),) if thought else ()
            state = ReasoningState.COMPLETE if thought else ReasoningState.EMPTY
            history.append(AssistantMessage(message["content"] or "", reasoning, state, tuple(calls)))
    return history


def messages_history(messages: list[dict[str, Any]]) -> list[Message]:
    history: list[Message] = []
    names: dict[str, str] = {}
    for message in messages:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if message["role"] == "user":
            for block in blocks:
                if block["type"] == "text":
                    history.append(UserMessage(block["text"]))
                else:
                    call_id = block["tool_use_id"]
                    history.append(ToolResult(call_id, names[call_id], block["content"], RunState.COMPLETED))
            continue
        thoughts = tuple(
            Reasoning(ReasoningKind.THINKING, block["thinking"], block.get("signature"))
            for block in blocks
            if block["type"] == "thinking"
        )
        calls = tuple(
            ToolCall(block["id"], block["name"], json.dumps(block["input"]))
            for block in blocks
            if block["type"] == "tool_use"
        )
        names |= {call.call_id: call.name for call in calls}
        text = "".join(block["text"] for block in blocks if block["type"] == "text")
        state = ReasoningState.COMPLETE if thoughts else ReasoningState.EMPTY
        history.append(AssistantMessage(text, thoughts, state, calls))
    return history
