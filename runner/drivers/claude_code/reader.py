"""Reads what Claude Code prints during one activation and says what it means. Pure; knows no time and writes nothing.

    BEFORE_MESSAGE --message written--> WAITING --started(ours)--> STARTED --result without origin--> ENDED
                                           |
                                           +--completed(ours), never started: it had this message before--> ENDED
                                           +--result without origin, in a stream with no lifecycle at all--> ENDED

Decides three things. *Whose* a frame is: a process may run turns of its own (a finished background task, a clock),
print a former message's `completed` late, or put an extra result before ours; only what lies between `started` and
`result` of our uuid is ours. *When* content may be passed on: not before the first `system/init` after `started`, since
that names the session. *What* ends the turn: the `result` without `origin` while our message is started; `is_error`
says whether it failed, the subtype says "success" either way. It does not know which session is the right one: that is
the identity judge's.
"""

from __future__ import annotations

from enum import Enum

from runner.core.events import (
    AlreadyDelivered,
    ContentBeforeIdentity,
    Fact,
    HandshakeAnswered,
    HandshakeRefused,
    MessageAccepted,
    MessageClosed,
    MessageStarted,
    NativeTurnEnded,
    Normalised,
    ProcessMustRetire,
    SessionReset,
    SessionSeen,
    Warned,
)
from runner.drivers.claude_code.asking import OpenRequests
from runner.drivers.claude_code.frames import HANDSHAKE_REQUEST_ID, Frame
from runner.drivers.claude_code.normalise import normalise, usage_of
from runner.drivers.json_fields import objects, read_text, whole_text

RETIRE_API_RETRY = "API_RETRY_SEEN"
RETIRE_NO_LIFECYCLE = "NO_LIFECYCLE"
RETIRE_BACKGROUND = "BACKGROUND_TASK_PENDING"
RETIRE_AUTONOMOUS = "AUTONOMOUS_TURN"

Body = Fact | Normalised


class Phase(Enum):
    """Where our message is."""

    BEFORE_MESSAGE = "BEFORE_MESSAGE"
    WAITING = "WAITING"
    STARTED = "STARTED"
    ENDED = "ENDED"


