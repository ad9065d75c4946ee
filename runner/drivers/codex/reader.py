"""Reads what Codex prints during one activation and says what it means. Pure; knows no time and writes nothing.

    handshake:  initialize written --answer--> initialized + thread/start|resume due --answer--> thread named
    message:    BEFORE_MESSAGE --written--> WAITING --answer names our turn--> RUNNING --turn/completed(ours)--> ENDED
                                               +--error answer--> CLOSED

Decides three things. *Whose* a frame is: sub-agents are threads of their own on the same connection, goals begin turns
of their own on our thread, and an item may be completed after its turn was (a command that went on); only what carries
our thread's id *and* our turn's id is ours. *Which* turn is ours: the one that the answer to our `turn/start` names, or
the one whose first user item carries our message id. A `turn/start` while a turn runs is merged into that turn; then the
turn's first user item is another's, and what it says is not taken as ours. *What* ends the turn: `turn/completed` of our
turn; `turn.status` says whether it failed. It does not know which thread is the right one: that is the identity judge's.

Items are passed on when they are whole; one that a retry left unfinished is therefore never passed on, and two whole
replies in one turn (the stream died between the reply and its end) both are: both stay in the native history.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from runner.core.answers import PermissionAnswer
from runner.core.events import (
    ContentBeforeIdentity,
    Fact,
    FramesDue,
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
from runner.drivers.codex import frames, normalise
from runner.drivers.codex.frames import Frame
from runner.drivers.codex.requests import OpenRequests, is_known
from runner.drivers.json_fields import read_object, read_text

RETIRE_AUTONOMOUS = "AUTONOMOUS_TURN"
RETIRE_REJECTED = "MESSAGE_REJECTED"
RETIRE_CANCELLED = "CANCELLED"

Body = Fact | Normalised


class Phase(Enum):
    """Where our message is."""

    BEFORE_MESSAGE = "BEFORE_MESSAGE"
    WAITING = "WAITING"
    RUNNING = "RUNNING"
    ENDED = "ENDED"


class StreamReader:
    """One activation's frames, in order. `thread_id` is None until the CLI has named it."""

    def __init__(self, thread_id: str | None, *, opens_with: bytes = b"", denies: bool = False) -> None:
        self.phase = Phase.BEFORE_MESSAGE
        self.thread_id = thread_id
        self.turn_id: str | None = None
        self.requests = OpenRequests()
        self._denies = denies  # every permission is declined here: this CLI has no mode that does so without asking
        self._opens_with = opens_with  # the native start or resume, due once `initialize` is answered
        self._handshake_pending = False
        self._message_ids: list[str] = []  # ours, and those that were steered into our turn
        self._is_merged = False
        self._first_user_item_seen = False
        self._last_seen: str | None = None
        self._waiting: list[Frame] = []  # frames of our thread while it is not known which turn is ours
        self._usage_before: dict[str, Any] | None = None
        self._usage_total: dict[str, Any] = {}
        self._retire_reasons: set[str] = set()

    def handshake_written(self) -> None:
        self._handshake_pending = True

    def message_written(self, message_id: str) -> None:
        self._message_ids = [message_id]
        self.phase = Phase.WAITING

    def steered(self, message_id: str) -> None:
        """A further message was written into the running turn."""
        self._message_ids.append(message_id)

    def end_of_stream(self) -> list[Body]:
        """What the end of the output itself says: only that a handshake will not be answered. It never ends a turn."""
        if not self._handshake_pending:
            return []
        self._handshake_pending = False
        return [HandshakeRefused("OTHER", "the output ended before the handshake was answered")]

    def read(self, frame: Frame) -> list[Body]:
        """What one frame says. Facts come at once; content comes when it is known to be ours."""
        if frame.answers is not None:
            return self._answer(frame, frame.answers)
        if frame.asks is not None and not self._is_for_us(frame):
            # Never held and never taken for the root's: it is refused by the protocol, so that nothing waits for ever.
            return [*self.requests.ask(frame, is_ours=False)]
        if frame.thread_id is None or frame.thread_id != self.thread_id:
            return self._of_another_thread(frame)
        if self.phase is Phase.WAITING and frame.turn_id is not None:
            return self._while_waiting(frame)
        if frame.turn_id is not None and frame.turn_id != self.turn_id:
            return self._of_another_turn(frame)
        return self._of_our_turn(frame) if frame.turn_id is not None else self._of_our_thread(frame)

    # --- the handshake ------------------------------------------------------------------------------------------------
    def _answer(self, frame: Frame, answers: str) -> list[Body]:
        if answers in (frames.INITIALIZE_ID, frames.THREAD_ID):
            return self._handshake(frame, answers) if self._handshake_pending else []
        if not self._message_ids:
            return []
        if answers == frames.turn_request_id(self._message_ids[0]) and self.phase is Phase.WAITING:
            return self._turn_answer(frame)
        if frame.error is not None and answers in map(frames.steer_request_id, self._message_ids[1:]):
            return [Warned("STEER_REFUSED", read_text(frame.error, "message") or "the CLI refused the further message")]
        return []

    def _handshake(self, frame: Frame, answers: str) -> list[Body]:
        if frame.error is not None:
            self._handshake_pending = False
            return [_refusal(read_text(frame.error, "message") or "the CLI refused the handshake and gave no reason")]
        if answers == frames.INITIALIZE_ID:
            return [FramesDue((frames.initialized_frame(), self._opens_with))]
        self._handshake_pending = False
        thread = read_object(frame.result, "thread")
        named = read_text(thread, "id")
        if named is None:
            return [HandshakeRefused("OTHER", "the CLI answered its native start without naming a thread")]
        self.thread_id = self.thread_id or named
        return [HandshakeAnswered(session_id=named, store=read_text(thread, "path"))]

    # --- whose it is --------------------------------------------------------------------------------------------------
    def _turn_answer(self, frame: Frame) -> list[Body]:
        if frame.error is not None:
            self.phase = Phase.ENDED
            self._waiting.clear()
            said = read_text(frame.error, "message") or "the CLI refused the message and gave no reason"
            return [Warned("MESSAGE_REJECTED", said), MessageClosed("cancelled"), *self._retire(RETIRE_REJECTED)]
        named = read_text(read_object(frame.result, "turn"), "id")
        return [MessageAccepted(), *self._bind(named)] if named is not None else [MessageAccepted()]

    def _while_waiting(self, frame: Frame) -> list[Body]:
        """Whose this is will be known when our turn is named: by the answer to our frame, or by its user item."""
        self._waiting.append(frame)
        if read_text(frame.item, "type") == "userMessage" and read_text(frame.item, "clientId") in self._message_ids:
            return self._bind(frame.turn_id)
        return []

    def _bind(self, turn_id: str | None) -> list[Body]:
        self.phase, self.turn_id = Phase.RUNNING, turn_id
        waiting, self._waiting = self._waiting, []
        return [body for frame in waiting for body in self.read(frame)]

    def _of_another_thread(self, frame: Frame) -> list[Body]:
        """A sub-agent's. But a frame of our own turn that names another thread tells of a changed session."""
        if self.turn_id is None or frame.thread_id is None or frame.turn_id != self.turn_id:
            return []
        return self._seen(frame)

    def _of_another_turn(self, frame: Frame) -> list[Body]:
        """Of our thread: a turn that the CLI began by itself, or a late item of a former turn."""
        return [*self._retire(RETIRE_AUTONOMOUS)] if frame.kind == "turn/started" else []

    def _is_for_us(self, frame: Frame) -> bool:
        if frame.thread_id != self.thread_id or self.thread_id is None or not is_known(frame):
            return False
        if self.phase is Phase.WAITING:
            return True  # held until our turn is named; the answer to our frame comes at once
        return self.phase is Phase.RUNNING and frame.turn_id == self.turn_id

    def _of_our_thread(self, frame: Frame) -> list[Body]:
        """What names no turn."""
        if frame.kind == "serverRequest/resolved":
            return [*self.requests.withdraw(frame.params.get("requestId"))]
        return [*normalise.warned(frame)] if self.phase in (Phase.WAITING, Phase.RUNNING) else []

    # --- our turn -----------------------------------------------------------------------------------------------------
    def _of_our_turn(self, frame: Frame) -> list[Body]:
        if self.phase is not Phase.RUNNING:
            return []  # a command that went on after its turn; it starts nothing
        bodies: list[Body] = []
        if frame.kind == "turn/started":
            return [MessageStarted(), *self._seen(frame)]
        bodies += self._seen(frame) if frame.thread_id != self._last_seen else []
        if frame.asks is not None:
            return bodies + self._ask(frame)
        match frame.kind:
            case "item/started" | "item/completed" if read_text(frame.item, "type") == "userMessage":
                bodies += self._user_item(frame)
            case "item/started":
                bodies += normalise.started(frame)
            case "item/completed":
                bodies += normalise.completed(frame)
            case "item/agentMessage/delta":
                bodies += normalise.delta(frame)
            case "error" if frame.params.get("willRetry") is True:
                bodies.append(normalise.retry(frame))
            case "thread/tokenUsage/updated":
                self._note_usage(read_object(frame.params, "tokenUsage"))
            case "turn/completed":
                bodies += self._end(frame)
            case _:
                bodies += normalise.warned(frame)
        return bodies

    def _user_item(self, frame: Frame) -> list[Body]:
        """The first user item of our turn is our message. Another's there means that ours was merged into a running turn."""
        client_id = read_text(frame.item, "clientId")
        is_first, self._first_user_item_seen = not self._first_user_item_seen, True
        if not is_first or client_id is None or client_id in self._message_ids or self._is_merged:
            return []
        self._is_merged = True
        return [ContentBeforeIdentity("userMessage of another message"), *self._retire(RETIRE_AUTONOMOUS)]

    def _seen(self, frame: Frame) -> list[Body]:
        thread_id = frame.thread_id
        if thread_id is None:
            return []
        self._last_seen = thread_id
        return [SessionSeen(thread_id, frame.kind)]

    def _ask(self, frame: Frame) -> list[Body]:
        asked = self.requests.ask(frame, is_ours=True)
        if not self._denies or any(request.kind != "permission" for request in asked):
            return [*asked]
        denied = PermissionAnswer(allow=False)
        return [FramesDue(tuple(self.requests.answer(request.request_id, denied) for request in asked))]

    def _note_usage(self, usage: dict[str, Any]) -> None:
        """`last` is added anew at each update, some of which repeat it (a compaction's), so the turn's is a difference."""
        self._usage_total = read_object(usage, "total")
        if self._usage_before is None:
            self._usage_before = normalise.less(self._usage_total, read_object(usage, "last"))

    def _end(self, frame: Frame) -> list[Body]:
        self.phase = Phase.ENDED
        bodies: list[Body] = []
        if self._usage_before is not None:
            bodies.append(normalise.usage_of(self._usage_total, self._usage_before))
        ended = normalise.ended(frame)
        if frame.thread_id is not None:
            bodies += [SessionSeen(frame.thread_id, frame.kind)]
        bodies.append(ended)
        # An interrupt leaves the running shell command alive and says nothing of it (observed): what such a process holds
        # is not known.
        return bodies + ([*self._retire(RETIRE_CANCELLED)] if ended.cancelled else [])

    def _retire(self, reason: str) -> list[ProcessMustRetire]:
        """Each reason once."""
        if reason in self._retire_reasons:
            return []
        self._retire_reasons.add(reason)
        return [ProcessMustRetire(reason)]


def _refusal(detail: str) -> HandshakeRefused:
    lowered = detail.lower()
    if "no rollout found" in lowered or "invalid session id" in lowered:
        return HandshakeRefused("NO_SUCH_SESSION", detail)
    if "active writer" in lowered:
        return HandshakeRefused("SESSION_IN_USE", detail)
    return HandshakeRefused("OTHER", detail)
