"""Reads what the bridge prints during one activation and says what it means. Pure; knows no time and writes nothing.

    BEFORE_MESSAGE --message written--> WAITING --accepted--> ACCEPTED --started--> STARTED --settled(ours)--> ENDED
                                           |                     |                     |
                                           +------ broken(ours): no native end will come; the bridge leaves by itself

The end is the bridge's `settled` for our message, which it says only when the native session is idle and its last message was judged.
Every line about the root names its session, and each is checked. A child's lines name their Task call as `parent`. Content is passed on
only after `started`, which is the server's word that our message is in this session.
"""

from __future__ import annotations

from enum import Enum

from runner.core.events import (
    ContentBeforeIdentity,
    Fact,
    HandshakeAnswered,
    HandshakeRefused,
    MessageAccepted,
    MessageClosed,
    MessageStarted,
    NativeRequest,
    NativeTurnEnded,
    Normalised,
    ProcessMustRetire,
    RequestWithdrawn,
    SessionSeen,
    Warned,
)
from runner.drivers.http_bridge.frames import OPEN_ID, Frame
from runner.drivers.http_bridge.normalise import native_request, normalise, usage_of

NAMING_FRAMES = frozenset({"opened", "started"})
_CONTENT = frozenset({"delta", "text", "tool", "tool_result", "retry"})

Body = Fact | Normalised


class Phase(Enum):
    """Where our message is."""

    BEFORE_MESSAGE = "BEFORE_MESSAGE"
    WAITING = "WAITING"
    ACCEPTED = "ACCEPTED"
    STARTED = "STARTED"
    ENDED = "ENDED"


class BridgeReader:
    """One activation's lines, in order. `requests` are the open ones by their id."""

    def __init__(self) -> None:
        self.phase = Phase.BEFORE_MESSAGE
        self.requests: dict[str, NativeRequest] = {}
        self._message_id: str | None = None
        self._handshake_pending = False
        self._last_session_id: str | None = None
        self._content_was_early = False

    def handshake_written(self) -> None:
        self._handshake_pending = True

    def message_written(self, message_id: str) -> None:
        self._message_id = message_id
        self.phase = Phase.WAITING

    def end_of_stream(self) -> list[Body]:
        """What the end of the output itself says: only that a handshake will not be answered. It never ends a turn."""
        if not self._handshake_pending:
            return []
        self._handshake_pending = False
        return [HandshakeRefused("OTHER", "the output ended before the handshake was answered")]

    def read(self, frame: Frame) -> list[Body]:
        """What one line says."""
        match frame.kind:
            case "opened" if self._handshake_pending and frame.text("id") == OPEN_ID:
                self._handshake_pending = False
                return [HandshakeAnswered(frame.text("session")), *self._identity(frame)]
            case "refused":
                return self._refused(frame)
            case "ask":
                request = native_request(frame)
                if request is None:
                    return [*self._identity(frame)]
                self.requests[request.request_id] = request
                return [*self._identity(frame), request]
            case "asked":
                request_id = frame.text("id") or ""
                was_open = self.requests.pop(request_id, None) is not None
                return [RequestWithdrawn(request_id)] if was_open and frame.text("how") == "gone" else []
            case "retire":
                return [ProcessMustRetire(frame.text("reason") or "BRIDGE_SAYS_SO")]
            case "accepted" | "started" | "settled" | "broken":
                return self._of_message(frame) if frame.text("id") == self._message_id else [*self._identity(frame)]
            case kind if kind in _CONTENT:
                return [*self._identity(frame), *self._content(frame)]
            case _:
                return [*self._identity(frame), *normalise(frame)]

    def _identity(self, frame: Frame) -> list[SessionSeen]:
        """The id that a root line names: every change of it, and every line that is there to name it."""
        session_id = frame.text("session")
        if session_id is None or frame.fields.get("parent") is not None:
            return []
        if session_id == self._last_session_id and frame.kind not in (*NAMING_FRAMES, "settled"):
            return []
        self._last_session_id = session_id
        return [SessionSeen(session_id, frame.kind)]

    def _of_message(self, frame: Frame) -> list[Body]:
        match frame.kind:
            case "accepted" if self.phase is Phase.WAITING:
                self.phase = Phase.ACCEPTED
                return [*self._identity(frame), MessageAccepted()]
            case "started" if self.phase in (Phase.WAITING, Phase.ACCEPTED):
                self.phase = Phase.STARTED
                return [MessageStarted(), *self._identity(frame)]
            case "settled" if self.phase in (Phase.ACCEPTED, Phase.STARTED):
                return [*self._identity(frame), *self._settled(frame)]
            case "broken" if self.phase is not Phase.ENDED:
                cause = frame.text("cause") or "BROKEN"
                return [*self._identity(frame), Warned(cause, frame.text("detail") or ""), ProcessMustRetire(cause)]
            case _:
                return [*self._identity(frame)]

    def _settled(self, frame: Frame) -> list[Body]:
        self.phase = Phase.ENDED
        self.requests.clear()
        outcome = frame.text("outcome")
        usage = usage_of(frame)
        ended = NativeTurnEnded(
            failed=outcome != "completed",  # an outcome that does not say that it is good is not good
            cancelled=outcome == "cancelled",
            reason=frame.text("reason") or frame.text("finish"),
            error=frame.text("error") if outcome != "completed" else None,
            status=frame.number("status"),
        )
        return [*([usage] if usage is not None else []), ended, MessageClosed("completed")]

    def _content(self, frame: Frame) -> list[Body]:
        events = normalise(frame)
        match self.phase:
            case Phase.STARTED:
                return [*events]
            case Phase.WAITING | Phase.ACCEPTED if events and not self._content_was_early:
                # Never passed on: what comes before the session was named for this turn is nobody's of ours.
                self._content_was_early = True
                return [ContentBeforeIdentity(frame.kind)]
            case _:
                return []

    def _refused(self, frame: Frame) -> list[Body]:
        cause, detail = frame.text("cause") or "OTHER", frame.text("detail") or "the bridge gave no reason"
        if self._handshake_pending and frame.text("id") == OPEN_ID:
            self._handshake_pending = False
            return [
                HandshakeRefused("NO_SUCH_SESSION" if cause == "NO_SUCH_SESSION" else "OTHER", f"{cause}: {detail}")
            ]
        return [Warned(cause, detail)]
