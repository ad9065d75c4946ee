"""Answers are put together as each protocol says, and only a complete one becomes a candidate."""

from __future__ import annotations

import json
from typing import Any

import pytest

from direct_agent.core.endpoint import Wire
from direct_agent.providers.stream_reader import REASONING_BYTES_MAX, DeltaKind, StreamFaultError
from direct_agent.recovery.fault import FaultClass, Reason
from direct_agent.transcript import Candidate, Finish, ReasoningKind, ReasoningState, ToolCall
from tests.unit.direct_providers.recorded import STREAMS, reader


def sse(*events: dict[str, Any] | str) -> bytes:
    return b"".join(f"data: {each if isinstance(each, str) else json.dumps(each)}\n\n".encode() for each in events)


def read(wire: Wire, body: bytes, broken: Reason | None = None) -> Candidate:
    one = reader(wire)
    one.feed(body)
    return one.finish(broken)


def fault(wire: Wire, body: bytes, broken: Reason | None = None) -> FaultClass:
    with pytest.raises(StreamFaultError) as raised:
        read(wire, body, broken)
    return raised.value.fault.fault_class


def chat(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


CALL = ToolCall("call_1", "echo", '{"text":"hi"}')


def test_chat_tool_round() -> None:
    candidate = read(*STREAMS["chat tool"])
    message = candidate.message
    assert message.tool_calls == (CALL,)
    assert [each.text for each in message.reasoning] == ["I should list the files — alle Übersichten."]
    assert message.reasoning_state is ReasoningState.COMPLETE
    assert message.finish is Finish.TOOL_CALLS
    usage = candidate.usage
    assert (usage.prompt, usage.completion, usage.total, usage.cache_hit, usage.cache_miss) == (10, 2, 12, 10, 0)
    assert not usage.is_unknown


def test_responses_tool_round_keeps_the_reasoning_item_raw() -> None:
    message = read(*STREAMS["responses tool"]).message
    assert message.tool_calls == (CALL,)
    (reasoning,) = message.reasoning
    assert reasoning.kind is ReasoningKind.ITEM
    assert reasoning.raw_json is not None
    item = json.loads(reasoning.raw_json)
    assert item == {
        "id": "rs_1",
        "type": "reasoning",
        "status": "completed",
        "content": [{"type": "reasoning_text", "text": "need a listing ü"}],
        "summary": [],
    }


def test_messages_tool_round_keeps_the_signature() -> None:
    candidate = read(*STREAMS["messages tool"])
    message = candidate.message
    assert message.tool_calls == (ToolCall("toolu_1", "echo", '{"text":"hi"}'),)
    (block,) = message.reasoning
    assert (block.kind, block.text, block.signature) == (ReasoningKind.THINKING, "call echo safely ü", "EqQB")
    assert (candidate.usage.prompt, candidate.usage.completion) == (10, 12)


def test_deltas_are_given_as_they_arrive() -> None:
    wire, body = STREAMS["chat tool"]
    deltas = reader(wire).feed(body)
    assert [delta.kind for delta in deltas] == [DeltaKind.REASONING, DeltaKind.REASONING, DeltaKind.TOOL]
    assert deltas[2].text == "echo"


def test_chat_calls_come_in_index_order_and_a_missing_id_is_named_by_its_index() -> None:
    second = {"index": 1, "function": {"name": "b", "arguments": "{}"}}
    first = {"index": 0, "id": "x", "function": {"name": "a", "arguments": "{}"}}
    calls = read(
        Wire.CHAT, sse(chat({"tool_calls": [second]}), chat({"tool_calls": [first]}), "[DONE]")
    ).message.tool_calls
    assert calls == (ToolCall("x", "a", "{}"), ToolCall("call_1", "b", "{}"))


def test_chat_takes_the_other_name_of_reasoning() -> None:
    message = read(Wire.CHAT, sse(chat({"reasoning": "hm"}), chat({"content": "a"}, "stop"))).message
    assert [each.text for each in message.reasoning] == ["hm"]


@pytest.mark.parametrize(
    ("word", "finish"),
    [
        ("stop", Finish.STOP),
        ("length", Finish.LENGTH),
        ("content_filter", Finish.CONTENT_FILTER),
        ("new", Finish.OTHER),
    ],
)
def test_chat_finish_reasons(word: str, finish: Finish) -> None:
    assert read(Wire.CHAT, sse(chat({"content": "a"}, word))).message.finish is finish


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 2}, (5, 2, 7, None, None)),
        ({"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}, (5, 2, 7, 4, 1)),
        (
            {"prompt_tokens": 5, "completion_tokens": 2, "prompt_cache_hit_tokens": 3, "prompt_cache_miss_tokens": 2},
            (5, 2, 7, 3, 2),
        ),
        ({"input_tokens": 5, "output_tokens": 2, "cache_read_input_tokens": 4}, (9, 2, 11, 4, 5)),
    ],
)
@pytest.mark.parametrize("is_apart", [True, False])
def test_chat_usage_shapes(usage: dict[str, Any], expected: tuple[int | None, ...], is_apart: bool) -> None:
    last = chat({"content": "a"}, "stop")
    events = [last, {"choices": [], "usage": usage}] if is_apart else [last | {"usage": usage}]
    found = read(Wire.CHAT, sse(*events, "[DONE]")).usage
    assert (found.prompt, found.completion, found.total, found.cache_hit, found.cache_miss) == expected
    assert not found.is_unknown


