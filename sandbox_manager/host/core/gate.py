"""The last gate before a CLI: which frame may go to it, and which may not. Pure; one object per activation.

    HANDSHAKE ── admit ──▶ ADMITTED ── the one message passed ──▶ FORWARDED ── end ──▶ ENDED
        └───────────────────── end, from every state ────────────────────────────────────┘

    HANDSHAKE   each step of the handshake once, when the process is new
    ADMITTED    exactly one message: its decoded text has the admitted digest and length, its id is the admitted one; fences
    FORWARDED   answers to native requests that are open; interrupts; fences
    ENDED       fences, which only read

The runner builds every frame; the gate only recognises. It works on the agent's own small grammar, so it holds for every CLI alike.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

from sandbox_manager.agents.port import (
    AnswerFrame,
    FenceFrame,
    ForbiddenFrame,
    GateContext,
    GateFrame,
    HandshakeFrame,
    InterruptFrame,
    UserFrame,
)
from sandbox_manager.core.values import NativeLocator
from sandbox_manager.host.core.errors import IllegalTransitionError

MESSAGE_LENGTH_MAX = 4 * 1024 * 1024
"""Bytes of a message's text, the default."""

_ESCAPED_BYTES_PER_BYTE = 6  # one control character as \u00XX
_FRAME_SLACK = 4096  # the frame's own keys and ids
_INTERRUPTS_MAX = 16
_FENCES_MAX = 16


@dataclass(frozen=True, slots=True)
class Admission:
    """What the manager admitted: one message, once. `message_length` in bytes of UTF-8."""

    activation_id: str
    message_id: str
    message_digest: str
    message_length: int


@dataclass(frozen=True, slots=True)
class GatePolicy:
    """Switches that break a rule on purpose. Only the entry points of the lab and of tests inject another one than this.

    `let_slash_through`: a text that the CLI would take as a command of its own passes, so that a native `/clear` really happens.
    """

    let_slash_through: bool = False


class GateState(Enum):
    HANDSHAKE = "HANDSHAKE"
    ADMITTED = "ADMITTED"
    FORWARDED = "FORWARDED"
    ENDED = "ENDED"


class FrameKind(Enum):
    HANDSHAKE = "HANDSHAKE"
    FENCE = "FENCE"
    MESSAGE = "MESSAGE"
    ANSWER = "ANSWER"
    INTERRUPT = "INTERRUPT"


@dataclass(frozen=True, slots=True)
class Passed:
    """This frame may go to the CLI. A MESSAGE only after its FORWARDED record is durable."""

    kind: FrameKind
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """This frame may not. `why` says what was expected and found, with no content."""

    reason: str
    why: str


Ruling = Passed | Refused


class Grammar(Protocol):
    """What the gate takes from an agent file."""

    def classify(self, frame: bytes, context: GateContext) -> GateFrame:
        """What one line towards the CLI is."""


