"""What the stub prints: one JSON object a line, whole lines only."""

from __future__ import annotations

import json
import os
import threading
import uuid
from typing import Any

Event = dict[str, Any]

_TOOLS = ["Task", "AskUserQuestion", "Bash", "Edit", "Read", "Write"]


def new_uuid() -> str:
    """A fresh record or event uuid."""
    return str(uuid.uuid4())


class Printer:
    """Writes events to stdout; several threads may print."""

    def __init__(self, fd: int = 1) -> None:
        self._fd = fd
        self._lock = threading.Lock()
        self.session_id = ""

    def raw(self, data: bytes) -> None:
        """Writes bytes as they are."""
        with self._lock:
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]

    def event(self, event: Event, *, names_session: bool = True) -> None:
        """Prints one event, with the session's id and a uuid of its own unless it has one."""
        if names_session:
            event.setdefault("session_id", self.session_id)
            event.setdefault("uuid", new_uuid())
        self.raw(json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass") + b"\n")

    def lifecycle(self, command_uuid: str, state: str) -> None:
        """queued, started, completed or cancelled."""
        self.event({"type": "command_lifecycle", "command_uuid": command_uuid, "state": state})

    def init(self, cwd: str, model: str, permission_mode: str, version: str) -> None:
        """The event that names the session of a turn."""
        self.event(
            {
                "type": "system",
                "subtype": "init",
                "cwd": cwd,
                "tools": _TOOLS,
                "mcp_servers": [],
                "model": model,
                "permissionMode": permission_mode,
                "slash_commands": ["clear", "compact"],
                "apiKeySource": "ANTHROPIC_API_KEY",
                "claude_code_version": version,
                "output_style": "default",
                "agents": ["general-purpose"],
                "capabilities": ["interrupt_receipt_v1", "interrupt_cancel_queued_v1", "msg_lifecycle_v1"],
            }
        )

    def result(self, **fields: Any) -> None:
        """The end of a turn. As in the real program `type` is not the first key."""
        self.event(
            {
                "duration_api_ms": 1,
                "stop_reason": fields.pop("stop_reason", None),
                "total_cost_usd": 0.000138,
                "usage": {"input_tokens": 11, "output_tokens": 7},
                "permission_denials": [],
                **fields,
                "type": "result",
                "duration_ms": 1,
            }
        )
