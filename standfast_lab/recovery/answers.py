"""What a provider says, in each protocol: text, tool rounds with and without reasoning, refusals. Bytes of SSE bodies."""

from __future__ import annotations

import json
from typing import Any

from direct_agent.core.endpoint import Wire
from standfast_lab.recovery.scripted_server import Break, Framing, Step

REPLAY_REFUSALS = {
    Wire.CHAT: "The `reasoning_content` in the thinking mode must be passed back to the API.",
    Wire.MESSAGES: "The `content[].thinking` in the thinking mode must be passed back to the API",
    Wire.RESPONSES: "The `reasoning_text` in the thinking mode must be passed back to the API.",
}
MALFORMED = b'data: {"delta":nu\n\n'


def sse(*events: dict[str, Any] | str) -> bytes:
    """One `data:` line an event, a blank line after each."""
    return b"".join(
        b"data: " + (each if isinstance(each, str) else json.dumps(each, ensure_ascii=False)).encode() + b"\n\n"
        for each in events
    )


def text(wire: Wire, words: str = "done") -> bytes:
    """A whole text answer, with usage."""
    match wire:
        case Wire.CHAT:
            return sse(
                {"id": "x", "choices": [{"index": 0, "delta": {"role": "assistant", "content": words}}]},
                {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
                {"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 1, "total_tokens": 13}},
                "[DONE]",
            )
        case Wire.RESPONSES:
            return sse(
                {"type": "response.output_text.delta", "item_id": "msg_1", "content_index": 0, "delta": words},
                {
                    "type": "response.completed",
                    "response": {"id": "resp_2", "usage": {"input_tokens": 12, "output_tokens": 1, "total_tokens": 13}},
                },
            )
        case Wire.MESSAGES:
            return sse(
                {"type": "message_start", "message": {"id": "msg_2", "usage": {"input_tokens": 12}}},
                {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
                {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": words}},
                {"type": "content_block_stop", "index": 0},
                {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
                {"type": "message_stop"},
            )


def tool(
    wire: Wire,
    call_id: str = "call_1",
    *,
    said: str = "hi",
    reasoning: str | None = "I should list the files.",
    signature: str | None = None,
    finish: str | None = None,
    closes_thinking: bool = True,
) -> bytes:
    """A whole answer that calls `echo` once. `finish`: another finish reason (chat, messages) or `incomplete`."""
    return b"".join(
        tool_pieces(
            wire,
            call_id,
            said=said,
            reasoning=reasoning,
            signature=signature,
            finish=finish,
            closes_thinking=closes_thinking,
        )
    )


def tool_pieces(
    wire: Wire,
    call_id: str = "call_1",
    *,
    said: str = "hi",
    reasoning: str | None = "I should list the files.",
    signature: str | None = None,
    finish: str | None = None,
    closes_thinking: bool = True,
) -> tuple[bytes, bytes]:
    """The same in two parts: up to the complete call, and the end."""
    arguments = json.dumps({"text": said}, separators=(",", ":"))
    half = len(arguments) // 2
    match wire:
        case Wire.CHAT:
            begin = [] if reasoning is None else [_chat({"content": None, "reasoning_content": reasoning})]
            function = {"name": "echo", "arguments": ""}
            call = {"index": 0, "id": call_id, "type": "function", "function": function}
            begin += [
                _chat({"tool_calls": [call]}),
                _chat({"tool_calls": [{"index": 0, "function": {"arguments": arguments[:half]}}]}),
                _chat({"tool_calls": [{"index": 0, "function": {"arguments": arguments[half:]}}]}),
            ]
            usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
            return sse(*begin), sse(
                {"choices": [{"index": 0, "delta": {}, "finish_reason": finish or "tool_calls"}]},
                {"choices": [], "usage": usage | {"prompt_cache_hit_tokens": 10, "prompt_cache_miss_tokens": 0}},
                "[DONE]",
            )
        case Wire.RESPONSES:
            return _responses_tool(call_id, arguments, reasoning, finish)
        case Wire.MESSAGES:
            return _messages_tool(call_id, arguments, reasoning, signature, finish, closes_thinking)


def _chat(delta: dict[str, Any]) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta}]}


def _responses_tool(call_id: str, arguments: str, reasoning: str | None, finish: str | None) -> tuple[bytes, bytes]:
    item = f"fc_{call_id}"
    thought = f"rs_{call_id}"
    begin: list[dict[str, Any]] = []
    if reasoning is not None:
        whole = {
            "id": thought,
            "type": "reasoning",
            "status": "completed",
            "content": [{"type": "reasoning_text", "text": reasoning}],
            "summary": [],
        }
        begin = [
            {"type": "response.output_item.added", "item": {"id": thought, "type": "reasoning"}},
            {"type": "response.reasoning_text.delta", "item_id": thought, "content_index": 0, "delta": reasoning},
            {"type": "response.output_item.done", "item": whole},
        ]
    call = {"id": item, "type": "function_call", "call_id": call_id, "name": "echo"}
    begin += [
        {"type": "response.output_item.added", "item": call},
        {"type": "response.function_call_arguments.delta", "item_id": item, "delta": arguments},
        {"type": "response.output_item.done", "item": call | {"arguments": arguments}},
    ]
    response: dict[str, Any] = {
        "id": "resp_1",
        "usage": {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12},
    }
    if finish is None:
        return sse(*begin), sse({"type": "response.completed", "response": response})
    details = {"incomplete_details": {"reason": finish}}
    return sse(*begin), sse({"type": "response.incomplete", "response": response | details})


def _messages_tool(
    call_id: str, arguments: str, reasoning: str | None, signature: str | None, finish: str | None, closes: bool
) -> tuple[bytes, bytes]:
    begin: list[dict[str, Any]] = [{"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 10}}}]
    at = 0
    if reasoning is not None:
        begin += [
            {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": reasoning}},
        ]
        if signature is not None:
            delta = {"type": "signature_delta", "signature": signature}
            begin.append({"type": "content_block_delta", "index": 0, "delta": delta})
        if closes:
            begin.append({"type": "content_block_stop", "index": 0})
        at = 1
    block = {"type": "tool_use", "id": call_id, "name": "echo"}
    begin += [
        {"type": "content_block_start", "index": at, "content_block": block},
        {"type": "content_block_delta", "index": at, "delta": {"type": "input_json_delta", "partial_json": arguments}},
        {"type": "content_block_stop", "index": at},
    ]
    return sse(*begin), sse(
        {"type": "message_delta", "delta": {"stop_reason": finish or "tool_use"}, "usage": {"output_tokens": 12}},
        {"type": "message_stop"},
    )


def cut_text(wire: Wire, broken: Break = Break.CLOSE) -> Step:
    """An answer that breaks in its text, on a whole line."""
    whole = text(wire, "half an answer")
    at = whole.index(b"half an answer")
    return Step(whole, cut_at=whole.index(b"\n\n", at) + 2, broken=broken)


def cut_after_tool(wire: Wire) -> Step:
    """A complete tool call, then a cut inside the JSON of the next event."""
    begin, end = tool_pieces(wire)
    return Step(begin + end, cut_at=len(begin) + len(b'data: {"ty'), broken=Break.CLOSE, framing=Framing.CLOSE)


def empty(wire: Wire) -> bytes:
    """A complete answer with nothing in it."""
    match wire:
        case Wire.CHAT:
            return sse({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, "[DONE]")
        case Wire.RESPONSES:
            return sse({"type": "response.completed", "response": {"id": "r"}})
        case Wire.MESSAGES:
            return sse(
                {"type": "message_start", "message": {"usage": {"input_tokens": 1}}},
                {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 0}},
                {"type": "message_stop"},
            )


def stream_error(wire: Wire, kind: str, message: str = "busy", *, after_text: bool = False) -> bytes:
    """An error event inside a 200."""
    error = {"type": kind, "message": message}
    start = text(wire, "shown").split(b"data: ") if after_text else []
    head = b""
    for piece in start:
        head += b"data: " + piece if piece else b""
        if b"shown" in piece:
            break
    match wire:
        case Wire.CHAT:
            return head + sse({"error": error})
        case Wire.RESPONSES:
            failed = {"type": "response.failed", "response": {"error": {"code": kind, "message": message}}}
            return head + sse(failed)
        case Wire.MESSAGES:
            return head + sse({"type": "error", "error": error})


def refusal(status: int, error: dict[str, Any] | None, **headers: str) -> Step:
    """A response that is not a 200. `error` None: an empty body."""
    body = b"" if error is None else json.dumps({"error": error}).encode()
    names = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Step(body, status, names, Framing.LENGTH)


def replay_refusal(wire: Wire) -> Step:
    return refusal(400, {"message": REPLAY_REFUSALS[wire], "type": "invalid_request_error"})


def unavailable(**headers: str) -> Step:
    return refusal(503, {"message": "temporarily unavailable"}, **headers)


def quota() -> Step:
    return refusal(429, {"code": "insufficient_quota", "message": "You exceeded your current quota"})
