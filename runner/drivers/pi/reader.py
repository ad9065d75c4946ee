"""Reads what Pi prints during one activation and says what it means. Pure; knows no time and writes nothing.

    BEFORE_MESSAGE --written--> WAITING --prompt accepted--> ACCEPTED --our message printed--> STARTED --the end--> ENDED
                                   +--prompt refused--> ENDED (no native end)

The end is `agent_end` with `willRetry` false, or `agent_settled` where a retry's wait was aborted and no such `agent_end` came. A failed
call ends like a good one; only the last assistant message's `stopReason` tells. After `agent_settled` a fence is asked for: its answer
names the session once more and says whether something is queued.

No event names the session, only the answer to `get_state`. The driver asks right before the message: what was printed before that
answer is not ours, and content is passed on only behind it.
"""

from __future__ import annotations

from enum import Enum

from runner.core.events import (
    ContentBeforeIdentity,
    Fact,
    FramesDue,
    HandshakeAnswered,
    HandshakeRefused,
    MessageAccepted,
    MessageClosed,
    MessageStarted,
    NativeTurnEnded,
    Normalised,
    ProcessMustRetire,
    SessionSeen,
    Usage,
    Warned,
)
from runner.drivers.pi.frames import HANDSHAKE_ID, Frame, state_frame, status_of
from runner.drivers.pi.normalise import FAILED_STOPS, native_request, normalise

RETIRE_QUEUE = "QUEUE_NOT_EMPTY"
RETIRE_AUTONOMOUS = "AUTONOMOUS_TURN"
_COUNTS = ("input", "output", "cacheRead", "cacheWrite")

Body = Fact | Normalised


class Phase(Enum):
    """Where our message is."""

    BEFORE_MESSAGE = "BEFORE_MESSAGE"
    WAITING = "WAITING"
    ACCEPTED = "ACCEPTED"
    STARTED = "STARTED"
    ENDED = "ENDED"


class StreamReader:
    """One activation's frames, in order. `model` is the one that the process was started with; None checks none."""

    def __init__(self, model: str | None) -> None:
        self.phase = Phase.BEFORE_MESSAGE
        self._model = model
        self._message_id: str | None = None
        self._handshake_pending = False
        self._is_named = False
        self._content_was_early = False
        self._counts: dict[str, int] = {}
        self._retire_reasons: set[str] = set()

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
        """What one frame says."""
        if frame.is_answer:
            return self._answer(frame)
        match frame.kind:
            case "extension_ui_request":
                request = native_request(frame)
                return [request] if request is not None else []
            case "agent_end" if self._is_running:
                return self._agent_end(frame)
            case "agent_settled" if self.phase in (Phase.ACCEPTED, Phase.STARTED, Phase.ENDED):
                return self._settled(frame)
            case "agent_start" if self.phase is Phase.ENDED:
                return self._retire(RETIRE_AUTONOMOUS)
            case "message_end" if self._is_running:
                return [*self._message(frame.object("message")), *self._content(normalise(frame), frame)]
            case _:
                return self._content(normalise(frame), frame) if self._is_running else []

    @property
    def _is_running(self) -> bool:
        return self.phase in (Phase.ACCEPTED, Phase.STARTED)

    # --- answers ------------------------------------------------------------------------------------------------------
    def _answer(self, frame: Frame) -> list[Body]:
        request_id = frame.text("id")
        match frame.kind:
            case "get_state":
                return self._state(frame, request_id)
            case "prompt" if request_id == self._message_id and self.phase is Phase.WAITING:
                return self._prompt(frame)
            case _:
                return []

    def _state(self, frame: Frame, request_id: str | None) -> list[Body]:
        state = frame.object("data")
        session_id = state.text("sessionId")
        bodies: list[Body] = []
        if request_id == HANDSHAKE_ID and self._handshake_pending:
            self._handshake_pending = False
            refusal = self._refusal(frame, state)
            if refusal is not None:
                return [refusal]
            bodies.append(HandshakeAnswered(session_id, state.text("sessionFile")))
        if session_id is None:
            return bodies
        opens_turn = request_id == f"who-{self._message_id}"
        self._is_named = self._is_named or opens_turn
        bodies.append(SessionSeen(session_id, "get_state", opens_turn))
        if self.phase is Phase.ENDED and state.number("pendingMessageCount") != 0:
            bodies += self._retire(RETIRE_QUEUE)
        return bodies

    def _refusal(self, frame: Frame, state: Frame) -> HandshakeRefused | None:
        if state.text("sessionId") is None:
            return HandshakeRefused("OTHER", frame.text("error") or "the CLI named no session and gave no reason")
        model = state.object("model").text("id")
        if self._model is not None and model != self._model:
            # An unknown model does not keep this CLI from starting.
            return HandshakeRefused("OTHER", f"expected the model {self._model}, the CLI runs {model or 'none'}")
        return None

    def _prompt(self, frame: Frame) -> list[Body]:
        if frame.fields.get("success") is True:
            self.phase = Phase.ACCEPTED
            return [MessageAccepted()]
        self.phase = Phase.ENDED
        why = frame.text("error") or "it gave no reason"
        return [Warned("PROMPT_REFUSED", f"the CLI did not take the message: {why}"), MessageClosed("cancelled")]

    # --- content ------------------------------------------------------------------------------------------------------
    def _message(self, message: Frame) -> list[Body]:
        # Of a call that failed the CLI says zeros, which nobody counted.
        usage = message.object("usage" if message.text("stopReason") not in FAILED_STOPS else "")
        for name in _COUNTS:
            count = usage.number(name)
            if count is not None:
                self._counts[name] = self._counts.get(name, 0) + count
        if message.text("role") != "user" or self.phase is not Phase.ACCEPTED:
            return []
        self.phase = Phase.STARTED
        return [MessageStarted()]

    def _content(self, events: list[Normalised], frame: Frame) -> list[Body]:
        if not events or self._is_named:
            return [*events]
        if self._content_was_early:
            return []
        self._content_was_early = True
        return [ContentBeforeIdentity(frame.kind)]

    # --- the end ------------------------------------------------------------------------------------------------------
    def _agent_end(self, frame: Frame) -> list[Body]:
        if frame.fields.get("willRetry") is not False:
            return []
        replies = [one for one in frame.objects("messages") if one.text("role") == "assistant"]
        last = replies[-1] if replies else Frame({})
        return self._end(last.text("stopReason"), last.text("errorMessage"))

    def _settled(self, frame: Frame) -> list[Body]:
        bodies: list[Body] = []
        if self._is_running:
            bodies += self._end("aborted" if frame.fields.get("aborted") is True else None, None)
        return [*bodies, FramesDue((state_frame(f"end-{self._message_id}"),))]

    def _end(self, stop: str | None, error: str | None) -> list[Body]:
        self.phase = Phase.ENDED
        ended = NativeTurnEnded(
            failed=stop != "stop",
            cancelled=stop == "aborted",
            reason="api_error" if stop == "error" else stop,
            error=error if stop != "stop" else None,
            status=status_of(error),
        )
        if not self._counts:
            return [ended]
        return [Usage(*(self._counts.get(name) for name in _COUNTS)), ended]

    def _retire(self, reason: str) -> list[Body]:
        """Each reason once."""
        if reason in self._retire_reasons:
            return []
        self._retire_reasons.add(reason)
        return [ProcessMustRetire(reason)]
