"""Reads a copy of a Messages answer, after it was passed on: which texts, ids, models, usage, and how it ended.

Two forms, streamed (server-sent events) and whole (one JSON object). Nothing here changes what is passed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sandbox_manager.host.relay.sse import SsePushParser

BLOCKS_OPEN_MAX = 1000


class UnreadableError(Exception):
    """The bytes are not a Messages answer in a form that is known here."""


def text_sha256(text: str) -> str:
    """The digest of one text block, by the rule in `activation`."""
    return hashlib.sha256(_utf8(text)).hexdigest()


@dataclass
class AnswerFacts:
    """What one answer said about itself. None: it did not say. Token counts are the upstream's own."""

    message_id: str | None = None
    model: str | None = None
    stop_reason: str | None = None
    error_type: str | None = None
    is_ended: bool = False
    usage: dict[str, int] = field(default_factory=dict)

    def learn_message(self, message: dict[str, Any]) -> None:
        """Takes id, model, stop reason and usage from a message object."""
        self.message_id = _text(message.get("id")) or self.message_id
        self.model = _text(message.get("model")) or self.model
        self.stop_reason = _text(message.get("stop_reason")) or self.stop_reason
        self.learn_usage(message.get("usage"))

    def learn_usage(self, usage: object) -> None:
        """Takes token counts; a later count replaces an earlier one, as the protocol's counts are running totals."""
        if isinstance(usage, dict):
            for name, count in usage.items():
                if isinstance(count, int) and not isinstance(count, bool):
                    self.usage[name] = count


class StreamedAnswer:
    """A streamed answer: feed the decoded bytes that were passed on."""

    def __init__(self, facts: AnswerFacts, on_text: Callable[[str], None]) -> None:
        self._facts = facts
        self._on_text = on_text
        self._parser = SsePushParser()
        self._open: dict[int, _OpenText] = {}

    def feed(self, chunk: bytes) -> None:
        """Takes decoded bytes. Raises UnreadableError, EventTooLargeError."""
        for data in self._parser.feed(chunk):
            self._event(_json_object(data))

    def close(self) -> None:
        """The body is over. A block without its end was not delivered, so there is nothing left to do."""
        self._open.clear()

    def _event(self, event: dict[str, Any]) -> None:
        match event.get("type"):
            case "message_start":
                message = event.get("message")
                if isinstance(message, dict):
                    self._facts.learn_message(message)
            case "content_block_start":
                self._block_start(event)
            case "content_block_delta":
                delta, block = event.get("delta"), self._open.get(_index(event))
                if block is not None and isinstance(delta, dict) and delta.get("type") == "text_delta":
                    block.add(_text(delta.get("text")) or "")
            case "content_block_stop":
                block = self._open.pop(_index(event), None)
                if block is not None:
                    self._on_text(block.sha256())
            case "message_delta":
                delta = event.get("delta")
                if isinstance(delta, dict):
                    self._facts.stop_reason = _text(delta.get("stop_reason")) or self._facts.stop_reason
                self._facts.learn_usage(event.get("usage"))
            case "message_stop":
                self._facts.is_ended = True
            case "error":
                self._facts.error_type = _error_type(event)
            case _:
                pass

    def _block_start(self, event: dict[str, Any]) -> None:
        block = event.get("content_block")
        if isinstance(block, dict) and block.get("type") == "text":
            if len(self._open) >= BLOCKS_OPEN_MAX:
                raise UnreadableError("too many blocks are open at once")
            opened = self._open[_index(event)] = _OpenText()
            opened.add(_text(block.get("text")) or "")


class WholeAnswer:
    """An answer that is one JSON object: nothing can be said before all of it was passed on."""

    def __init__(self, facts: AnswerFacts, on_text: Callable[[str], None], bytes_max: int) -> None:
        self._facts = facts
        self._on_text = on_text
        self._bytes_max = bytes_max
        self._body = bytearray()

    def feed(self, chunk: bytes) -> None:
        """Takes decoded bytes. Raises UnreadableError when they grow beyond the bound."""
        self._body += chunk
        if len(self._body) > self._bytes_max:
            self._body.clear()
            raise UnreadableError(f"the answer is larger than {self._bytes_max} bytes")

    def close(self) -> None:
        """All of the body was passed on. Raises UnreadableError."""
        message = _json_object(bytes(self._body))
        self._body.clear()
        if message.get("type") == "error":
            self._facts.error_type = _error_type(message)
            return
        content = message.get("content")
        if message.get("type") != "message" or not isinstance(content, list):
            raise UnreadableError("the answer is no message object")
        self._facts.learn_message(message)
        for block in content:
            if isinstance(block, dict) and block.get("type") == "text":
                self._on_text(text_sha256(_text(block.get("text")) or ""))
        self._facts.is_ended = True


class _OpenText:
    """The running digest of one text block. Keeps no text but half of a surrogate pair that two deltas may share."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._half = ""

    def add(self, text: str) -> None:
        text = self._half + text
        self._half = ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        self._hash.update(_utf8(text))

    def sha256(self) -> str:
        self._hash.update(_utf8(self._half))
        self._half = ""
        return self._hash.hexdigest()


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        # Pairs that met only after two deltas were joined become one character, lone ones their three-byte form.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass").encode("utf-8", "surrogatepass")


def _json_object(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UnreadableError("not JSON") from error
    if not isinstance(value, dict):
        raise UnreadableError("not a JSON object")
    return value


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _index(event: dict[str, Any]) -> int:
    index = event.get("index")
    if not isinstance(index, int):
        raise UnreadableError("a block event without its index")
    return index


def _error_type(event: dict[str, Any]) -> str:
    error = event.get("error")
    return (_text(error.get("type")) if isinstance(error, dict) else None) or "error"
