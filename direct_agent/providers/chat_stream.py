"""Reads a Chat Completions stream.

Complete at `[DONE]`, or at a clean end after a finish reason. Tool calls are put together by index and let go, in
index order, only then.
"""

from __future__ import annotations

from typing import Any

from direct_agent.providers.event_json import count, index, items, obj, text
from direct_agent.providers.growing_text import GrowingText
from direct_agent.providers.sse_lines import MIB
from direct_agent.providers.stream_reader import REASONING_BYTES_MAX, DeltaKind, StreamReader, finished
from direct_agent.transcript import (
    AssistantMessage,
    Candidate,
    Finish,
    Reasoning,
    ReasoningKind,
    ReasoningState,
    ToolCall,
    Usage,
)

_FINISHES = {
    "stop": Finish.STOP,
    "tool_calls": Finish.TOOL_CALLS,
    "function_call": Finish.TOOL_CALLS,
    "length": Finish.LENGTH,
    "content_filter": Finish.CONTENT_FILTER,
}


class _Call:
    def __init__(self, at: int) -> None:
        self.call_id = f"call_{at}"
        self.name = ""
        self.arguments = GrowingText()


class ChatStream(StreamReader):
    line_bytes_max = MIB

    def __init__(self, provider: str) -> None:
        super().__init__(provider)
        self._text = GrowingText()
        self._reasoning = GrowingText(REASONING_BYTES_MAX)
        self._calls: dict[int, _Call] = {}
        self._finish: Finish | None = None
        self._usage = Usage()
        self._response_id: str | None = None
        self._model: str | None = None

    def _event(self, event: dict[str, Any]) -> None:
        if event.get("error") is not None:
            self._error_event(event["error"])
        self._response_id = self._response_id or text(event.get("id")) or None
        self._model = self._model or text(event.get("model")) or None
        if (usage := event.get("usage")) is not None:
            self._usage = chat_usage(obj(usage))
        for each in items(event.get("choices")):
            choice = obj(each)
            if index(choice.get("index")) == 0:
                self._choice(choice)

    def _choice(self, choice: dict[str, Any]) -> None:
        delta = obj(choice.get("delta"))
        if piece := text(delta.get("reasoning_content")) or text(delta.get("reasoning")):
            self._reasoning.add(piece)
            self._show(DeltaKind.REASONING, piece)
        if piece := text(delta.get("content")) or text(delta.get("refusal")):
            self._text.add(piece)
            self._show(DeltaKind.TEXT, piece)
        for at, each in enumerate(items(delta.get("tool_calls"))):
            self._tool_piece(obj(each), at)
        if reason := text(choice.get("finish_reason")):
            self._finish = _FINISHES.get(reason, Finish.OTHER)

    def _tool_piece(self, piece: dict[str, Any], position: int) -> None:
        at = index(piece.get("index"), position)
        call = self._calls.setdefault(at, _Call(at))
        call.call_id = text(piece.get("id")) or call.call_id
        function = obj(piece.get("function"))
        name = text(function.get("name"))
        self._show(DeltaKind.TOOL, name if name and not call.name else "")
        call.name = name or call.name
        call.arguments.add(text(function.get("arguments")))

    def _has_done_marker(self) -> bool:
        return True

    def _ends_at_eof(self) -> bool:
        return self._finish is not None

    def _candidate(self) -> Candidate:
        calls = tuple(
            ToolCall(call.call_id, call.name, str(call.arguments) or "{}") for _, call in sorted(self._calls.items())
        )
        reasoning = str(self._reasoning)
        state = ReasoningState.COMPLETE if reasoning else ReasoningState.EMPTY
        message = AssistantMessage(
            str(self._text),
            (Reasoning(ReasoningKind.TEXT, reasoning),) if reasoning else (),
            ReasoningState.TRUNCATED if self._reasoning.is_cut else state,
            calls,
            finish=finished(calls, self._finish),
        )
        return Candidate(message, self.usage(), True, self._response_id, self._model)

    def _reported(self) -> Usage:
        return self._usage

    def _seen(self) -> tuple[int, int, int]:
        longest = max((call.arguments.size for call in self._calls.values()), default=0)
        return self._text.size, self._reasoning.size, longest


def chat_usage(usage: dict[str, Any]) -> Usage:
    """Accepts OpenAI's counters, DeepSeek's cache counters, and Anthropic-style ones."""
    if "prompt_tokens" not in usage and "input_tokens" in usage:
        return anthropic_usage(usage)
    prompt, completion = count(usage.get("prompt_tokens")), count(usage.get("completion_tokens"))
    hit = count(usage.get("prompt_cache_hit_tokens"))
    miss = count(usage.get("prompt_cache_miss_tokens"))
    details = usage.get("prompt_tokens_details")
    if hit is None and isinstance(details, dict):
        hit = count(details.get("cached_tokens"))
    if miss is None and hit is not None and prompt is not None:
        miss = max(0, prompt - hit)
    output = usage.get("completion_tokens_details")
    return Usage(
        prompt=prompt,
        completion=completion,
        reasoning=count(output.get("reasoning_tokens")) if isinstance(output, dict) else None,
        cache_hit=hit,
        cache_miss=miss,
        total=_total(count(usage.get("total_tokens")), prompt, completion),
    )


def anthropic_usage(usage: dict[str, Any]) -> Usage:
    """Counters whose input leaves out what the cache gave or took; ours includes both."""
    plain, completion = count(usage.get("input_tokens")), count(usage.get("output_tokens"))
    read, written = count(usage.get("cache_read_input_tokens")), count(usage.get("cache_creation_input_tokens"))
    prompt = None if plain is None else plain + (read or 0) + (written or 0)
    miss = None if plain is None or (read is None and written is None) else plain + (written or 0)
    return Usage(
        prompt=prompt, completion=completion, cache_hit=read, cache_miss=miss, total=_total(None, prompt, completion)
    )


def _total(said: int | None, prompt: int | None, completion: int | None) -> int | None:
    if said is not None or prompt is None or completion is None:
        return said
    return prompt + completion
