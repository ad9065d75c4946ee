"""The frames of the built-in agent: typed reading of what it prints, and the lines we write. Pure.

Reading never raises on content: a field of the wrong type reads as absent.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

HANDSHAKE_ID = "init-1"

# Line ends to some readers of lines, though not to JSON. As JSON escapes they are the same text and no line end.
_LINE_ENDS = (("\x85", "\\u0085"), ("\u2028", "\\u2028"), ("\u2029", "\\u2029"))


@dataclass(frozen=True, slots=True)
class Frame:
    """One object that the agent printed."""

    fields: dict[str, Any]

    @property
    def type(self) -> str:
        return self.text("type") or ""

    @property
    def session_id(self) -> str | None:
        return self.text("session_id")

    def text(self, name: str) -> str | None:
        return whole_text(value) if isinstance(value := self.fields.get(name), str) else None

    def number(self, name: str) -> int | None:
        return read_number(self.fields.get(name))

    def objects(self, name: str) -> list[Frame]:
        value = self.fields.get(name)
        return [Frame(each) for each in value if isinstance(each, dict)] if isinstance(value, list) else []

    def object(self, name: str) -> Frame:
        value = self.fields.get(name)
        return Frame(value if isinstance(value, dict) else {})


def parse_frame(line: bytes) -> Frame | None:
    """The frame of one line; None for anything else, which is then noise."""
    try:
        value = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return Frame(value) if isinstance(value, dict) else None


def read_number(value: Any) -> int | None:
    """A whole number that fits 64 bits; JSON's true is none."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
        return None
    return value


def whole_text(value: str) -> str:
    """The text with lone surrogates replaced: JSON can spell them, UTF-8 cannot carry them."""
    if value.isascii():
        return value
    return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def initialize_frame() -> bytes:
    return _line({"type": "initialize", "id": HANDSHAKE_ID})


def user_frame(text: str, *, message_id: str) -> bytes:
    """The text goes as it is: this agent has no commands in it."""
    return _line({"type": "user", "message_id": message_id, "text": text})


def steer_frame(text: str, *, message_id: str) -> bytes:
    return _line({"type": "steer", "message_id": message_id, "text": text})


def interrupt_frame(request_id: str) -> bytes:
    return _line({"type": "interrupt", "id": request_id})


def permission_frame(request_id: str, *, allow: bool, message: str) -> bytes:
    return _line({"type": "answer", "request_id": request_id, "allow": allow, "message": message})


def question_frame(request_id: str, answers: list[list[str]]) -> bytes:
    return _line({"type": "answer", "request_id": request_id, "answers": answers})


def refused_question_frame(request_id: str, why: str) -> bytes:
    return _line({"type": "answer", "request_id": request_id, "refused": why})


def _line(value: dict[str, Any]) -> bytes:
    written = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for character, escape in _LINE_ENDS:
        written = written.replace(character, escape)
    try:
        return written.encode("utf-8") + b"\n"
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n"
