"""Anthropic Messages: an `Answer` in, HTTP steps out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import cast

from standfast_lab.provider.answer import Answer, Fault, How, Text, Thinking, ToolCall, Where
from standfast_lab.provider.heard import Heard
from standfast_lab.provider.http_steps import Body, Close, Cut, End, Head, Hold, RawBody, Reset, Step, Wait

_DELTA_CHARS = 64 * 1024
_DELTAS_DEFAULT = 3


def encode_answer(answer: Answer, heard: Heard, *, seed: str) -> list[Step]:
    """Returns the HTTP steps of an answer. `seed` makes ids: the same seed gives the same bytes."""
    steps: list[Step] = [Wait(answer.latency_s)] if answer.latency_s else []
    fault = answer.fault
    if fault and fault.where is Where.BEFORE_HEAD:
        steps += _break(fault)
        if fault.how is not How.HANG:
            return steps
        fault = None
    if answer.status != 200:
        return steps + encode_error(
            answer.status, answer.error_type or "api_error", answer.error_message or "", seed, answer.retry_after_s
        )
    request_id = ("request-id", f"req_lab_{seed}")
    if not heard.stream:
        body = json.dumps(_whole(answer, heard, seed), ensure_ascii=False).encode("utf-8", "surrogatepass")
        head = Head(200, (("content-type", "application/json"), ("content-length", str(len(body))), request_id))
        if fault is None:
            return [*steps, head, Body(body), End()]
        if fault.how is How.ERROR_EVENT:
            return steps + encode_error(529, fault.error_type, "lab: error", seed, None)
        half = 0 if fault.where is Where.AFTER_HEAD else len(body) // 2
        if fault.how is How.END:
            # An orderly end has a content-length that fits: the JSON text is what is cut.
            return [*steps, replace(head, headers=_with_length(head.headers, half)), Body(body[:half]), End()]
        return [*steps, head, Body(body[:half]), *_break(fault), Body(body[half:]), End()]
    head = Head(200, (("content-type", "text/event-stream; charset=utf-8"), ("cache-control", "no-cache"), request_id))
    return [*steps, head, *_stream(answer, heard, seed, fault), End()]


def encode_error(status: int, kind: str, message: str, seed: str, retry_after_s: float | None = None) -> list[Step]:
    """Returns the HTTP steps of an error body."""
    body = json.dumps(
        {"type": "error", "error": {"type": kind, "message": message}, "request_id": f"req_lab_{seed}"}
    ).encode()
    headers = [
        ("content-type", "application/json"),
        ("content-length", str(len(body))),
        ("request-id", f"req_lab_{seed}"),
    ]
    if retry_after_s is not None:
        headers.append(("retry-after", f"{retry_after_s:g}"))
    return [Head(status, tuple(headers)), Body(body), End()]


def encode_token_count(heard: Heard) -> list[Step]:
    """Returns the HTTP steps of a token count: a fixed function of the request's texts."""
    body = json.dumps({"input_tokens": _input_tokens(heard)}).encode()
    return [Head(200, (("content-type", "application/json"), ("content-length", str(len(body))))), Body(body), End()]


def _with_length(headers: tuple[tuple[str, str], ...], length: int) -> tuple[tuple[str, str], ...]:
    return tuple((name, str(length) if name == "content-length" else value) for name, value in headers)


def _input_tokens(heard: Heard) -> int:
    return 10 + sum(len(block.text) for message in heard.messages for block in message.blocks) // 4


def _output_tokens(answer: Answer) -> int:
    return 1 + sum(len(_body_text(part)) for part in answer.parts) // 4


def _body_text(part: Text | Thinking | ToolCall) -> str:
    return part.arguments if isinstance(part, ToolCall) else part.text


def _tool_id(seed: str, index: int) -> str:
    return f"toolu_lab_{seed}_{index}"


def _signature(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _message_shell(heard: Heard, seed: str) -> dict[str, object]:
    return {
        "id": f"msg_lab_{seed}",
        "type": "message",
        "role": "assistant",
        "model": heard.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": _input_tokens(heard),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 1,
        },
    }


def _whole(answer: Answer, heard: Heard, seed: str) -> dict[str, object]:
    content: list[dict[str, object]] = []
    for index, part in enumerate(answer.parts):
        match part:
            case Text(text):
                content.append({"type": "text", "text": text})
            case Thinking(text):
                content.append({"type": "thinking", "thinking": text, "signature": _signature(text)})
            case ToolCall(name, arguments):
                content.append(
                    {"type": "tool_use", "id": _tool_id(seed, index), "name": name, "input": json.loads(arguments)}
                )
    shell = _message_shell(heard, seed)
    usage = cast(dict[str, object], shell["usage"]) | {"output_tokens": _output_tokens(answer)}
    return shell | {"content": content, "stop_reason": answer.stop.value, "usage": usage}


