"""OpenAI Responses: an `Answer` in its events and bodies.

`max_tokens` and the provider's own stop (`refusal`) end in `response.incomplete`; an error inside the stream is `response.failed`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from standfast_lab.provider.answer import Answer, Stop, Text, Thinking, ToolCall
from standfast_lab.provider.heard import Heard
from standfast_lab.provider.openai_errors import error_object
from standfast_lab.provider.speech import Frames, pieces, usage_of

_INCOMPLETE = {Stop.MAX_TOKENS: "max_output_tokens", Stop.REFUSAL: "content_filter"}
# The protocol has no clock here: the same request gives the same bytes.
_CREATED = 1_700_000_000

Json = dict[str, object]


class ResponsesWords:
    """One answer; see `speech.Words`. Events are numbered as they are made, so each method is called once and in order."""

    def __init__(self, answer: Answer, heard: Heard, seed: str) -> None:
        self._answer, self._heard, self._seed = answer, heard, seed
        self._number = 0
        self.request_id = ("x-request-id", f"req_lab_{seed}")

    def whole(self) -> bytes:
        """The response object."""
        return json.dumps(self._ended(), ensure_ascii=False).encode("utf-8", "surrogatepass")

    def opening(self) -> tuple[bytes, ...]:
        """response.created and response.in_progress."""
        begun = self._response("in_progress", [])
        return (
            self._event("response.created", response=begun),
            self._event("response.in_progress", response=begun),
        )

    def parts(self) -> Iterator[Frames]:
        """The events of each output item."""
        for index, part in enumerate(self._answer.parts):
            match part:
                case Text():
                    yield self._message(part, index)
                case Thinking():
                    yield self._reasoning(part, index)
                case ToolCall():
                    yield self._call(part, index)

    def closing(self) -> tuple[bytes, ...]:
        """response.completed or response.incomplete."""
        kind = "response.incomplete" if self._answer.stop in _INCOMPLETE else "response.completed"
        return (self._event(kind, response=self._ended()),)

    def error_event(self, kind: str) -> bytes:
        """response.failed."""
        said = error_object(kind, "lab: error inside the stream")
        failed = self._response("failed", []) | {"error": {"code": said["code"], "message": said["message"]}}
        return self._event("response.failed", response=failed)

    def _message(self, part: Text, index: int) -> Frames:
        at = {"item_id": self._item_id(part, index), "output_index": index, "content_index": 0}
        empty = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        start = (
            self._added(part, index, {"content": []}),
            self._event("response.content_part.added", **at, part=empty),
        )
        deltas = tuple(
            self._event("response.output_text.delta", **at, delta=piece, logprobs=[])
            for piece in pieces(part, self._answer.deltas)
        )
        stop = (
            self._event("response.output_text.done", **at, text=part.text, logprobs=[]),
            self._event("response.content_part.done", **at, part={**empty, "text": part.text}),
            self._done(part, index),
        )
        return Frames(start, deltas, stop)

    def _reasoning(self, part: Thinking, index: int) -> Frames:
        at = {"item_id": self._item_id(part, index), "output_index": index, "summary_index": 0}
        empty = {"type": "summary_text", "text": ""}
        start = (
            self._added(part, index, {"summary": []}),
            self._event("response.reasoning_summary_part.added", **at, part=empty),
        )
        deltas = tuple(
            self._event("response.reasoning_summary_text.delta", **at, delta=piece)
            for piece in pieces(part, self._answer.deltas)
        )
        stop = (
            self._event("response.reasoning_summary_text.done", **at, text=part.text),
            self._event("response.reasoning_summary_part.done", **at, part={**empty, "text": part.text}),
            self._done(part, index),
        )
        return Frames(start, deltas, stop)

    def _call(self, part: ToolCall, index: int) -> Frames:
        at = {"item_id": self._item_id(part, index), "output_index": index}
        deltas = tuple(
            self._event("response.function_call_arguments.delta", **at, delta=piece)
            for piece in pieces(part, self._answer.deltas)
        )
        finished = self._event("response.function_call_arguments.done", **at, name=part.name, arguments=part.arguments)
        return Frames((self._added(part, index, {"arguments": ""}),), deltas, (finished, self._done(part, index)))

    def _added(self, part: Text | Thinking | ToolCall, index: int, empty: Json) -> bytes:
        item = self._item(part, index) | {"status": "in_progress"} | empty
        return self._event("response.output_item.added", output_index=index, item=item)

    def _done(self, part: Text | Thinking | ToolCall, index: int) -> bytes:
        return self._event("response.output_item.done", output_index=index, item=self._item(part, index))

    def _item_id(self, part: Text | Thinking | ToolCall, index: int) -> str:
        prefix = {Text: "msg", Thinking: "rs", ToolCall: "fc"}[type(part)]
        return f"{prefix}_lab_{self._seed}_{index}"

    def _item(self, part: Text | Thinking | ToolCall, index: int) -> Json:
        shell: Json = {"id": self._item_id(part, index), "status": "completed"}
        match part:
            case Text(text):
                content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
                return shell | {"type": "message", "role": "assistant", "content": content}
            case Thinking(text):
                return shell | {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}
            case ToolCall(name, arguments):
                call: Json = {"type": "function_call", "name": name, "arguments": arguments}
                namespace = dict(self._heard.namespaces).get(name)
                named = {} if namespace is None else {"namespace": namespace}
                return shell | call | {"call_id": f"call_lab_{self._seed}_{index}", **named}

    def _ended(self) -> Json:
        output = [self._item(part, index) for index, part in enumerate(self._answer.parts)]
        reason = _INCOMPLETE.get(self._answer.stop)
        ended = self._response("completed" if reason is None else "incomplete", output)
        given, made = usage_of(self._answer, self._heard)
        ended["usage"] = {
            "input_tokens": given,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": made,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": given + made,
        }
        return ended if reason is None else ended | {"incomplete_details": {"reason": reason}}

    def _response(self, status: str, output: list[Json]) -> Json:
        return {
            "id": f"resp_lab_{self._seed}",
            "object": "response",
            "created_at": _CREATED,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "model": self._heard.model,
            "output": output,
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "usage": None,
        }

    def _event(self, kind: str, **more: object) -> bytes:
        event = {"type": kind, "sequence_number": self._number, **more}
        self._number += 1
        data = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
        return f"event: {kind}\ndata: {data}\n\n".encode("utf-8", "surrogatepass")
