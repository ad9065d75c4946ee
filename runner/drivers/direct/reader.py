"""Reads what the built-in agent prints during one activation and says what it means. Pure; knows no time and writes nothing.

    BEFORE_MESSAGE --message written--> WAITING --accepted(ours)--> STARTED --turn_end(ours)--> ENDED
                                           +--already_delivered(ours): it had this message before--> ENDED
                                           +--turn_end(ours): it could not even store the message--> ENDED

Content counts only between `accepted` and `turn_end` of our message. Every frame names the session; a change of the name is said at
once, whatever kind of frame it is.
"""

from __future__ import annotations

from enum import Enum

from runner.core.events import (
    AlreadyDelivered,
    Fact,
    HandshakeAnswered,
    HandshakeRefused,
    MessageAccepted,
    MessageClosed,
    MessageStarted,
    Normalised,
    ProcessMustRetire,
    SessionSeen,
    Warned,
)
from runner.drivers.direct.asking import OpenRequests
from runner.drivers.direct.frames import HANDSHAKE_ID, Frame
from runner.drivers.direct.normalise import normalise, turn_ended, usage_of

Body = Fact | Normalised

NAMING_SOURCE = "accepted"
RETIRE_AUTONOMOUS = "AUTONOMOUS_OUTPUT"
RETIRE_NOT_TAKEN = "MESSAGE_NOT_TAKEN"
RETIRE_STORAGE = "SESSION_NOT_WRITTEN"
_STORAGE_REASONS = frozenset({"STORAGE_FULL", "STORE_UNWRITABLE"})
_CONTENT = frozenset({"text_delta", "assistant", "tool_result", "tool_started", "retrying", "discarded"})
_CAUSES = frozenset({"NO_SUCH_SESSION", "SESSION_IN_USE"})


class Phase(Enum):
    BEFORE_MESSAGE = "BEFORE_MESSAGE"
    WAITING = "WAITING"
    STARTED = "STARTED"
    ENDED = "ENDED"


class StreamReader:
    """One activation."""

    def __init__(self) -> None:
        self.phase = Phase.BEFORE_MESSAGE
        self.requests = OpenRequests()
        self._handshake_pending = False
        self._message_id: str | None = None
        self._last_session_id: str | None = None
        self._retire_reasons: set[str] = set()

    def handshake_written(self) -> None:
        self._handshake_pending = True

    def message_written(self, message_id: str) -> None:
        self._message_id = message_id
        self.phase = Phase.WAITING

    def read(self, frame: Frame) -> list[Body]:
        """What one frame says."""
        bodies: list[Body] = [*self._identity(frame)]
        match frame.type:
            case "initialized" | "initialize_failed":
                bodies += self._handshake(frame)
            case "accepted" | "already_delivered" | "not_taken" | "turn_end":
                bodies += self._about_message(frame)
            case "request":
                # Never held: a request that nobody answers hangs the turn.
                bodies += self.requests.ask(frame)
            case "request_closed":
                bodies += self.requests.close(frame)
            case "compacted" if frame.fields.get("is_changed") is True:
                bodies.append(Warned("NATIVE_COMPACTION", "the conversation was shortened to a summary and its tail"))
            case kind if kind in _CONTENT:
                bodies += self._content(frame)
            case "error":
                bodies += normalise(frame)
            case _:
                pass
        return bodies

    def end_of_stream(self) -> list[Body]:
        if not self._handshake_pending:
            return []
        self._handshake_pending = False
        return [HandshakeRefused("OTHER", "the agent ended before its handshake was answered")]

    def _identity(self, frame: Frame) -> list[SessionSeen]:
        session_id = frame.session_id
        # The one of `accepted` comes with the message's start, which it must not precede.
        if session_id is None or session_id == self._last_session_id or self._is_our_start(frame):
            return []
        self._last_session_id = session_id
        return [SessionSeen(session_id, frame.type)]

    def _is_our_start(self, frame: Frame) -> bool:
        return frame.type == "accepted" and self._is_ours(frame) and self.phase is Phase.WAITING

    def _is_ours(self, frame: Frame) -> bool:
        return self._message_id is not None and frame.text("message_id") == self._message_id

    def _handshake(self, frame: Frame) -> list[Body]:
        if not self._handshake_pending or frame.text("id") != HANDSHAKE_ID:
            return []
        self._handshake_pending = False
        if frame.type == "initialized":
            return [HandshakeAnswered(frame.session_id, frame.text("store"))]
        cause = frame.text("cause") or ""
        detail = frame.text("error") or "the agent refused the handshake and gave no reason"
        return [HandshakeRefused(cause if cause in _CAUSES else "OTHER", detail)]

    def _about_message(self, frame: Frame) -> list[Body]:
        if not self._is_ours(frame):
            # Another message's end or start in our activation: somebody else writes to this process.
            return [*self._retire(RETIRE_AUTONOMOUS)]
        match frame.type, self.phase:
            case "accepted", Phase.WAITING:
                self.phase = Phase.STARTED
                return self._started(frame)
            case "already_delivered", Phase.WAITING:
                self.phase = Phase.ENDED
                return [AlreadyDelivered()]
            case "not_taken", Phase.WAITING:
                said = frame.text("error") or "the agent did not take the message"
                return [Warned("MESSAGE_NOT_TAKEN", said), *self._retire(RETIRE_NOT_TAKEN)]
            case "turn_end", (Phase.STARTED | Phase.WAITING):
                self.phase = Phase.ENDED
                return self._ended(frame)
            case _:
                return [*self._retire(RETIRE_AUTONOMOUS)]

    def _started(self, frame: Frame) -> list[Body]:
        bodies: list[Body] = [MessageAccepted(), MessageStarted()]
        if frame.session_id is not None:
            self._last_session_id = frame.session_id
            bodies.append(SessionSeen(frame.session_id, NAMING_SOURCE))
        return bodies

    def _ended(self, frame: Frame) -> list[Body]:
        usage = usage_of(frame)
        bodies: list[Body] = [usage] if usage is not None else []
        bodies += [turn_ended(frame), MessageClosed("completed")]
        if frame.text("reason") in _STORAGE_REASONS:
            # What it could not write it does not know either: a new process reads what is there.
            bodies += self._retire(RETIRE_STORAGE)
        return bodies

    def _content(self, frame: Frame) -> list[Body]:
        match self.phase:
            case Phase.STARTED:
                return [*normalise(frame)]
            case Phase.ENDED:
                return [*self._retire(RETIRE_AUTONOMOUS)]
            case _:
                return []

    def _retire(self, reason: str) -> list[ProcessMustRetire]:
        """Each reason once."""
        if reason in self._retire_reasons:
            return []
        self._retire_reasons.add(reason)
        return [ProcessMustRetire(reason)]
