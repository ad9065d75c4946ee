"""The frames of Pi's RPC protocol: typed reading of what it prints, and the lines we write. Pure.

Facts observed on 1.6.0. Reading never raises on content: a field of the wrong type reads as absent.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from runner.drivers.json_fields import to_json, whole_text

HANDSHAKE_ID = "start"
_STATUS = re.compile(r"\s*(\d{3})\b")


def parse_object(line: bytes) -> dict[str, Any] | None:
    """The JSON object of one line; None for anything else, which is then noise."""
    try:
        value = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


@dataclass(frozen=True, slots=True)
class Frame:
    """One object that the CLI printed, or one inside of it."""

    fields: dict[str, Any]

    @property
    def kind(self) -> str:
        """The type; of an answer the command it answers: "get_state", "prompt", "abort"."""
        type_ = self.text("type") or ""
        return (self.text("command") or type_) if type_ == "response" else type_

    @property
    def is_answer(self) -> bool:
        return self.text("type") == "response"

    def text(self, name: str) -> str | None:
        value = self.fields.get(name)
        return whole_text(value) if isinstance(value, str) else None

    def number(self, name: str) -> int | None:
        """A whole number that fits 64 bits. JSON's 1.0 counts as one; true does not."""
        value = self.fields.get(name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
            return None
        return value

    def object(self, name: str) -> Frame:
        value = self.fields.get(name)
        return Frame(value if isinstance(value, dict) else {})

    def objects(self, name: str) -> list[Frame]:
        """The members of a list that are objects."""
        value = self.fields.get(name)
        return [Frame(one) for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def status_of(error: str | None) -> int | None:
    """The provider's status, with which Pi begins the text of a failed call: "500 {...}" or "401: {...}"."""
    found = _STATUS.match(error) if error is not None else None
    return int(found.group(1)) if found is not None else None


def _line(value: dict[str, Any]) -> bytes:
    # Pi cuts its input at the line feed only; as escapes the other line ends of Unicode are the same text to everybody.
    written = to_json(value)
    for character, escape in (("\x85", "\\u0085"), ("\u2028", "\\u2028"), ("\u2029", "\\u2029")):
        written = written.replace(character, escape)
    return written.encode("utf-8") + b"\n"


def state_frame(request_id: str) -> bytes:
    """Asks for the state, which names the session and its file. Reads only."""
    return _line({"id": request_id, "type": "get_state"})


def prompt_frame(text: str, *, message_id: str) -> bytes:
    """The user's message with its text untouched."""
    return _line({"id": message_id, "type": "prompt", "message": text})


def steer_frame(text: str, *, message_id: str) -> bytes:
    """A further message into the running turn: it goes to the model after the reply or the tool that is under way."""
    return _line({"id": message_id, "type": "steer", "message": text})


def abort_frame(request_id: str) -> bytes:
    return _line({"id": request_id, "type": "abort"})


def cancel_answer_frame(request_id: str) -> bytes:
    """The native refusal of an extension's question. Extensions are off, so none is asked."""
    return _line({"type": "extension_ui_response", "id": request_id, "cancelled": True})
