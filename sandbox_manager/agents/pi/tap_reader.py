"""Reads what Pi printed during one activation, and says what it proves. Knows nothing of what was written to it.

No event of Pi names the session; only the answer to `get_state` does. One is asked for in the handshake, one right before our message
(`who-<message id>`), and one when the turn is settled. So what lies behind the second answer is of our turn, and nothing before it is.

Where the turn ends: `agent_end` with `willRetry` false, after our prompt was accepted. When a retry's wait is aborted no such `agent_end`
comes, and `agent_settled` alone ends it (observed). The turn is closed when `agent_settled` was seen and a `get_state` was answered after
it: then the process is idle, and still in the same session. A failure is read from the last assistant message's `stopReason`: a failed
call looks like a normal end otherwise. `length` is a failure too: the reply is cut, and Pi takes it out of the context by itself.

What counts as an assistant text: `message_end` of the role assistant. A text of a try that failed, was cut or aborted is marked: the relay
never delivered it as a whole, and the next try begins anew.
"""

from __future__ import annotations

import hashlib
import json
import re

from sandbox_manager.agents.pi.gate_grammar import HANDSHAKE_ID
from sandbox_manager.agents.pi.messages import compaction_key, message_key, text_digest, texts_of
from sandbox_manager.agents.tap_lines import TapLines
from sandbox_manager.core.values import AssistantText, NativeEnd, TapFindings

_CONTENT_TYPES = frozenset(
    {
        "message_start",
        "message_update",
        "message_end",
        "tool_execution_start",
        "tool_execution_update",
        "tool_execution_end",
    }
)
_WHOLE = frozenset({"stop", "toolUse"})
_STATUS = re.compile(r"\s*(\d{3})\b")


