"""Reads the model's name from the first bytes of a request body, for the span's name; the body itself is only passed.

Only whole top-level members that lie in the first HEAD_BYTES are read. Not found there: unknown.
"""

from __future__ import annotations

import json

HEAD_BYTES = 64 * 1024
_SPACE = " \t\r\n"


class RequestPeek:
    """Keeps the head of one body as it streams through."""

    def __init__(self) -> None:
        self._head = bytearray()

    def feed(self, chunk: bytes) -> None:
        """Takes bytes of the body in order."""
        if len(self._head) < HEAD_BYTES:
            self._head += chunk[: HEAD_BYTES - len(self._head)]

    def model(self) -> str | None:
        """The top-level `model`, or None."""
        # A character cut at the end of the head can only stand in a value that is not whole anyway.
        value = _member(bytes(self._head).decode("utf-8", "replace"), "model")
        return value if isinstance(value, str) else None


def _member(text: str, wanted: str) -> object:
    decoder = json.JSONDecoder()
    at = _skip(text, 0)
    if text[at : at + 1] != "{":
        return None
    try:
        while text[at : at + 1] in ("{", ","):
            key, at = decoder.raw_decode(text, _skip(text, at + 1))
            at = _skip(text, at)
            if not isinstance(key, str) or text[at : at + 1] != ":":
                return None
            value, at = decoder.raw_decode(text, _skip(text, at + 1))
            if key == wanted:
                return value
            at = _skip(text, at)
    except (ValueError, RecursionError):
        return None
    return None


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at
