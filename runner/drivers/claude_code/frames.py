"""The frames of Claude Code's stream-json protocol: typed reading of what it prints, and the lines we write. Pure.

Facts observed on 2.1.220. Reading never raises on content: a field of the wrong type reads as absent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from runner.drivers.json_fields import objects, read_list, read_number, read_object, read_text, to_json, whole_text

HANDSHAKE_REQUEST_ID = "init-1"


@dataclass(frozen=True, slots=True)
class Frame:
    """One object that the CLI printed."""

    fields: dict[str, Any]

    @property
    def type(self) -> str:
        return self.text("type") or ""

    @property
    def kind(self) -> str:
        """ "type" or "type/subtype", e.g. "system/init"."""
        subtype = self.text("subtype")
        return f"{self.type}/{subtype}" if self.type == "system" and subtype else self.type

    @property
    def parent_id(self) -> str | None:
        """The Task call that this frame belongs to; None for the root."""
        return self.text("parent_tool_use_id")

    @property
    def is_root(self) -> bool:
        """Any value but null or absent makes it a sub-agent's frame: a parent of an unknown form is still a parent."""
        return self.fields.get("parent_tool_use_id") is None

    @property
    def session_id(self) -> str | None:
        return self.text("session_id")

    def text(self, name: str) -> str | None:
        return read_text(self.fields, name)

    def number(self, name: str) -> int | None:
        return read_number(self.fields, name)

    def object(self, name: str) -> dict[str, Any]:
        return read_object(self.fields, name)

    def list(self, name: str) -> list[Any]:
        return read_list(self.fields, name)


def text_of_content(content: Any) -> str:
    """The text of a tool result's content: a string, or the text blocks of a list, joined by line feeds."""
    if isinstance(content, str):
        return whole_text(content)
    if not isinstance(content, list):
        return ""
    texts = (read_text(block, "text") for block in objects(content) if block.get("type") == "text")
    return "\n".join(text for text in texts if text is not None)


# Line ends to some readers of lines, though not to JSON. As JSON escapes they are the same text and no line end.
_LINE_ENDS = (("\x85", "\\u0085"), ("\u2028", "\\u2028"), ("\u2029", "\\u2029"))


def _line(value: dict[str, Any]) -> bytes:
    written = to_json(value)
    for character, escape in _LINE_ENDS:
        written = written.replace(character, escape)
    return written.encode("utf-8") + b"\n"


def initialize_frame() -> bytes:
    """The only frame that a freshly started process answers before a prompt."""
    request = {"subtype": "initialize"}
    return _line({"type": "control_request", "request_id": HANDSHAKE_REQUEST_ID, "request": request})


def user_frame(text: str, *, message_id: str) -> bytes:
    """The user's message with its text untouched.

    The CLI runs a command when its *last* text block begins with a slash. An empty block after it makes the text an
    ordinary message: the model receives exactly the one block. No other text needs it, so no other text gets it.
    """
    content = [{"type": "text", "text": text}]
    if text.startswith("/"):
        content.append({"type": "text", "text": ""})
    return _line({"type": "user", "uuid": message_id, "message": {"role": "user", "content": content}})


def interrupt_frame(request_id: str) -> bytes:
    """The native interrupt. `cancel_queued`: a message that the CLI took and has not begun on is cancelled too; without it
    the CLI answers and lets that message run (observed, as is the field: capability `interrupt_cancel_queued_v1`).
    """
    request = {"subtype": "interrupt", "cancel_queued": True}
    return _line({"type": "control_request", "request_id": request_id, "request": request})


def allow_frame(request_id: str, tool_input: dict[str, Any]) -> bytes:
    """The call may be made. The CLI takes the input from the answer, so it is what the CLI itself showed."""
    return _success(request_id, {"behavior": "allow", "updatedInput": tool_input})


def deny_frame(request_id: str, message: str) -> bytes:
    """The call may not be made; the model reads the message as the tool's result."""
    return _success(request_id, {"behavior": "deny", "message": message})


def _success(request_id: str, answer: dict[str, Any]) -> bytes:
    response = {"subtype": "success", "request_id": request_id, "response": answer}
    return _line({"type": "control_response", "response": response})


def error_answer_frame(request_id: str, why: str) -> bytes:
    """The native refusal of a control request."""
    response = {"subtype": "error", "request_id": request_id, "error": why}
    return _line({"type": "control_response", "response": response})