@pytest.mark.parametrize("wire", Wire)
def test_an_answer_without_usage_is_unknown_and_not_zero(wire: Wire) -> None:
    bodies = {
        Wire.CHAT: sse(chat({"content": "a"}, "stop")),
        Wire.RESPONSES: sse(
            {"type": "response.output_text.delta", "item_id": "m", "content_index": 0, "delta": "a"},
            {"type": "response.completed", "response": {}},
        ),
        Wire.MESSAGES: sse(
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "a"}},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        ),
    }
    usage = read(wire, bodies[wire]).usage
    assert usage.is_unknown
    assert (usage.prompt, usage.completion, usage.total) == (None, None, None)


def test_responses_done_text_counts_only_where_no_delta_was_seen() -> None:
    body = sse(
        {"type": "response.output_text.delta", "item_id": "a", "content_index": 0, "delta": "seen"},
        {"type": "response.output_text.done", "item_id": "a", "content_index": 0, "text": "seen, and more"},
        {"type": "response.output_text.done", "item_id": "b", "content_index": 0, "text": "!"},
        {
            "type": "response.completed",
            "response": {
                "output": [{"id": "a", "type": "message", "content": [{"type": "output_text", "text": "seen"}]}]
            },
        },
    )
    assert read(Wire.RESPONSES, body).message.text == "seen!"


def test_responses_finalises_a_call_once() -> None:
    item = {"id": "fc", "type": "function_call", "call_id": "c", "name": "echo"}
    body = sse(
        {"type": "response.output_item.added", "item": item},
        {"type": "response.function_call_arguments.delta", "item_id": "fc", "delta": '{"a":1'},
        {"type": "response.function_call_arguments.done", "item_id": "fc", "arguments": '{"a":1}'},
        {"type": "response.output_item.done", "item": item | {"arguments": '{"a":2}'}},
        {"type": "response.completed", "response": {}},
    )
    assert read(Wire.RESPONSES, body).message.tool_calls == (ToolCall("c", "echo", '{"a":1}'),)


def test_responses_reasoning_that_was_never_done_is_incomplete() -> None:
    body = sse(
        {"type": "response.output_item.added", "item": {"id": "rs", "type": "reasoning"}},
        {"type": "response.output_text.delta", "item_id": "m", "content_index": 0, "delta": "a"},
        {"type": "response.completed", "response": {}},
    )
    assert read(Wire.RESPONSES, body).message.reasoning_state is ReasoningState.INCOMPLETE


@pytest.mark.parametrize(
    ("why", "finish"),
    [("max_output_tokens", Finish.LENGTH), ("content_filter", Finish.CONTENT_FILTER), ("other", Finish.INCOMPLETE)],
)
def test_responses_incomplete_says_why_and_is_not_whole(why: str, finish: Finish) -> None:
    body = sse(
        {"type": "response.output_text.delta", "item_id": "m", "content_index": 0, "delta": "a"},
        {"type": "response.incomplete", "response": {"incomplete_details": {"reason": why}}},
    )
    candidate = read(Wire.RESPONSES, body)
    assert candidate.message.finish is finish
    assert not candidate.is_whole


def test_responses_needs_its_end_even_with_a_complete_call() -> None:
    wire, body = STREAMS["responses tool"]
    assert fault(wire, body[: body.index(b'data: {"type":"response.completed"')]) is FaultClass.STREAM


