"""Reads an Anthropic Messages stream.

Complete at `message_stop` (reading ends there at once), or at a clean end after a stop reason. Blocks are kept by index;
thinking blocks one by one, with signature and data exactly as received. Counters are merged by their maximum, since
`message_delta` repeats them.
"""

from __future__ import annotations

import json
from typing import Any

from direct_agent.providers.chat_stream import anthropic_usage
from direct_agent.providers.event_json import MalformedEventError, count, index, obj, text, whole_text
from direct_agent.providers.growing_text import GrowingText
from direct_agent.providers.sse_lines import MIB
from direct_agent.providers.stream_reader import REASONING_BYTES_MAX, DeltaKind, StreamReader, finished
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

_FINISHES = {
    "end_turn": Finish.STOP,
    "stop_sequence": Finish.STOP,
    "tool_use": Finish.TOOL_CALLS,
    "max_tokens": Finish.LENGTH,
    "model_context_window_exceeded": Finish.LENGTH,
    "refusal": Finish.CONTENT_FILTER,
}
_COUNTERS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


class _Block:
    def __init__(self, start: dict[str, Any]) -> None:
        self.start = start
        self.kind = text(start.get("type"))
        self.text = GrowingText(REASONING_BYTES_MAX if self.kind == "thinking" else None)
        self.signature = ""
        self.arguments = GrowingText()
        self.is_stopped = False


class MessagesStream(StreamReader):
    line_bytes_max = MIB

    def __init__(self, provider: str) -> None:
        super().__init__(provider)
        self._blocks: dict[int, _Block] = {}
        self._finish: Finish | None = None
        self._counters: dict[str, int] = {}
        self._response_id: str | None = None
        self._model: str | None = None

    def _event(self, event: dict[str, Any]) -> None:
        match event.get("type"):
            case "message_start":
                message = obj(event.get("message"))
                self._response_id = text(message.get("id")) or None
                self._model = text(message.get("model")) or None
                self._count(obj(message.get("usage")))
            case "content_block_start":
                self._start(index(event.get("index")), obj(event.get("content_block")))
            case "content_block_delta":
                self._delta(index(event.get("index")), obj(event.get("delta")))
            case "content_block_stop":
                if (block := self._blocks.get(index(event.get("index")))) is not None:
                    block.is_stopped = True
            case "message_delta":
                if reason := text(obj(event.get("delta")).get("stop_reason")):
                    self._finish = _FINISHES.get(reason, Finish.OTHER)
                self._count(obj(event.get("usage")))
            case "message_stop":
                self.is_done = True
            case "error":
                self._error_event(event.get("error"))

    def _count(self, usage: dict[str, Any]) -> None:
        for name in _COUNTERS:
            if (value := count(usage.get(name))) is not None:
                self._counters[name] = max(value, self._counters.get(name, 0))

    def _start(self, at: int, start: dict[str, Any]) -> None:
        block = self._blocks[at] = _Block(start)
        match block.kind:
            case "text":
                self._text(block, text(start.get("text")))
            case "thinking":
                self._thinking(block, text(start.get("thinking")))
                block.signature = text(start.get("signature"))
            case "tool_use":
                self._show(DeltaKind.TOOL, text(start.get("name")))
            case "":
                raise MalformedEventError
            case _:
                self.showed_output = True

    def _delta(self, at: int, delta: dict[str, Any]) -> None:
        block = self._blocks.get(at)
        if block is None:
            # A gateway that leaves out the start: the delta says what the block is.
            kinds = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "thinking"}
            kind = kinds.get(text(delta.get("type")))
            if kind is None:
                raise MalformedEventError
            block = self._blocks[at] = _Block({"type": kind})
        match delta.get("type"):
            case "text_delta":
                self._text(block, text(delta.get("text")))
            case "thinking_delta":
                self._thinking(block, text(delta.get("thinking")))
            case "signature_delta":
                block.signature += text(delta.get("signature"))
            case "input_json_delta":
                block.arguments.add(text(delta.get("partial_json")))
                self.showed_output = True

    def _text(self, block: _Block, piece: str) -> None:
        if piece:
            block.text.add(piece)
            self._show(DeltaKind.TEXT, piece)

    def _thinking(self, block: _Block, piece: str) -> None:
        if piece:
            block.text.add(piece)
            self._show(DeltaKind.REASONING, piece)

    def _has_done_marker(self) -> bool:
        return False

    def _ends_at_eof(self) -> bool:
        return self._finish is not None

    def _candidate(self) -> Candidate:
        blocks = [block for _, block in sorted(self._blocks.items())]
        reasoning = tuple(_reasoning(block) for block in blocks if block.kind in ("thinking", "redacted_thinking"))
        calls = tuple(_call(block, at) for at, block in sorted(self._blocks.items()) if block.kind == "tool_use")
        message = AssistantMessage(
            whole_text("".join(str(block.text) for block in blocks if block.kind == "text")),
            reasoning,
            _state(blocks),
            calls,
            tuple(_opaque(block) for block in blocks if block.kind not in _KNOWN),
            finished(calls, self._finish),
        )
        return Candidate(message, self.usage(), True, self._response_id, self._model)

    def _reported(self) -> Usage:
        return anthropic_usage(dict(self._counters))

    def usage(self) -> Usage:
        # `message_start` counts the output from 0: that is not yet what the answer cost.
        found = super().usage()
        if self._finish is not None or self.is_done:
            return found
        return _without_output(found)

    def _seen(self) -> tuple[int, int, int]:
        blocks = self._blocks.values()
        return (
            sum(block.text.size for block in blocks if block.kind == "text"),
            sum(block.text.size for block in blocks if block.kind == "thinking"),
            max((block.arguments.size for block in blocks), default=0),
        )


_KNOWN = ("text", "thinking", "redacted_thinking", "tool_use")


def _without_output(usage: Usage) -> Usage:
    return Usage(
        request_count=usage.request_count,
        prompt=usage.prompt,
        cache_hit=usage.cache_hit,
        cache_miss=usage.cache_miss,
        is_unknown=True,
    )


def _reasoning(block: _Block) -> Reasoning:
    if block.kind == "redacted_thinking":
        return Reasoning(ReasoningKind.REDACTED, data=text(block.start.get("data")) or None)
    return Reasoning(ReasoningKind.THINKING, str(block.text), block.signature or None, is_complete=block.is_stopped)


def _state(blocks: list[_Block]) -> ReasoningState:
    thinking = [block for block in blocks if block.kind in ("thinking", "redacted_thinking")]
    if any(block.text.is_cut for block in thinking):
        return ReasoningState.TRUNCATED
    if any(block.kind == "thinking" and not block.is_stopped for block in thinking):
        return ReasoningState.INCOMPLETE
    return ReasoningState.COMPLETE if thinking else ReasoningState.EMPTY


def _call(block: _Block, at: int) -> ToolCall:
    arguments = str(block.arguments)
    if not arguments:
        arguments = json.dumps(obj(block.start.get("input")), ensure_ascii=False)
    return ToolCall(text(block.start.get("id")) or f"call_{at}", text(block.start.get("name")), arguments)


def _opaque(block: _Block) -> Opaque:
    start = block.start
    if block.arguments:
        # A server-side tool's input comes in pieces like ours.
        try:
            start = {**start, "input": json.loads(str(block.arguments))}
        except ValueError:
            start = {**start, "input": {}}
    return Opaque(block.kind, json.dumps(start, ensure_ascii=False))