class PiTapReader:
    """One activation's reader. `message_id` is our prompt's id; None reads by order alone."""

    def __init__(self, *, message_id: str | None, start_offset: int) -> None:
        self._message_id = message_id
        self._lines = TapLines(start_offset)
        self._session_ids: dict[str, None] = {}
        self._handshake: str | None = None
        self._handshake_session_id: str | None = None
        self._handshake_store: str | None = None
        self._is_named = False  # by an answer that can only be of this activation
        self._is_accepted = False
        self._is_started = False
        self._identity_before_output: bool | None = None
        self._end: NativeEnd | None = None
        self._is_settled = False
        self._is_closed = False
        self._assistant: list[AssistantText] = []
        self._printed: dict[str, None] = {}
        self._bases: dict[str, None] = {}
        self._message_printed_as: str | None = None
        self._retry_seen = False
        self._queued = False
        self._noise_lines = 0
        self._open_requests: dict[str, None] = {}

    def feed(self, data: bytes) -> None:
        """Takes the next raw bytes, in any cuts."""
        for line in self._lines.feed(data):
            if line.content is None:
                self._noise_lines += 1
            elif line.content.strip():
                self._line(line.content, line.end_offset)

    def findings(self) -> TapFindings:
        """What the complete lines so far say. A half line at the end says nothing."""
        return TapFindings(
            session_ids=tuple(self._session_ids),
            reset_to=None,
            identity_before_output=self._identity_before_output is True,
            handshake=self._handshake,
            message_started=self._is_started,
            end=self._end,
            assistant=tuple(self._assistant),
            retry_seen=self._retry_seen,
            background_pending=self._queued,
            lifecycle_closed=self._is_closed,
            noise_lines=self._noise_lines,
            open_requests=tuple(self._open_requests),
            agent_version=None,
            printed=tuple(self._printed),
            bases=tuple(self._bases),
            message_printed_as=self._message_printed_as,
            handshake_session_id=self._handshake_session_id,
            handshake_store=self._handshake_store,
        )

    # --- one line ------------------------------------------------------------------------------------------------------------------
    def _line(self, line: bytes, end_offset: int) -> None:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict) or not isinstance(event.get("type"), str):
            self._noise_lines += 1
            return
        kind = event["type"]
        if kind in _CONTENT_TYPES and self._is_running and self._identity_before_output is None:
            self._identity_before_output = self._is_named
        match kind:
            case "response":
                self._response(event)
            case "message_end" if self._is_running:
                self._message(event)
            case "entry_appended" if self._is_accepted and not self._is_settled:
                self._appended(event)
            case "compaction_end" if self._is_accepted:
                self._compaction(event)
            case "auto_retry_start" if self._is_running:
                self._retry_seen = True
            case "queue_update":
                self._queued = any(event.get(name) != [] for name in ("steering", "followUp"))
            case "extension_ui_request":
                request_id = event.get("id")
                if isinstance(request_id, str) and self._end is None:
                    self._open_requests[request_id] = None
            case "agent_end" if self._is_running:
                self._agent_end(event, line, end_offset)
            case "agent_settled" if self._is_accepted:
                self._settled(event, line, end_offset)
            case _:
                pass

    @property
    def _is_running(self) -> bool:
        return self._is_accepted and self._end is None

    def _response(self, event: dict[str, object]) -> None:
        request_id, succeeded = event.get("id"), event.get("success") is True
        match event.get("command"):
            case "get_state":
                self._state(request_id, event.get("data") if succeeded else None)
            case "prompt" if succeeded and (self._message_id is None or request_id == self._message_id):
                self._is_accepted = True
            case _:
                pass

    def _state(self, request_id: object, data: object) -> None:
        state = data if isinstance(data, dict) else {}
        session_id, store = state.get("sessionId"), state.get("sessionFile")
        is_named = isinstance(session_id, str) and session_id != "" and isinstance(store, str)
        if request_id == HANDSHAKE_ID and self._handshake is None:
            self._handshake = "OK" if is_named else "REFUSED"
            if isinstance(session_id, str) and isinstance(store, str):
                self._handshake_session_id, self._handshake_store = session_id, store
        if isinstance(session_id, str):
            self._session_ids[session_id] = None
            if self._message_id is None or request_id == f"who-{self._message_id}":
                self._is_named = True
        if self._is_settled and is_named:
            self._is_closed = True
            self._queued = self._queued or state.get("pendingMessageCount") != 0

    def _message(self, event: dict[str, object]) -> None:
        message = event.get("message")
        if not isinstance(message, dict):
            return
        key = message_key(message)
        self._printed[key] = None
        if message.get("role") == "user" and not self._is_started:
            self._is_started, self._message_printed_as = True, key
        if message.get("role") == "assistant":
            aborted = message.get("stopReason") not in _WHOLE
            self._assistant += [
                AssistantText(uuid=key, text_digest=text_digest(text), aborted=aborted)
                for text in texts_of(message.get("content"))
            ]

    def _appended(self, event: dict[str, object]) -> None:
        entry = event.get("entry")
        if isinstance(entry, dict) and isinstance(entry_id := entry.get("id"), str):
            self._printed[entry_id] = None

    def _compaction(self, event: dict[str, object]) -> None:
        result = event.get("result")
        if isinstance(result, dict):
            self._bases[compaction_key(result.get("summary"))] = None

    # --- the end -------------------------------------------------------------------------------------------------------------------
    def _agent_end(self, event: dict[str, object], line: bytes, end_offset: int) -> None:
        if event.get("willRetry") is not False:
            return
        messages = event.get("messages")
        of_assistant = [
            one
            for one in (messages if isinstance(messages, list) else [])
            if isinstance(one, dict) and one.get("role") == "assistant"
        ]
        last = of_assistant[-1] if of_assistant else {}
        self._finish(last.get("stopReason"), last.get("errorMessage"), line, end_offset)

    def _settled(self, event: dict[str, object], line: bytes, end_offset: int) -> None:
        self._is_settled = True
        if self._end is None:
            self._finish("aborted" if event.get("aborted") is True else None, None, line, end_offset)

    def _finish(self, stop: object, error: object, line: bytes, end_offset: int) -> None:
        status = _STATUS.match(error) if isinstance(error, str) else None
        self._end = NativeEnd(
            is_error=stop != "stop",
            reason="api_error" if stop == "error" else stop if isinstance(stop, str) else None,
            status=int(status.group(1)) if status is not None else None,
            tap_offset=end_offset,
            evidence_digest=hashlib.sha256(line).hexdigest(),
            cancelled=stop == "aborted",
        )
        self._open_requests.clear()
