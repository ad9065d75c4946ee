"""Anthropic Messages: an `Answer` in its events and bodies."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import cast

from standfast_lab.provider.answer import Answer, Text, Thinking, ToolCall
from standfast_lab.provider.heard import Heard
from standfast_lab.provider.http_steps import Body, End, Head, Step
from standfast_lab.provider.speech import Frames, error_steps, input_tokens, pieces, usage_of


class MessagesWords:
    """One answer; see `speech.Words`."""

    def __init__(self, answer: Answer, heard: Heard, seed: str) -> None:
        self._answer, self._heard, self._seed = answer, heard, seed
        self.request_id = ("request-id", f"req_lab_{seed}")

    def whole(self) -> bytes:
        """The message object."""
        content: list[dict[str, object]] = []
        for index, part in enumerate(self._answer.parts):
            match part:
                case Text(text):
                    content.append({"type": "text", "text": text})
                case Thinking(text):
                    content.append({"type": "thinking", "thinking": text, "signature": _signature(text)})
                case ToolCall(name, arguments):
                    call = {"type": "tool_use", "id": self._tool_id(index), "name": name}
                    content.append({**call, "input": json.loads(arguments)})
        shell = self._shell()
        usage = cast(dict[str, object], shell["usage"]) | {"output_tokens": usage_of(self._answer, self._heard)[1]}
        body = shell | {"content": content, "stop_reason": self._answer.stop.value, "usage": usage}
        return json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")

    def opening(self) -> tuple[bytes, ...]:
        """message_start and a ping."""
        return (_event({"type": "message_start", "message": self._shell()}), _event({"type": "ping"}))

    def parts(self) -> Iterator[Frames]:
        """Start, deltas and stop of each content block."""
        for index, part in enumerate(self._answer.parts):
            start: dict[str, object] = {
                "type": "content_block_start",
                "index": index,
                "content_block": self._block_start(part, index),
            }
            yield Frames(
                (_event(start),),
                tuple(
                    _event({"type": "content_block_delta", "index": index, "delta": delta})
                    for delta in _deltas(part, self._answer.deltas)
                ),
                (_event({"type": "content_block_stop", "index": index}),),
            )

    def closing(self) -> tuple[bytes, ...]:
        """message_delta and message_stop."""
        made = {
            "type": "message_delta",
            "delta": {"stop_reason": self._answer.stop.value, "stop_sequence": None},
            "usage": {"output_tokens": usage_of(self._answer, self._heard)[1]},
        }
        return (_event(made), _event({"type": "message_stop"}))

    def error_event(self, kind: str) -> bytes:
        """The event `error`."""
        return _event({"type": "error", "error": {"type": kind, "message": "lab: error inside the stream"}})

    def _tool_id(self, index: int) -> str:
        return f"toolu_lab_{self._seed}_{index}"

    def _shell(self) -> dict[str, object]:
        return {
            "id": f"msg_lab_{self._seed}",
            "type": "message",
            "role": "assistant",
            "model": self._heard.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {
                "input_tokens": usage_of(self._answer, self._heard)[0],
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0,
                "output_tokens": 1,
            },
        }

    def _block_start(self, part: Text | Thinking | ToolCall, index: int) -> dict[str, object]:
        match part:
            case Text():
                return {"type": "text", "text": ""}
            case Thinking():
                return {"type": "thinking", "thinking": "", "signature": ""}
            case ToolCall(name, _):
                return {"type": "tool_use", "id": self._tool_id(index), "name": name, "input": {}}


def write_error(status: int, kind: str, message: str, seed: str, retry_after_s: float | None = None) -> list[Step]:
    """Returns the HTTP steps of an error body."""
    body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": f"req_lab_{seed}"}
    return error_steps(status, json.dumps(body).encode(), [("request-id", f"req_lab_{seed}")], retry_after_s)


def encode_token_count(heard: Heard) -> list[Step]:
    """Returns the HTTP steps of a token count: a fixed function of the request's texts."""
    body = json.dumps({"input_tokens": input_tokens(heard)}).encode()
    return [Head(200, (("content-type", "application/json"), ("content-length", str(len(body))))), Body(body), End()]


def _signature(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _deltas(part: Text | Thinking | ToolCall, count: int | None) -> Iterator[dict[str, object]]:
    for piece in pieces(part, count):
        match part:
            case Text():
                yield {"type": "text_delta", "text": piece}
            case Thinking():
                yield {"type": "thinking_delta", "thinking": piece}
            case ToolCall():
                yield {"type": "input_json_delta", "partial_json": piece}
    if isinstance(part, Thinking):
        yield {"type": "signature_delta", "signature": _signature(part.text)}


def _event(event: Mapping[str, object]) -> bytes:
    data = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    return f"event: {event['type']}\ndata: {data}\n\n".encode("utf-8", "surrogatepass")
