"""OpenAI Chat Completions: an `Answer` in its chunks and bodies.

A stop of the provider's own (`refusal`) is `content_filter`. Thinking goes out as `reasoning_content`, the field that compatible
servers use; the protocol itself has none. An error inside a stream is a chunk `{"error": ...}`, as compatible servers send it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from standfast_lab.provider.answer import Answer, Stop, Text, Thinking, ToolCall
from standfast_lab.provider.heard import Heard
from standfast_lab.provider.openai_errors import error_object
from standfast_lab.provider.speech import Frames, pieces, usage_of

_FINISH = {
    Stop.END_TURN: "stop",
    Stop.TOOL_USE: "tool_calls",
    Stop.MAX_TOKENS: "length",
    Stop.REFUSAL: "content_filter",
}
# The protocol has no clock here: the same request gives the same bytes.
_CREATED = 1_700_000_000


class ChatWords:
    """One answer; see `speech.Words`."""

    def __init__(self, answer: Answer, heard: Heard, seed: str) -> None:
        self._answer, self._heard, self._seed = answer, heard, seed
        self.request_id = ("x-request-id", f"req_lab_{seed}")

    def whole(self) -> bytes:
        """The completion object."""
        message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
        calls = []
        for index, part in enumerate(self._answer.parts):
            match part:
                case Text(text):
                    message["content"] = (message["content"] or "") + text
                case Thinking(text):
                    message["reasoning_content"] = message.get("reasoning_content", "") + text
                case ToolCall(name, arguments):
                    call = {"id": self._call_id(index), "type": "function"}
                    calls.append({**call, "function": {"name": name, "arguments": arguments}})
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _FINISH[self._answer.stop]}
        body = {**self._shell("chat.completion"), "choices": [choice], "usage": self._usage()}
        return json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")

    def opening(self) -> tuple[bytes, ...]:
        """The chunk that names the role."""
        return (self._chunk({"role": "assistant", "content": "", "refusal": None}),)

    def parts(self) -> Iterator[Frames]:
        """The deltas of each part; the protocol marks no end of a part."""
        calls = 0
        for index, part in enumerate(self._answer.parts):
            split = pieces(part, self._answer.deltas)
            match part:
                case Text():
                    yield Frames((), tuple(self._chunk({"content": piece}) for piece in split))
                case Thinking():
                    yield Frames((), tuple(self._chunk({"reasoning_content": piece}) for piece in split))
                case ToolCall(name, _):
                    named = {"index": calls, "id": self._call_id(index), "type": "function"}
                    start = {**named, "function": {"name": name, "arguments": ""}}
                    deltas = [{"index": calls, "function": {"arguments": piece}} for piece in split]
                    yield Frames(
                        (self._chunk({"tool_calls": [start]}),),
                        tuple(self._chunk({"tool_calls": [delta]}) for delta in deltas),
                    )
                    calls += 1

    def closing(self) -> tuple[bytes, ...]:
        """The chunk with the finish reason, the usage where it was asked for, and `[DONE]`."""
        events = [self._chunk({}, _FINISH[self._answer.stop])]
        if self._heard.wants_usage:
            events.append(_event({**self._shell("chat.completion.chunk"), "choices": [], "usage": self._usage()}))
        return (*events, b"data: [DONE]\n\n")

    def error_event(self, kind: str) -> bytes:
        """A chunk with `error` in place of choices."""
        return _event({"error": error_object(kind, "lab: error inside the stream")})

    def _chunk(self, delta: dict[str, object], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _event({**self._shell("chat.completion.chunk"), "choices": [choice]})

    def _call_id(self, index: int) -> str:
        return f"call_lab_{self._seed}_{index}"

    def _shell(self, kind: str) -> dict[str, object]:
        return {"id": f"chatcmpl-lab-{self._seed}", "object": kind, "created": _CREATED, "model": self._heard.model}

    def _usage(self) -> dict[str, int]:
        given, made = usage_of(self._answer, self._heard)
        return {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}


def _event(event: dict[str, object]) -> bytes:
    data = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    return f"data: {data}\n\n".encode("utf-8", "surrogatepass")
