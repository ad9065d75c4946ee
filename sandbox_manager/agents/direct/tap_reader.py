"""Reads what the built-in agent printed during one activation, and says what it proves. Knows nothing of what was written to it.

Lines are framed on the byte 0x0A first and decoded afterwards. A line that is no JSON object is counted as noise and never joined to a
neighbour. The turn begins with `accepted` for our message, which names the session and says that the message is on disk, and ends with
`turn_end` for our message; its `outcome` alone says whether it failed. Texts are taken from whole `assistant` events, not from deltas.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from sandbox_manager.agents.tap_lines import TapLines
from sandbox_manager.core.values import AssistantText, NativeEnd, TapFindings

_CONTENT_TYPES = frozenset({"text_delta", "assistant", "tool_started", "tool_result", "request", "turn_end"})


def text_digest(text: str) -> str:
    """sha256 of a text's UTF-8 bytes. Half surrogate pairs, which JSON can carry, keep their own bytes."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class DirectTapReader:
    """One activation's reader. `message_id` is our message's id; None reads the first turn that is accepted."""

    def __init__(self, *, message_id: str | None, start_offset: int) -> None:
        self._message_id = message_id
        self._lines = TapLines(start_offset)
        self._session_ids: list[str] = []
        self._handshake: str | None = None
        self._handshake_session_id: str | None = None
        self._handshake_store: str | None = None
        self._agent_version: str | None = None
        self._started = False
        self._is_named = False
        self._identity_before_output: bool | None = None
        self._end: NativeEnd | None = None
        self._assistant: list[AssistantText] = []
        self._printed: dict[str, None] = {}
        self._bases: dict[str, None] = {}
        self._retry_seen = False
        self._noise_lines = 0
        self._open_requests: dict[str, None] = {}

    def feed(self, data: bytes) -> None:
        """Takes the next raw bytes, in any cuts."""
        for line in self._lines.feed(data):
            if line.content is None:
                self._noise_lines += 1
            elif line.content.strip():
                self._read(line.content, line.end_offset)

    def findings(self) -> TapFindings:
        """What the complete lines so far say. A half line at the end says nothing."""
        return TapFindings(
            session_ids=tuple(self._session_ids),
            reset_to=None,
            identity_before_output=self._identity_before_output is True,
            handshake=self._handshake,
            message_started=self._started,
            end=self._end,
            assistant=tuple(self._assistant),
            retry_seen=self._retry_seen,
            background_pending=False,
            lifecycle_closed=self._end is not None,
            noise_lines=self._noise_lines,
            open_requests=tuple(self._open_requests),
            agent_version=self._agent_version,
            printed=tuple(self._printed),
            bases=tuple(self._bases),
            handshake_session_id=self._handshake_session_id,
            handshake_store=self._handshake_store,
        )

    def _read(self, line: bytes, end_offset: int) -> None:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            self._noise_lines += 1
            return
        if not isinstance(event, dict) or not isinstance(event.get("type"), str):
            self._noise_lines += 1
            return
        self._event(event, line, end_offset)

    def _event(self, event: dict[str, Any], line: bytes, end_offset: int) -> None:
        session_id = _text(event, "session_id")
        if session_id is not None and session_id not in self._session_ids:
            self._session_ids.append(session_id)
        kind = event["type"]
        if kind == "accepted" and self._is_ours(event) and not self._started:
            self._started, self._is_named = True, session_id is not None
        elif kind in _CONTENT_TYPES and self._identity_before_output is None and self._is_running(event):
            self._identity_before_output = self._is_named
        match kind:
            case "initialized":
                self._initialized(event)
            case "initialize_failed":
                self._handshake = "NO_SUCH_SESSION" if event.get("cause") == "NO_SUCH_SESSION" else "REFUSED"
            case "assistant" if self._is_running(event):
                self._assistant_event(event)
            case "compacted" if event.get("is_changed") is True and (uuid := _text(event, "uuid")) is not None:
                self._bases[uuid] = None
            case "retrying":
                self._retry_seen = True
            case "request" if self._end is None and (request_id := _text(event, "request_id")) is not None:
                self._open_requests[request_id] = None
            case "request_closed":
                self._open_requests.pop(str(event.get("request_id")), None)
            case "turn_end" if self._is_ours(event) and self._end is None:
                self._ended(event, line, end_offset)
            case _:
                pass

    def _is_ours(self, event: dict[str, Any]) -> bool:
        message_id = _text(event, "message_id")
        if self._message_id is None:
            self._message_id = message_id
        return message_id is not None and message_id == self._message_id

    def _is_running(self, event: dict[str, Any]) -> bool:
        if event["type"] == "turn_end":
            return self._end is None and self._is_ours(event)
        return self._started and self._end is None

    def _initialized(self, event: dict[str, Any]) -> None:
        self._handshake = "OK"
        self._handshake_session_id = _text(event, "session_id")
        self._handshake_store = _text(event, "store")
        self._agent_version = _text(event, "version")

    def _assistant_event(self, event: dict[str, Any]) -> None:
        uuid, text = _text(event, "uuid"), _text(event, "text")
        if uuid is not None:
            self._printed[uuid] = None
        if text:
            self._assistant.append(AssistantText(uuid=uuid, text_digest=text_digest(text)))

    def _ended(self, event: dict[str, Any], line: bytes, end_offset: int) -> None:
        outcome, status = _text(event, "outcome"), event.get("status")
        self._end = NativeEnd(
            # Only one word is good; a word that is not known here is not.
            is_error=outcome != "completed",
            reason=_text(event, "reason"),
            status=status if isinstance(status, int) and not isinstance(status, bool) else None,
            tap_offset=end_offset,
            evidence_digest=hashlib.sha256(line).hexdigest(),
            cancelled=outcome == "cancelled",
        )
        self._open_requests.clear()


def _text(event: dict[str, Any], name: str) -> str | None:
    value = event.get(name)
    return value if isinstance(value, str) else None
