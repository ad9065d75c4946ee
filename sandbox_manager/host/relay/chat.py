"""Reads OpenAI Chat Completions.

A text is what one choice said. The protocol marks no end of a text: it is over with the choice's finish reason, with `[DONE]`, or when
the answer is over in whichever way. So of an answer that was cut, what had been handed over until then counts as its text: some CLIs
keep it. An empty text is no text.
"""

from __future__ import annotations

from typing import Any

from sandbox_manager.host.relay.answer import (
    TEXTS_OPEN_MAX,
    AnswerFacts,
    OnText,
    RunningText,
    UnreadableError,
    json_object,
    openai_error,
    openai_usage,
    text_of,
    text_sha256,
)

# A model's own refusal is a text beside the content.
_FIELDS = ("content", "refusal")
_USAGE = ("prompt_tokens", "completion_tokens", "prompt_tokens_details")


class ChatReader:
    """See `answer.Reader`."""

    def __init__(self, facts: AnswerFacts, on_text: OnText) -> None:
        self._facts = facts
        self._on_text = on_text
        self._open: dict[tuple[int, str], RunningText] = {}

    def event(self, data: bytes) -> None:
        """Takes one chunk, or `[DONE]`."""
        if data.strip() == b"[DONE]":
            self._finish(None)
            self._facts.is_ended = True
            return
        chunk = json_object(data)
        if "error" in chunk and "choices" not in chunk:
            self._facts.error_type = openai_error(chunk["error"])
            return
        self._learn(chunk)
        for choice in _choices(chunk):
            index, delta = choice.get("index", 0), choice.get("delta")
            if not isinstance(index, int):
                raise UnreadableError("a choice without its index")
            if isinstance(delta, dict):
                for field in _FIELDS:
                    self._add(index, field, text_of(delta.get(field)) or "")
            if (reason := text_of(choice.get("finish_reason"))) is not None:
                self._facts.stop_reason = reason
                self._finish(index)

    def whole(self, body: dict[str, Any]) -> None:
        """Takes a completion object, or an error."""
        if "error" in body and "choices" not in body:
            self._facts.error_type = openai_error(body["error"])
            return
        if not isinstance(body.get("choices"), list):
            raise UnreadableError("the answer is no completion object")
        self._learn(body)
        for choice in _choices(body):
            message = choice.get("message")
            texts = [text_of(message.get(field)) for field in _FIELDS] if isinstance(message, dict) else []
            for text in texts:
                if text:
                    self._on_text(text_sha256(text))
            self._facts.stop_reason = text_of(choice.get("finish_reason")) or self._facts.stop_reason
        self._facts.is_ended = True

    def over(self) -> None:
        """What was handed over is the text."""
        self._finish(None)

    def _add(self, index: int, field: str, piece: str) -> None:
        if not piece:
            return
        if (index, field) not in self._open:
            if len(self._open) >= TEXTS_OPEN_MAX:
                raise UnreadableError("too many texts are open at once")
            self._open[index, field] = RunningText()
        self._open[index, field].add(piece)

    def _finish(self, index: int | None) -> None:
        """The texts of one choice are whole, or of all."""
        for key in [key for key in self._open if index in (None, key[0])]:
            self._on_text(self._open.pop(key).sha256())

    def _learn(self, body: dict[str, Any]) -> None:
        facts = self._facts
        facts.message_id = text_of(body.get("id")) or facts.message_id
        facts.model = text_of(body.get("model")) or facts.model
        facts.learn_usage(openai_usage(body.get("usage"), _USAGE))


def _choices(body: dict[str, Any]) -> list[dict[str, Any]]:
    choices = body.get("choices")
    if choices is None:
        return []
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise UnreadableError("choices are not a list of objects")
    return choices
