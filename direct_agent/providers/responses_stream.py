"""Reads a Responses stream.

Complete at `response.completed`, `response.incomplete`, `response.failed` or `[DONE]`, and at nothing else. Lines that
cannot be decoded are skipped, cut or not: the stream then ends without its end, which is an interruption. Text deltas
are the authority; a `done` text counts only where no delta was seen. Reasoning items are kept raw.
"""

from __future__ import annotations

import json
from typing import Any

from direct_agent.providers.event_json import count, index, items, obj, text, whole_text
from direct_agent.providers.growing_text import GrowingText
from direct_agent.providers.sse_lines import MIB
from direct_agent.providers.stream_reader import REASONING_BYTES_MAX, DeltaKind, StreamReader, finished
from direct_agent.recovery import classify
from direct_agent.recovery.fault import Fault, Reason
from direct_agent.transcript import (
    AssistantMessage,
    Candidate,
    Finish,
    Opaque,
    Reasoning,
    ReasoningKind,
    ReasoningState,
    ToolCall,
    Usage,
)

_INCOMPLETE = {"max_output_tokens": Finish.LENGTH, "content_filter": Finish.CONTENT_FILTER}


class _Call:
    """One function call. It is finalised once, by whichever `done` comes first."""

    def __init__(self, item: dict[str, Any], at: int) -> None:
        self.call_id = text(item.get("call_id")) or text(item.get("id")) or f"call_{at}"
        self.name = text(item.get("name"))
        self.arguments = GrowingText()
        self.final: str | None = None

    def finalise(self, arguments: str) -> None:
        if self.final is None:
            self.final = whole_text(arguments) or str(self.arguments)