class Gate:
    """One activation's gate. Every refused frame changes nothing."""

    def __init__(
        self,
        grammar: Grammar,
        context: GateContext,
        *,
        handshake_expected: bool,
        policy: GatePolicy | None = None,
        message_length_max: int = MESSAGE_LENGTH_MAX,
    ) -> None:
        self.state = GateState.HANDSHAKE
        self._grammar = grammar
        self._context = context
        self._policy = policy or GatePolicy()
        self._message_length_max = message_length_max
        self._frame_length_max = message_length_max * _ESCAPED_BYTES_PER_BYTE + _FRAME_SLACK
        self._handshake_expected = handshake_expected
        self._steps: set[str] = set()
        self._fences_left = _FENCES_MAX
        self._interrupts_left = _INTERRUPTS_MAX
        self._admission: Admission | None = None
        self._open_requests: frozenset[str] = frozenset()
        self._answered: set[str] = set()

    def admit(self, admission: Admission) -> None:
        """Lets one message pass. Raises IllegalTransitionError when one was admitted before."""
        if self.state is not GateState.HANDSHAKE:
            raise IllegalTransitionError("gate", self.state.value, "admit")
        self.state, self._admission = GateState.ADMITTED, admission

    def note_locator(self, locator: NativeLocator) -> None:
        """The session that the CLI named: from now on a frame may name it, and no other."""
        self._context = replace(self._context, locator=locator)

    def note_open_requests(self, request_ids: tuple[str, ...]) -> None:
        """The native requests that the tap shows as open. One that was answered stays answered."""
        self._open_requests = frozenset(request_ids)

    @property
    def unanswered(self) -> tuple[str, ...]:
        """The native requests that wait for an answer."""
        return tuple(sorted(self._open_requests - self._answered))

    def end(self) -> None:
        """Lets nothing pass any more but what only reads. Repeating it changes nothing."""
        self.state = GateState.ENDED

    def check(self, data: bytes) -> Ruling:
        """Rules on one frame. A frame that passed counts as sent."""
        if len(data) > self._frame_length_max:
            return Refused("FRAME_TOO_LARGE", f"expected at most {self._frame_length_max} bytes, found {len(data)}")
        frame = self._grammar.classify(data, self._context)
        if isinstance(frame, FenceFrame):
            return self._fence(frame.request_id)
        if self.state is GateState.ENDED:
            return Refused("TURN_ENDED", "expected no frame after the turn's end, found one")
        match frame:
            case HandshakeFrame(request_id, step):
                return self._handshake(request_id, step)
            case UserFrame() as message:
                return self._message(message)
            case AnswerFrame(request_id):
                return self._answer(request_id)
            case InterruptFrame(request_id):
                return self._interrupt(request_id)
            case ForbiddenFrame(why):
                return Refused("FRAME_FORBIDDEN", why)

    def _handshake(self, request_id: str, step: str) -> Ruling:
        if self.state is not GateState.HANDSHAKE:
            return Refused("HANDSHAKE_TOO_LATE", "expected a handshake before the admission only, found one after it")
        if not self._handshake_expected or step in self._steps:
            return Refused("HANDSHAKE_REPEATED", "expected one handshake of a new process, found another")
        self._steps.add(step)
        return Passed(FrameKind.HANDSHAKE, request_id)

    def _fence(self, request_id: str) -> Ruling:
        if self.state is GateState.HANDSHAKE:
            return Refused("NOT_ADMITTED", "expected an admission before a fence, found none")
        if self._fences_left == 0:
            return Refused("TOO_MANY_FENCES", f"expected at most {_FENCES_MAX} fences, found another")
        self._fences_left -= 1
        return Passed(FrameKind.FENCE, request_id)

    def _message(self, message: UserFrame) -> Ruling:
        if self.state is GateState.HANDSHAKE or self._admission is None:
            return Refused("NOT_ADMITTED", "expected an admission before the message, found none")
        if self.state is GateState.FORWARDED:
            return Refused("SECOND_MESSAGE", "expected one message for one admission, found a second one")
        expected = self._admission
        if message.message_id != expected.message_id:
            return Refused("MESSAGE_MISMATCH", "expected the admitted message id, found another")
        if len(message.text) != expected.message_length or len(message.text) > self._message_length_max:
            return Refused(
                "MESSAGE_MISMATCH", f"expected {expected.message_length} bytes of text, found {len(message.text)}"
            )
        if hashlib.sha256(message.text).hexdigest() != expected.message_digest:
            return Refused("MESSAGE_MISMATCH", "expected the admitted text, found another of the same length")
        if not message.literal and not self._policy.let_slash_through:
            return Refused(
                "MESSAGE_NOT_LITERAL",
                "expected a frame that the CLI reads as text, found one it would run as a command",
            )
        self.state = GateState.FORWARDED
        return Passed(FrameKind.MESSAGE)

    def _answer(self, request_id: str) -> Ruling:
        if self.state is not GateState.FORWARDED:
            return Refused("NOT_FORWARDED", "expected answers only while a turn runs, found one before it")
        if request_id not in self._open_requests or request_id in self._answered:
            return Refused("REQUEST_NOT_OPEN", "expected an answer to an open native request, found another")
        self._answered.add(request_id)
        return Passed(FrameKind.ANSWER, request_id)

    def _interrupt(self, request_id: str) -> Ruling:
        if self.state is not GateState.FORWARDED:
            return Refused("NOT_FORWARDED", "expected interrupts only while a turn runs, found one before it")
        if self._interrupts_left == 0:
            return Refused("TOO_MANY_INTERRUPTS", f"expected at most {_INTERRUPTS_MAX} interrupts, found another")
        self._interrupts_left -= 1
        return Passed(FrameKind.INTERRUPT, request_id)
