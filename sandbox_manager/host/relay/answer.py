"""The relay's reading of one answer, after it was passed on: what is the same in every protocol.

Two forms, streamed (server-sent events) and whole (one JSON object). A protocol's own module gives the `Reader`. Nothing here changes
what is passed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from sandbox_manager.host.relay.sse import SsePushParser

TEXTS_OPEN_MAX = 1000

OnText = Callable[[str], None]
"""Hears the digest of each text that was delivered."""


class UnreadableError(Exception):
    """The bytes are not an answer of the protocol in a form that is known here."""


def text_sha256(text: str) -> str:
    """The digest of one text, by the rule in `activation`."""
    return hashlib.sha256(_utf8(text)).hexdigest()


@dataclass
class AnswerFacts:
    """What one answer said about itself. None: it did not say.

    `usage` are the upstream's own token counts under the names of Messages, where cached input is counted apart; a protocol
    that counts otherwise is translated by its reader.
    """

    message_id: str | None = None
    model: str | None = None
    stop_reason: str | None = None
    error_type: str | None = None
    is_ended: bool = False
    usage: dict[str, int] = field(default_factory=dict)

    def learn_usage(self, usage: object) -> None:
        """Takes token counts; a later count replaces an earlier one, as the protocols' counts are running totals."""
        if isinstance(usage, dict):
            for name, found in usage.items():
                if (number := count(found)) is not None:
                    self.usage[name] = number


class Reader(Protocol):
    """One protocol's reading of one answer. Raises UnreadableError for what is not of its form."""

    def event(self, data: bytes) -> None:
        """The data of one whole event of a stream."""

    def whole(self, body: dict[str, Any]) -> None:
        """The body of an answer that came whole."""

    def over(self) -> None:
        """No more events come, because the answer ended or because it was cut."""


MakeReader = Callable[[AnswerFacts, OnText], Reader]


class StreamedAnswer:
    """A streamed answer: feed the decoded bytes that were passed on."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._parser = SsePushParser()

    def feed(self, chunk: bytes) -> None:
        """Takes decoded bytes. Raises UnreadableError, EventTooLargeError."""
        for data in self._parser.feed(chunk):
            self._reader.event(data)

    def close(self) -> None:
        """The body is over."""
        self._reader.over()

    def cut(self) -> None:
        """The body broke off, on either side."""
        self._reader.over()


class WholeAnswer:
    """An answer that is one JSON object: nothing can be said before all of it was passed on."""

    def __init__(self, reader: Reader, bytes_max: int) -> None:
        self._reader = reader
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
        body = json_object(bytes(self._body))
        self._body.clear()
        self._reader.whole(body)

    def cut(self) -> None:
        """Half a JSON object says nothing."""
        self._body.clear()


class RunningText:
    """The running digest of one text. Keeps no text but half of a surrogate pair that two deltas may share."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._half = ""
        self.is_empty = True

    def add(self, text: str) -> None:
        """Takes the next piece."""
        if not text:
            return
        self.is_empty = False
        text = self._half + text
        self._half = ""
        if "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        self._hash.update(_utf8(text))

    def sha256(self) -> str:
        """The digest of the whole text."""
        self._hash.update(_utf8(self._half))
        self._half = ""
        return self._hash.hexdigest()


def json_object(data: bytes) -> dict[str, Any]:
    """The object that the bytes spell. Raises UnreadableError."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UnreadableError("not JSON") from error
    if not isinstance(value, dict):
        raise UnreadableError("not a JSON object")
    return value


def text_of(value: object) -> str | None:
    """The value if it is a text."""
    return value if isinstance(value, str) else None


def count(value: object) -> int | None:
    """The value if it is a whole number."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def openai_error(error: object) -> str:
    """The most telling word of an error object of OpenAI's protocols."""
    found = error if isinstance(error, dict) else {}
    return text_of(found.get("code")) or text_of(found.get("type")) or "error"


def openai_usage(usage: object, names: tuple[str, str, str]) -> dict[str, int]:
    """Token counts under the names of Messages. `names`: of input, output, and the details of the input."""
    found = usage if isinstance(usage, dict) else {}
    given, made, details = found.get(names[0]), found.get(names[1]), found.get(names[2])
    cached = count(details.get("cached_tokens")) if isinstance(details, dict) else None
    counts = {
        "input_tokens": None if count(given) is None else (count(given) or 0) - (cached or 0),
        "output_tokens": count(made),
        "cache_read_input_tokens": cached,
    }
    return {name: number for name, number in counts.items() if number is not None}


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        # Pairs that met only after two deltas were joined become one character, lone ones their three-byte form.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass").encode("utf-8", "surrogatepass")