class StreamReader:
    """One activation's frames, in order."""

    def __init__(self, requests: OpenRequests) -> None:
        self._requests = requests
        self.phase = Phase.BEFORE_MESSAGE
        self._message_id: str | None = None
        self._process_is_new = False
        self._handshake_pending = False
        self._lifecycle_seen = False
        self._init_ever_seen = False
        self._init_seen = False  # since our message was started (or written, in a stream without lifecycle)
        self._last_session_id: str | None = None
        self._content_was_early = False
        self._held: list[Normalised] = []
        self._background: list[str] = []
        self._retire_reasons: set[str] = set()

    def handshake_written(self) -> None:
        self._process_is_new = True
        self._handshake_pending = True

    def message_written(self, message_id: str) -> None:
        self._message_id = message_id
        self.phase = Phase.WAITING
        self._init_seen = False

    def end_of_stream(self) -> list[Body]:
        """What the end of the output itself says: only that a handshake will not be answered. It never ends a turn."""
        if not self._handshake_pending:
            return []
        self._handshake_pending = False
        return [HandshakeRefused("OTHER", "the output ended before the handshake was answered")]

    def read(self, frame: Frame) -> list[Body]:
        """What one frame says. Facts come at once; normalised events come when they may be passed on."""
        if frame.type == "control_response":
            return self._control_response(frame)
        if frame.type == "control_request":
            # Never held: a request that nobody answers hangs the CLI.
            return [*self._requests.ask(frame)]
        if frame.type == "control_cancel_request":
            return [*self._requests.withdraw(frame)]
        if frame.type == "result" and frame.is_root and self._is_refusal(frame):
            self._handshake_pending = False
            return [_refusal(frame)]
        bodies: list[Body] = [*self._identity(frame)]
        match frame.kind:
            case "command_lifecycle":
                bodies += self._lifecycle(frame)
            case "conversation_reset" if frame.is_root:
                bodies.append(SessionReset(frame.text("new_conversation_id")))
            case "result":
                bodies += self._result(frame) if frame.is_root else []
            case "system/init" if frame.is_root:
                bodies += self._init()
            case "system/background_tasks_changed":
                self._background = [read_text(task, "task_id") or "" for task in objects(frame.list("tasks"))]
            case _:
                if frame.kind == "system/task_started":
                    self._requests.note_task(frame)
                if frame.kind == "system/api_retry":
                    bodies += self._retire(RETIRE_API_RETRY)
                bodies += self._content(normalise(frame), frame)
        return bodies

    # --- identity -----------------------------------------------------------------------------------------------------
    def _identity(self, frame: Frame) -> list[SessionSeen]:
        """The id that a root frame names: every change of it, and every frame that is there to name it."""
        session_id = frame.session_id
        if not frame.is_root or session_id is None:
            return []
        if session_id == self._last_session_id and frame.kind not in ("system/init", "result"):
            return []
        self._last_session_id = session_id
        return [SessionSeen(session_id, frame.kind)]

    def _init(self) -> list[Body]:
        self._init_ever_seen = True
        self._handshake_pending = False  # it runs a turn, so it did start
        if self.phase is Phase.ENDED:
            return [*self._retire(RETIRE_AUTONOMOUS)]
        self._init_seen = True
        if self.phase is not Phase.STARTED:
            return []  # not known yet whether this is our turn's: what is held stays held
        return [*self._release()]

    # --- whose it is --------------------------------------------------------------------------------------------------
    def _lifecycle(self, frame: Frame) -> list[Body]:
        self._lifecycle_seen = True
        state = frame.text("state")
        if self._message_id is None or frame.text("command_uuid") != self._message_id:
            # The late `completed` of the message before is ordinary; a message that is not ours and *starts* is a turn
            # of its own.
            return [*self._retire(RETIRE_AUTONOMOUS)] if state == "started" else []
        match state:
            case "queued":
                return [MessageAccepted()]
            case "started":
                self.phase = Phase.STARTED
                self._init_seen = False
                self._held.clear()  # what came before `started` was not ours
                return [MessageStarted()]
            case "completed" if self.phase is Phase.WAITING:
                self.phase = Phase.ENDED
                self._held.clear()
                return [AlreadyDelivered()]
            case "completed" | "cancelled":
                return [MessageClosed(state)]
            case _:
                return []

    def _content(self, events: list[Normalised], frame: Frame) -> list[Body]:
        if not events:
            return []
        match self.phase:
            case Phase.STARTED:
                if self._init_seen:
                    return [*events]
                self._held += events
                return self._early(frame)
            case Phase.WAITING if not self._lifecycle_seen:
                self._held += events  # ours only if this stream turns out to have no lifecycle
                self._content_was_early = self._content_was_early or not self._init_seen
                return []
            case Phase.ENDED if frame.is_root and frame.type == "assistant":
                return [*self._retire(RETIRE_AUTONOMOUS)]
            case _:
                return []

    def _early(self, frame: Frame) -> list[Body]:
        if self._content_was_early:
            return []
        self._content_was_early = True
        return [ContentBeforeIdentity(frame.kind)]

    def _release(self) -> list[Normalised]:
        held, self._held = self._held, []
        return held

    # --- the end ------------------------------------------------------------------------------------------------------
    def _result(self, frame: Frame) -> list[Body]:
        if frame.fields.get("origin") is not None:
            return [*self._retire(RETIRE_AUTONOMOUS)] if self.phase is Phase.ENDED else []
        match self.phase:
            case Phase.STARTED:
                return self._end(frame)
            case Phase.WAITING if not self._lifecycle_seen:
                bodies: list[Body] = (
                    [ContentBeforeIdentity(frame.kind)] if self._content_was_early and self._held else []
                )
                if self._init_seen:
                    bodies += self._release()
                return [*bodies, *self._end(frame), *self._retire(RETIRE_NO_LIFECYCLE)]
            case _:
                return [*self._retire(RETIRE_AUTONOMOUS)]  # a result of a turn that nobody of us asked for

    def _end(self, frame: Frame) -> list[Body]:
        self.phase = Phase.ENDED
        self._held.clear()
        failed = frame.fields.get("is_error") is not False  # a result that does not say that it is good is not good
        reason = frame.text("terminal_reason")
        if reason is None and frame.text("subtype") != "success":
            reason = frame.text("subtype")
        usage = usage_of(frame)
        bodies: list[Body] = [usage] if usage is not None and self._init_seen else []
        bodies.append(
            NativeTurnEnded(
                failed=failed,
                cancelled=failed and reason is not None and reason.startswith("aborted"),
                reason=reason,
                error=_error_text(frame) if failed else None,
                status=frame.number("api_error_status"),
            )
        )
        return bodies + self._pending_background()

    def _pending_background(self) -> list[Body]:
        if not self._background:
            return []
        message = (
            f"{len(self._background)} background task(s) were still running when the turn ended; they end with the turn"
        )
        return [Warned("BACKGROUND_TASKS_PENDING", message), *self._retire(RETIRE_BACKGROUND)]

    def _retire(self, reason: str) -> list[ProcessMustRetire]:
        """Each reason once."""
        if reason in self._retire_reasons:
            return []
        self._retire_reasons.add(reason)
        return [ProcessMustRetire(reason)]

    # --- the handshake ------------------------------------------------------------------------------------------------
    def _control_response(self, frame: Frame) -> list[Body]:
        response = frame.object("response")
        if not self._handshake_pending or read_text(response, "request_id") != HANDSHAKE_REQUEST_ID:
            return []
        self._handshake_pending = False
        if read_text(response, "subtype") == "success":
            return [HandshakeAnswered(session_id=None)]
        return [
            HandshakeRefused(
                "OTHER", read_text(response, "error") or "the CLI refused the handshake and gave no reason"
            )
        ]

    def _is_refusal(self, frame: Frame) -> bool:
        """An error result of a new process before anything was named or started says that there is no such session.

        Its session_id only echoes what was asked for, so it is not evidence of identity.
        """
        return (
            self._process_is_new
            and not self._init_ever_seen
            and not self._lifecycle_seen
            and frame.fields.get("origin") is None
            and frame.fields.get("is_error") is True
            and self.phase in (Phase.BEFORE_MESSAGE, Phase.WAITING)
        )


def _error_text(frame: Frame) -> str | None:
    result = frame.text("result")
    if result:
        return result
    errors = [whole_text(error) for error in frame.list("errors") if isinstance(error, str)]
    return "; ".join(errors) or None


def _refusal(frame: Frame) -> HandshakeRefused:
    detail = _error_text(frame) or "the CLI ended before its handshake and gave no reason"
    lowered = detail.lower()
    if "conversation" in lowered and "session id" in lowered:
        return HandshakeRefused("NO_SUCH_SESSION", detail)
    if "already in use" in lowered:
        return HandshakeRefused("SESSION_IN_USE", detail)
    return HandshakeRefused("OTHER", detail)