class ResponsesStream(StreamReader):
    line_bytes_max = 4 * MIB

    def __init__(self, provider: str) -> None:
        super().__init__(provider)
        self._texts: dict[str, GrowingText] = {}
        self._calls: dict[str, _Call] = {}
        self._open_reasoning: set[str] = set()
        self._reasoning: dict[str, dict[str, Any]] = {}
        self._reasoning_seen = GrowingText(REASONING_BYTES_MAX)
        self._opaque: dict[str, dict[str, Any]] = {}
        self._finish: Finish | None = None
        self._is_whole = True
        self._usage = Usage()
        self._response_id: str | None = None
        self._model: str | None = None

    def _event(self, event: dict[str, Any]) -> None:
        kind = text(event.get("type"))
        match kind:
            case "response.output_text.delta" | "response.refusal.delta":
                self._text_piece(_key(event), text(event.get("delta")))
            case "response.output_text.done" | "response.refusal.done":
                self._text_done(_key(event), text(event.get("text")) or text(event.get("refusal")))
            case "response.reasoning_text.delta" | "response.reasoning_summary_text.delta":
                piece = text(event.get("delta"))
                self._reasoning_seen.add(piece)
                self._show(DeltaKind.REASONING, piece)
            case "response.output_item.added":
                self._added(obj(event.get("item")), event)
            case "response.function_call_arguments.delta":
                self._call_at(_item_id(event), {}).arguments.add(text(event.get("delta")))
                self.showed_output = True
            case "response.function_call_arguments.done":
                self._call_at(_item_id(event), {}).finalise(text(event.get("arguments")))
            case "response.output_item.done":
                self._done_item(obj(event.get("item")), event)
            case "response.completed" | "response.incomplete":
                self._end(obj(event.get("response")), is_incomplete=kind == "response.incomplete")
            case "response.failed":
                self._error_event(obj(event.get("response")).get("error"))
            case "error":
                self._error_event({key: value for key, value in event.items() if key != "type"})

    def _text_piece(self, key: str, piece: str) -> None:
        self._texts.setdefault(key, GrowingText()).add(piece)
        if piece:
            self._show(DeltaKind.TEXT, piece)

    def _text_done(self, key: str, whole: str) -> None:
        if not self._texts.get(key):
            self._text_piece(key, whole)

    def _call_at(self, item_id: str, item: dict[str, Any]) -> _Call:
        call = self._calls.get(item_id)
        if call is None:
            call = self._calls[item_id] = _Call(item, len(self._calls))
            self._show(DeltaKind.TOOL, call.name)
        elif item:
            call.call_id = text(item.get("call_id")) or call.call_id
            call.name = text(item.get("name")) or call.name
        return call

    def _added(self, item: dict[str, Any], event: dict[str, Any]) -> None:
        match text(item.get("type")):
            case "reasoning":
                self._open_reasoning.add(text(item.get("id")))
                self.showed_output = True
            case "function_call":
                self._call_at(text(item.get("id")) or _item_id(event), item)
            case "message":
                pass
            case _:
                self.showed_output = True

    def _done_item(self, item: dict[str, Any], event: dict[str, Any]) -> None:
        item_id = text(item.get("id")) or _item_id(event)
        match text(item.get("type")):
            case "reasoning":
                self._open_reasoning.discard(text(item.get("id")))
                self._reasoning[item_id] = item
                self.showed_output = True
            case "function_call":
                self._call_at(item_id, item).finalise(text(item.get("arguments")))
            case "message":
                for at, each in enumerate(items(item.get("content"))):
                    part = obj(each)
                    self._text_done(f"{item_id}:{at}", text(part.get("text")) or text(part.get("refusal")))
            case _:
                self._opaque[item_id] = item
                self.showed_output = True

    def _end(self, response: dict[str, Any], *, is_incomplete: bool) -> None:
        for at, each in enumerate(items(response.get("output"))):
            item = obj(each)
            item_id = text(item.get("id")) or f"output:{at}"
            if item_id not in self._reasoning and item_id not in self._opaque:
                self._done_item({**item}, {"item_id": item_id})
        self._response_id = text(response.get("id")) or None
        self._model = text(response.get("model")) or None
        if (usage := response.get("usage")) is not None:
            self._usage = _usage(obj(usage))
        if is_incomplete:
            why = text(obj(response.get("incomplete_details")).get("reason"))
            self._finish = _INCOMPLETE.get(why, Finish.INCOMPLETE)
            self._is_whole = False
        self.is_done = True

    def _has_done_marker(self) -> bool:
        return True

    def _ends_at_eof(self) -> bool:
        return False

    def _cut(self) -> None:
        """Skipped; the missing end says the rest."""

    def _malformed(self) -> None:
        """Skipped as well."""

    def _over_long(self) -> Fault:
        return classify.interrupted(self.provider, Reason.PREMATURE_EOF)

    def _candidate(self) -> Candidate:
        calls = tuple(
            ToolCall(call.call_id, call.name, (str(call.arguments) if call.final is None else call.final) or "{}")
            for call in self._calls.values()
        )
        message = AssistantMessage(
            whole_text("".join(str(each) for each in self._texts.values())),
            tuple(_reasoning(item) for item in self._reasoning.values()),
            self._state(),
            calls,
            tuple(Opaque(text(each.get("type")), _raw(each)) for each in self._opaque.values()),
            finished(calls, self._finish),
        )
        return Candidate(message, self.usage(), self._is_whole, self._response_id, self._model)

    def _state(self) -> ReasoningState:
        if self._reasoning_seen.is_cut:
            return ReasoningState.TRUNCATED
        if self._open_reasoning or not self._is_whole:
            return ReasoningState.INCOMPLETE
        return ReasoningState.COMPLETE if self._reasoning else ReasoningState.EMPTY

    def _reported(self) -> Usage:
        return self._usage

    def _seen(self) -> tuple[int, int, int]:
        return (
            sum(each.size for each in self._texts.values()),
            self._reasoning_seen.size,
            max((call.arguments.size for call in self._calls.values()), default=0),
        )


def _item_id(event: dict[str, Any]) -> str:
    return text(event.get("item_id")) or f"output:{index(event.get('output_index'))}"


def _key(event: dict[str, Any]) -> str:
    return f"{_item_id(event)}:{index(event.get('content_index'))}"


def _raw(item: dict[str, Any]) -> str:
    return json.dumps(item, ensure_ascii=False, separators=(",", ":"))


def _reasoning(item: dict[str, Any]) -> Reasoning:
    pieces = [
        text(part.get("text"))
        for name in ("content", "summary")
        for part in items(item.get(name))
        if isinstance(part, dict)
    ]
    return Reasoning(
        ReasoningKind.ITEM,
        whole_text("\n".join(piece for piece in pieces if piece)),
        data=text(item.get("encrypted_content")) or None,
        raw_json=_raw(item),
        is_complete=text(item.get("status")) in ("", "completed"),
    )


def _usage(usage: dict[str, Any]) -> Usage:
    prompt, completion = count(usage.get("input_tokens")), count(usage.get("output_tokens"))
    inputs, outputs = usage.get("input_tokens_details"), usage.get("output_tokens_details")
    hit = count(inputs.get("cached_tokens")) if isinstance(inputs, dict) else None
    total = count(usage.get("total_tokens"))
    return Usage(
        prompt=prompt,
        completion=completion,
        reasoning=count(outputs.get("reasoning_tokens")) if isinstance(outputs, dict) else None,
        cache_hit=hit,
        cache_miss=None if hit is None or prompt is None else max(0, prompt - hit),
        total=total if total is not None or prompt is None or completion is None else prompt + completion,
    )
