"""The frames of Codex's app-server: typed reading of what it prints, and the lines we write. Pure.

JSON-RPC 2.0 without the member "jsonrpc", one object a line. Observed on 0.171.0. Reading never raises on content: a
field of the wrong type reads as absent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from runner.drivers.json_fields import read_object, read_text, to_json

INITIALIZE_ID = "init-1"
THREAD_ID = "thread-1"

CLIENT_NAME = "standfast"
CLIENT_VERSION = "1"

# The conversation's permission mode, as the approval policy that this CLI knows. `ask` and `deny` take the policy under
# which every command and every file change is asked for, even `cat` (observed); in `deny` the driver declines each.
APPROVAL_POLICIES = {"auto": "never", "ask": "untrusted", "deny": "untrusted"}
SANDBOX = "danger-full-access"


@dataclass(frozen=True, slots=True)
class Frame:
    """One object that the CLI printed: a notification, a request of its own, or the answer to one of ours."""

    fields: dict[str, Any]

    @property
    def method(self) -> str | None:
        return read_text(self.fields, "method")

    @property
    def kind(self) -> str:
        """The method, e.g. "turn/completed"; "response" or "error response" for an answer."""
        if self.method is not None:
            return self.method
        return "error response" if "error" in self.fields else "response"

    @property
    def answers(self) -> str | None:
        """The id of our request that this frame answers. Our ids are texts."""
        return read_text(self.fields, "id") if self.method is None else None

    @property
    def asks(self) -> int | str | None:
        """The id of a request of the CLI, as it spells it: its ids count from 0 in each process."""
        found = self.fields.get("id")
        if self.method is None or isinstance(found, bool) or not isinstance(found, int | str):
            return None
        return found

    @property
    def params(self) -> dict[str, Any]:
        return read_object(self.fields, "params")

    @property
    def result(self) -> dict[str, Any]:
        return read_object(self.fields, "result")

    @property
    def error(self) -> dict[str, Any] | None:
        found = self.fields.get("error")
        return found if isinstance(found, dict) else None

    @property
    def thread_id(self) -> str | None:
        return read_text(self.params, "threadId")

    @property
    def turn_id(self) -> str | None:
        """The turn that a notification belongs to: `turnId`, or the id of the `turn` that it carries."""
        return read_text(self.params, "turnId") or read_text(read_object(self.params, "turn"), "id")

    @property
    def item(self) -> dict[str, Any]:
        return read_object(self.params, "item")


# --- what we write ----------------------------------------------------------------------------------------------------
# Line ends to some readers of lines, though not to JSON. As JSON escapes they are the same text and no line end.
_LINE_ENDS = (("\x85", "\\u0085"), ("\u2028", "\\u2028"), ("\u2029", "\\u2029"))


def _line(value: dict[str, Any]) -> bytes:
    written = to_json(value)
    for character, escape in _LINE_ENDS:
        written = written.replace(character, escape)
    return written.encode("utf-8") + b"\n"


def initialize_frame() -> bytes:
    client = {"name": CLIENT_NAME, "title": None, "version": CLIENT_VERSION}
    return _line({"id": INITIALIZE_ID, "method": "initialize", "params": {"clientInfo": client, "capabilities": None}})


def initialized_frame() -> bytes:
    return _line({"method": "initialized"})


def thread_frame(
    *, thread_id: str | None, workspace: str, permission_mode: str, model: str | None, resumes: bool
) -> bytes:
    """The native start or resume.

    A thread keeps its own approval policy, sandbox and model, which win over the configuration at a resume (observed):
    so all that was granted is said each time. `excludeTurns`, since the list of turns comes from another record than the
    model's history and proves nothing.
    """
    policy = APPROVAL_POLICIES.get(permission_mode, permission_mode)
    params: dict[str, Any] = {"cwd": workspace, "approvalPolicy": policy, "sandbox": SANDBOX}
    if model is not None:
        params["model"] = model
    if resumes:
        params = {"threadId": thread_id, **params, "excludeTurns": True}
    return _line({"id": THREAD_ID, "method": "thread/resume" if resumes else "thread/start", "params": params})


def turn_request_id(message_id: str) -> str:
    return f"turn-{message_id}"


def turn_frame(text: str, *, thread_id: str, message_id: str) -> bytes:
    """The user's message with its text untouched: no text is a command here ("/clear", "!ls", "@file" pass; observed)."""
    content = [{"type": "text", "text": text}]
    params = {"threadId": thread_id, "clientUserMessageId": message_id, "input": content}
    return _line({"id": turn_request_id(message_id), "method": "turn/start", "params": params})


def steer_request_id(message_id: str) -> str:
    return f"steer-{message_id}"


def steer_frame(text: str, *, thread_id: str, turn_id: str, message_id: str) -> bytes:
    """A further message into the running turn. Refused by the CLI when another turn, or none, is running (observed)."""
    content = [{"type": "text", "text": text}]
    params = {
        "threadId": thread_id,
        "expectedTurnId": turn_id,
        "clientUserMessageId": message_id,
        "input": content,
    }
    return _line({"id": steer_request_id(message_id), "method": "turn/steer", "params": params})


def interrupt_frame(request_id: str, *, thread_id: str, turn_id: str | None) -> bytes:
    """The native interrupt. An empty turn id means whatever turn is running (observed), for one whose id is not known yet."""
    params = {"threadId": thread_id, "turnId": turn_id or ""}
    return _line({"id": request_id, "method": "turn/interrupt", "params": params})


def result_frame(request_id: int | str, result: dict[str, Any]) -> bytes:
    """The answer to a request of the CLI."""
    return _line({"id": request_id, "result": result})


def error_frame(request_id: int | str, why: str) -> bytes:
    """The protocol's refusal of a request of the CLI."""
    return _line({"id": request_id, "error": {"code": -32601, "message": why}})
