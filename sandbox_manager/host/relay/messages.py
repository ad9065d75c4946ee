"""Reads Anthropic Messages: a text is a content block, delivered when its `content_block_stop` was handed over."""

from __future__ import annotations

from typing import Any

from sandbox_manager.host.relay.answer import (
    TEXTS_OPEN_MAX,
    AnswerFacts,
    OnText,
    RunningText,
    UnreadableError,
    json_object,
    text_of,
    text_sha256,
)


class MessagesReader:
    """See `answer.Reader`."""

    def __init__(self, facts: AnswerFacts, on_text: OnText) -> None:
        self._facts = facts
        self._on_text = on_text
        self._open: dict[int, RunningText] = {}

    def event(self, data: bytes) -> None:
        """Takes one event."""
        event = json_object(data)
        match event.get("type"):
            case "message_start":
                message = event.get("message")
                if isinstance(message, dict):
                    self._learn(message)
            case "content_block_start":
                self._block_start(event)
            case "content_block_delta":
                delta, block = event.get("delta"), self._open.get(_index(event))
                if block is not None and isinstance(delta, dict) and delta.get("type") == "text_delta":
                    block.add(text_of(delta.get("text")) or "")
            case "content_block_stop":
                block = self._open.pop(_index(event), None)
                if block is not None:
                    self._on_text(block.sha256())
            case "message_delta":
                delta = event.get("delta")
                if isinstance(delta, dict):
                    self._facts.stop_reason = text_of(delta.get("stop_reason")) or self._facts.stop_reason
                self._facts.learn_usage(event.get("usage"))
            case "message_stop":
                self._facts.is_ended = True
            case "error":
                self._facts.error_type = _error_type(event)
            case _:
                pass

    def whole(self, body: dict[str, Any]) -> None:
        """Takes a message object, or an error."""
        if body.get("type") == "error":
            self._facts.error_type = _error_type(body)
            return
        content = body.get("content")
        if body.get("type") != "message" or not isinstance(content, list):
            raise UnreadableError("the answer is no message object")
        self._learn(body)
        for block in content:
            if isinstance(block, dict) and block.get("type") == "text":
                self._on_text(text_sha256(text_of(block.get("text")) or ""))
        self._facts.is_ended = True

    def over(self) -> None:
        """A block without its end was not delivered."""
        self._open.clear()

    def _learn(self, message: dict[str, Any]) -> None:
        facts = self._facts
        facts.message_id = text_of(message.get("id")) or facts.message_id
        facts.model = text_of(message.get("model")) or facts.model
        facts.stop_reason = text_of(message.get("stop_reason")) or facts.stop_reason
        facts.learn_usage(message.get("usage"))

    def _block_start(self, event: dict[str, Any]) -> None:
        block = event.get("content_block")
        if isinstance(block, dict) and block.get("type") == "text":
            if len(self._open) >= TEXTS_OPEN_MAX:
                raise UnreadableError("too many blocks are open at once")
            opened = self._open[_index(event)] = RunningText()
            opened.add(text_of(block.get("text")) or "")


def _index(event: dict[str, Any]) -> int:
    index = event.get("index")
    if not isinstance(index, int):
        raise UnreadableError("a block event without its index")
    return index


def _error_type(event: dict[str, Any]) -> str:
    error = event.get("error")
    return (text_of(error.get("type")) if isinstance(error, dict) else None) or "error"