def _stream(answer: Answer, heard: Heard, seed: str, fault: Fault | None) -> Iterator[Step]:
    """Yields the events of a stream, with the fault at its place.

    A fault lies in the last part, the one with the reply.
    """
    if fault and fault.where is Where.AFTER_HEAD:
        yield from _break(fault)
    yield _event({"type": "message_start", "message": _message_shell(heard, seed)})
    yield _event({"type": "ping"})
    for index, part in enumerate(answer.parts):
        is_last = index == len(answer.parts) - 1
        yield _event({"type": "content_block_start", "index": index, "content_block": _block_start(part, seed, index)})
        deltas = [
            _event({"type": "content_block_delta", "index": index, "delta": delta})
            for delta in _deltas(part, answer.deltas)
        ]
        for place, delta in enumerate(deltas):
            if answer.delta_delay_s:
                yield Wait(answer.delta_delay_s)
            if fault and is_last and place == (len(deltas) + 1) // 2:
                yield from _fault_at(fault, delta.data)
                if fault.where in (Where.MID_EVENT, Where.MID_CHUNK):
                    continue
            yield delta
        if fault and is_last and len(deltas) == 1 and fault.where in (Where.MID_TEXT, Where.MID_EVENT, Where.MID_CHUNK):
            yield from _fault_at(fault, _event({"type": "content_block_stop", "index": index}).data)
        yield _event({"type": "content_block_stop", "index": index})
    if fault and (fault.where is Where.BEFORE_STOP or not answer.parts):
        yield from _break(fault)
    yield _event(
        {
            "type": "message_delta",
            "delta": {"stop_reason": answer.stop.value, "stop_sequence": None},
            "usage": {"output_tokens": _output_tokens(answer)},
        }
    )
    yield _event({"type": "message_stop"})


def _fault_at(fault: Fault, event: bytes) -> Iterator[Step]:
    match fault.where:
        case Where.MID_TEXT:
            yield from _break(fault)
        case Where.MID_EVENT:
            half = len(event) // 2
            yield Body(event[:half])
            yield from _break(fault)
            yield Body(event[half:])
        case Where.MID_CHUNK:
            half = len(event) // 2
            yield RawBody(f"{len(event):x}\r\n".encode(), event[:half])
            yield from _break(fault)
            # Inside an announced chunk nothing else can follow but its rest.
            yield Close()
        case _:
            return


def _break(fault: Fault) -> Iterator[Step]:
    if fault.pause_s:
        yield Wait(fault.pause_s)
    match fault.how:
        case How.CUT:
            yield Cut()
        case How.END:
            yield Close()
        case How.RESET:
            yield Reset()
        case How.HANG:
            yield Hold()
        case How.ERROR_EVENT:
            yield _event(
                {"type": "error", "error": {"type": fault.error_type, "message": "lab: error inside the stream"}}
            )
            yield Close()


def _block_start(part: Text | Thinking | ToolCall, seed: str, index: int) -> dict[str, object]:
    match part:
        case Text():
            return {"type": "text", "text": ""}
        case Thinking():
            return {"type": "thinking", "thinking": "", "signature": ""}
        case ToolCall(name, _):
            return {"type": "tool_use", "id": _tool_id(seed, index), "name": name, "input": {}}


def _deltas(part: Text | Thinking | ToolCall, count: int | None) -> Iterator[dict[str, object]]:
    text = _body_text(part)
    if count is None:
        count = max(min(_DELTAS_DEFAULT, len(text)), -(-len(text) // _DELTA_CHARS), 1)
    for piece in _split(text, count):
        match part:
            case Text():
                yield {"type": "text_delta", "text": piece}
            case Thinking():
                yield {"type": "thinking_delta", "thinking": piece}
            case ToolCall():
                yield {"type": "input_json_delta", "partial_json": piece}
    if isinstance(part, Thinking):
        yield {"type": "signature_delta", "signature": _signature(part.text)}


def _split(text: str, count: int) -> list[str]:
    """Cuts a text into `count` pieces of nearly one length; with fewer characters than pieces some are empty."""
    bounds = [len(text) * i // count for i in range(count + 1)]
    return [text[a:b] for a, b in pairwise(bounds)]


def _event(event: dict[str, object]) -> Body:
    data = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    return Body(f"event: {event['type']}\ndata: {data}\n\n".encode("utf-8", "surrogatepass"))
