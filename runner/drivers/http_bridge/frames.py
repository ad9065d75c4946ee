"""The lines of bridge protocol 4: typed reading of what the bridge prints, and the lines we write. Pure.

Reading never raises on content: a field of the wrong type reads as absent.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from runner.drivers.json_fields import whole_text

PROTOCOL = 4
OPEN_ID = "open"
# The supervisor's own lines in the same stream: the server's raw traffic, for the other witness. They are not ours to read.
WIRE_MARK = b'{"wire":'


def parse_object(line: bytes) -> dict[str, Any] | None:
    """The JSON object of one line; None for anything else, which is then noise."""
    try:
        value = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of the bridge, or an object in one."""

    fields: dict[str, Any]

    @property
    def kind(self) -> str:
        """The event's name, e.g. "opened"."""
        return self.text("ev") or ""

    @property
    def is_ours(self) -> bool:
        """Whether it is of this version of the protocol."""
        return self.fields.get("v") == PROTOCOL and self.kind != ""

    def text(self, name: str) -> str | None:
        value = self.fields.get(name)
        return whole_text(value) if isinstance(value, str) else None

    def number(self, name: str) -> int | None:
        """A whole number that fits 64 bits; true is none."""
        value = self.fields.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
            return None
        return value

    def flag(self, name: str) -> bool:
        return self.fields.get(name) is True

    def object(self, name: str) -> Frame:
        value = self.fields.get(name)
        return Frame(value if isinstance(value, dict) else {})

    def list(self, name: str) -> list[Frame]:
        """The objects of a list."""
        value = self.fields.get(name)
        return [Frame(one) for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _line(op: str, **fields: Any) -> bytes:
    return json.dumps({"v": PROTOCOL, "op": op, **fields}, separators=(",", ":")).encode("ascii") + b"\n"


def open_frame(session_id: str | None, directory: str) -> bytes:
    """The native start (no session yet) or resume."""
    return _line("open", id=OPEN_ID, session=session_id, directory=directory)


def prompt_frame(text: str, *, message_id: str) -> bytes:
    """The user's message with its text untouched: the server gets it as one text part, so nothing in it is a command."""
    return _line("prompt", id=message_id, text=text)


def abort_frame(request_id: str) -> bytes:
    return _line("abort", id=request_id)


def permission_frame(request_id: str, *, allow: bool, message: str) -> bytes:
    """Allowed once, or refused with a message that the model reads."""
    return _line("permission", id=request_id, allow=allow, message=message)


def answers_frame(request_id: str, answers: tuple[tuple[str, ...], ...]) -> bytes:
    """One list of texts for each question, in order."""
    return _line("answers", id=request_id, answers=[list(texts) for texts in answers])


def reject_frame(request_id: str, message: str) -> bytes:
    """A question stays unanswered; natively that ends the turn."""
    return _line("reject", id=request_id, message=message)
