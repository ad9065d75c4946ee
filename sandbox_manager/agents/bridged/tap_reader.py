"""Reads the tap of a bridged CLI: the server's own traffic as the supervisor kept it, and the bridge's lines. Pure.

What counts is what the *server* said: which session it made or found, which message it took, what it keeps of the turn at its end. Of the
bridge's lines only the place counts: `opened` and `refused` close the handshake, `settled` of our message says that no more of the turn
will be asked for. Each needs the server's word beside it, which stands before it in the tap: a bridge that says `opened` without a
session on the wire, or `settled` without an idle server and the turn's messages, proves nothing.

The end is judged from the last list of messages that the server gave after our prompt, and after it said that the session does not work:
the last assistant message under ours is good only with `finish` "stop" and no error.
"""

from __future__ import annotations

import json
from typing import Any

from sandbox_manager.agents.bridged.messages import ABORTED, Answers, answers_under
from sandbox_manager.agents.bridged.wire_lines import MARK, Answered, Asked, Event, Said, WireLines
from sandbox_manager.agents.tap_lines import TapLines
from sandbox_manager.core.values import NativeEnd, TapFindings

_ASKING = ("permission.asked", "question.asked")


class BridgedTapReader:
    """One activation's reader. `message_id` is our message's id; None reads the end by order alone."""

    def __init__(self, *, message_id: str | None, start_offset: int) -> None:
        self._message_id = message_id
        self._lines = TapLines(start_offset)
        self._wire = WireLines()
        self._sessions: dict[str, None] = {}
        self._found: str | None = None  # the session that the server made or found in the handshake
        self._handshake: str | None = None
        self._version: str | None = None
        self._root: str | None = None  # the session that the prompt went to
        self._native: str | None = None  # our message, as the server has it
        self._is_started = False
        self._identity_before_output: bool | None = None
        self._is_idle = False  # the server said that the root does not work, and nothing of it has come since
        self._answers = Answers(())
        self._digest: str | None = None  # of the answer that the end is judged from
        self._abort_asked = False
        self._error: dict[str, Any] | None = None
        self._end: NativeEnd | None = None
        self._retry_seen = False
        self._wakeup_pending = False
        self._retire_reason: str | None = None
        self._noise_lines = 0
        self._asked: set[str] = set()  # by the server
        self._offered: dict[str, None] = {}  # by the bridge, to be answered

    def feed(self, data: bytes) -> None:
        """Takes the next raw bytes, in any cuts."""
        for line in self._lines.feed(data):
            if line.content is None:
                self._noise_lines += 1
            elif line.content.startswith(MARK):
                self._wire_line(line.content)
            elif line.content.strip():
                self._bridge_line(line.content, line.end_offset)

    def findings(self) -> TapFindings:
        """What the complete lines so far say. A half line at the end says nothing."""
        return TapFindings(
            session_ids=tuple(self._sessions),
            reset_to=None,
            identity_before_output=self._identity_before_output is True,
            handshake=self._handshake,
            message_started=self._is_started,
            end=self._end,
            assistant=self._answers.texts,
            retry_seen=self._retry_seen,
            background_pending=self._wakeup_pending,
            lifecycle_closed=self._end is not None,
            noise_lines=self._noise_lines,
            open_requests=tuple(one for one in self._offered if one in self._asked),
            agent_version=self._version,
            printed=self._answers.lasting,
            message_printed_as=self._native,
            handshake_session_id=self._found,
            retire_reason=self._retire_reason,
        )

    # --- the server's word -----------------------------------------------------------------------------------------------------------
    def _wire_line(self, line: bytes) -> None:
        said = self._wire.read(line)
        if said is None:
            self._noise_lines += 1
            return
        for one in said:
            self._said(one)

    def _said(self, said: Said) -> None:
        match said:
            case Asked(request) if request.method == "POST" and request.path.endswith("/prompt_async"):
                self._prompted(request.path, request.body)
            case Asked(request) if request.method == "POST" and request.path.endswith("/abort"):
                self._abort_asked = True
            case Answered(request, response) if response.status == 200:
                self._answered(request.method, request.path, request.query, response.body, response.digest)
            case Event(kind, properties):
                self._event(kind, properties)
            case _:
                pass

    def _prompted(self, path: str, body: Any) -> None:
        """Only the first: a second prompt in one activation is nobody's of ours, and its message is found in the store."""
        if self._native is not None or not isinstance(body, dict) or not isinstance(body.get("messageID"), str):
            return
        self._root = path.removeprefix("/session/").removesuffix("/prompt_async")
        self._native = body["messageID"]
        self._sessions[self._root] = None

    def _answered(self, method: str, path: str, query: str, body: Any, digest: str) -> None:
        fields = body if isinstance(body, dict) else {}
        if path == "/global/health" and isinstance(fields.get("version"), str):
            self._version = fields["version"]
        elif path == "/session/status":
            status = fields.get(self._root or "")
            kind = status.get("type") if isinstance(status, dict) else None
            self._is_idle = isinstance(body, dict) and kind in (None, "idle")
        elif path == f"/session/{self._root}/message":
            self._messages(query, body, digest)
        elif self._native is None and self._is_of_handshake(method, path) and isinstance(fields.get("id"), str):
            self._found = fields["id"]
            self._sessions[self._found] = None

    @staticmethod
    def _is_of_handshake(method: str, path: str) -> bool:
        if method == "POST":
            return path == "/session"
        return method == "GET" and path.startswith("/session/") and path.count("/") == 2

    def _messages(self, query: str, body: Any, digest: str) -> None:
        if self._native is None or not self._is_idle or self._end is not None:
            return
        found = answers_under(body, self._native)
        if "before=" in query:
            # Further back: a long turn's earlier answers.
            self._answers = Answers(found.messages + self._answers.messages)
        else:
            self._answers, self._digest = found, digest

    def _event(self, kind: str, properties: dict[str, Any]) -> None:
        if kind in _ASKING and isinstance(properties.get("id"), str):
            self._asked.add(properties["id"])
        info, part = properties.get("info"), properties.get("part")
        where = [value for value in (properties, info, part) if isinstance(value, dict)]
        session = next((one["sessionID"] for one in where if isinstance(one.get("sessionID"), str)), None)
        if session is None or session != self._root or self._end is not None:
            return
        match kind:
            case "message.updated" if isinstance(info, dict):
                self._message(info)
            case "message.part.updated" | "message.part.delta":
                self._content()
            case "session.status":
                status = properties.get("status")
                self._status(status if isinstance(status, dict) else {})
            case "session.error" if isinstance(properties.get("error"), dict):
                self._error = properties["error"]
            case "session.wakeup":
                self._wakeup_pending = properties.get("pending") != 0
            case _:
                pass

    def _message(self, info: dict[str, Any]) -> None:
        if info.get("role") == "user" and info.get("id") == self._native:
            # The server's own word that our message is in this session.
            self._is_started = True
        elif info.get("role") == "assistant" and info.get("parentID") == self._native:
            self._content()

    def _content(self) -> None:
        if self._identity_before_output is None:
            self._identity_before_output = self._is_started

    def _status(self, status: dict[str, Any]) -> None:
        if status.get("type") == "retry":
            self._retry_seen = True
        if status.get("type") != "idle":
            self._is_idle = False

    # --- the bridge's lines ----------------------------------------------------------------------------------------------------------
    def _bridge_line(self, line: bytes, end_offset: int) -> None:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict) or not isinstance(event.get("ev"), str):
            self._noise_lines += 1
            return
        name = event.get("id")
        match event["ev"]:
            case "opened" if self._handshake is None:
                self._handshake = (
                    "OK" if self._found is not None and event.get("session") == self._found else "UNPROVEN"
                )
            case "refused" if self._handshake is None and self._native is None:
                cause = event.get("cause")
                self._handshake = cause if isinstance(cause, str) and cause else "REFUSED"
            case "ask" if isinstance(name, str) and self._end is None:
                self._offered[name] = None
            case "asked" if isinstance(name, str):
                self._offered.pop(name, None)
            case "retire" if self._retire_reason is None and isinstance(event.get("reason"), str):
                self._retire_reason = event["reason"]
            case "settled" if self._message_id is None or name == self._message_id:
                self._settled(end_offset)
            case _:
                pass

    def _settled(self, end_offset: int) -> None:
        if self._end is not None or self._native is None or not self._is_idle or self._digest is None:
            return
        last = self._answers.last
        error = last.get("error") if last is not None else self._error
        finish = last.get("finish") if last is not None else None
        name = error.get("name") if isinstance(error, dict) else None
        is_good = last is not None and error is None and finish == "stop"
        data = error.get("data") if isinstance(error, dict) else None
        status = data.get("statusCode") if isinstance(data, dict) else None
        reason = name if isinstance(name, str) else finish if isinstance(finish, str) else "no answer"
        self._end = NativeEnd(
            is_error=not is_good,
            reason=reason,
            status=status if isinstance(status, int) and not isinstance(status, bool) else None,
            tap_offset=end_offset,
            evidence_digest=self._digest,
            cancelled=not is_good and (name == ABORTED or (self._abort_asked and name is None)),
        )
        self._offered.clear()