def test_messages_keeps_redacted_blocks_and_opaque_ones() -> None:
    body = sse(
        {"type": "content_block_start", "index": 0, "content_block": {"type": "redacted_thinking", "data": "zz"}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "content_block_start",
            "index": 1,
            "content_block": {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
        },
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
    )
    message = read(Wire.MESSAGES, body).message
    assert [(each.kind, each.data) for each in message.reasoning] == [(ReasoningKind.REDACTED, "zz")]
    assert json.loads(message.opaque[0].raw_json) == {
        "type": "web_search_tool_result",
        "tool_use_id": "s",
        "content": [],
    }


def test_messages_thinking_that_never_stopped_is_incomplete() -> None:
    wire, body = STREAMS["messages tool"]
    without = body.replace(b'data: {"type":"content_block_stop","index":0}\n\n', b"")
    assert read(wire, without).message.reasoning_state is ReasoningState.INCOMPLETE


def test_messages_usage_is_the_maximum_and_not_the_sum() -> None:
    body = sse(
        {"type": "message_start", "message": {"usage": {"input_tokens": 10, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "a"}},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"input_tokens": 10, "output_tokens": 7},
        },
        {"type": "message_stop"},
    )
    usage = read(Wire.MESSAGES, body).usage
    assert (usage.prompt, usage.completion, usage.total) == (10, 7, 17)


def test_messages_cut_before_its_end_knows_the_input_and_not_the_output() -> None:
    wire, body = STREAMS["messages text"]
    one = reader(wire)
    one.feed(body[: body.index(b'data: {"type":"message_delta"')])
    usage = one.usage()
    assert (usage.prompt, usage.completion, usage.is_unknown) == (12, None, True)
    assert one.estimate_tokens() == 2


def test_a_fault_after_the_end_cannot_undo_the_answer() -> None:
    for wire, body in STREAMS.values():
        assert read(wire, body + b"data: {rubbish\n", Reason.CONNECTION_RESET).message


@pytest.mark.parametrize("wire", Wire)
def test_no_data_at_all_is_an_interruption(wire: Wire) -> None:
    assert fault(wire, b"<html></html>\n") is FaultClass.STREAM


def test_cut_arguments_of_a_finished_answer_are_no_candidate() -> None:
    call = {"index": 0, "id": "c", "function": {"name": "write", "arguments": '{"path":"a'}}
    assert (
        fault(Wire.CHAT, sse(chat({"tool_calls": [call]}), chat({}, "tool_calls"), "[DONE]"))
        is FaultClass.TRUNCATED_TOOL_CALL
    )


def test_cut_arguments_under_a_length_limit_are_kept_for_the_not_executed_result() -> None:
    call = {"index": 0, "id": "c", "function": {"name": "write", "arguments": '{"path":"a'}}
    message = read(Wire.CHAT, sse(chat({"tool_calls": [call]}), chat({}, "length"), "[DONE]")).message
    assert message.finish is Finish.LENGTH
    assert message.tool_calls[0].arguments == '{"path":"a'


@pytest.mark.parametrize("wire", [Wire.CHAT, Wire.MESSAGES])
def test_an_over_long_line_is_terminal(wire: Wire) -> None:
    assert fault(wire, b"data: " + b"x" * (1024 * 1024 + 1)) is FaultClass.UNKNOWN


def test_an_over_long_line_of_responses_is_an_interruption() -> None:
    assert fault(Wire.RESPONSES, b"data: " + b"x" * (4 * 1024 * 1024 + 1)) is FaultClass.STREAM


def test_reasoning_over_our_own_limit_is_truncated() -> None:
    piece = "x" * (REASONING_BYTES_MAX // 8)
    body = sse(*[chat({"reasoning_content": piece})] * 9, chat({"content": "a"}, "stop"))
    assert read(Wire.CHAT, body).message.reasoning_state is ReasoningState.TRUNCATED


@pytest.mark.parametrize(
    "event", [{"choices": {}}, {"choices": [1]}, chat({"content": 1}), {"choices": [{"delta": {"tool_calls": {}}}]}]
)
def test_an_event_of_another_shape_is_malformed(event: dict[str, Any]) -> None:
    assert fault(Wire.CHAT, sse(event)) is FaultClass.MALFORMED_EVENT
