"""One activation on the host: from the manager's grant to the observation, and to what becomes of the process. Pure.

    GRANTED ── PrepareBegun ──▶ PREPARING ── Prepared ──▶ READY ── Admitted ──▶ ADMITTED
                                                                                   │ MessageArrived: record FORWARDED durably first
                                                                                   ▼
    QUIESCING ◀─ LifecycleOver ── ENDED ◀── NativeEnded ── FORWARDED ◀─ Recorded ─ FORWARDING
        │  ▲                                                   │ CliExited, InterruptWaitOver
        │  └───────────────────────────────────────────────────┘
        │ Quiesced
        ▼
    OBSERVING ── ObservationJournalled ──▶ OBSERVED ── Settled ──▶ CLOSED

    before FORWARDING: PrepareFailed, CliExited, Interrupted, Abandoned, SupervisorLost ──▶ FAILED (nothing was sent)
    from FORWARDED on: SupervisorLost ──▶ OBSERVING (what is known is journalled; the slot is unknown)

The frame that carries the message leaves only after its FORWARDED record is durable outside the sandbox: a crash in between reads as
"perhaps sent", never as "not sent". An interrupt that comes while the record is being written means that the frame is not written at
all; the observation then says that nothing was forwarded.

It does not know the wire, the engine or the clock: waits are effects, their ends are events.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sandbox_manager.core.values import ActivationReport, NativeEnd, Observation, ProcessDisposition
from sandbox_manager.host.core.errors import AdmissionConflictError, IllegalTransitionError
from sandbox_manager.host.core.gate import Admission


class ActivationState(Enum):
    GRANTED = "GRANTED"
    PREPARING = "PREPARING"
    READY = "READY"
    ADMITTED = "ADMITTED"
    FORWARDING = "FORWARDING"
    FORWARDED = "FORWARDED"
    ENDED = "ENDED"
    QUIESCING = "QUIESCING"
    OBSERVING = "OBSERVING"
    OBSERVED = "OBSERVED"
    CLOSED = "CLOSED"
    FAILED = "FAILED"


# --- events --------------------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class PrepareBegun:
    """The slot is being made ready."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Process, handshake and store were looked at; this is what was found."""

    report: ActivationReport


@dataclass(frozen=True, slots=True)
class PrepareFailed:
    """The slot could not be made ready. `reason` is a stable word."""

    reason: str


@dataclass(frozen=True, slots=True)
class Admitted:
    """The manager's signed admission of one message."""

    admission: Admission


@dataclass(frozen=True, slots=True)
class MessageArrived:
    """The gate let the one user frame of this admission pass."""

    frame: bytes


@dataclass(frozen=True, slots=True)
class ForwardRecorded:
    """The FORWARDED record is durable."""


@dataclass(frozen=True, slots=True)
class ForwardNotRecorded:
    """The FORWARDED record could not be written: nothing may leave."""

    reason: str


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The work is to stop. `by` is one of the words of Observation.interrupted_by."""

    by: str


@dataclass(frozen=True, slots=True)
class InterruptWaitOver:
    """The native interrupt brought no end within its time."""


@dataclass(frozen=True, slots=True)
class MessageStarted:
    """The CLI began to work on our message."""


@dataclass(frozen=True, slots=True)
class NativeEnded:
    """The tap showed the end evidence of our message's turn."""

    end: NativeEnd


@dataclass(frozen=True, slots=True)
class LifecycleOver:
    """The CLI closed our message, or the wait for that ran out."""


@dataclass(frozen=True, slots=True)
class CliExited:
    """The CLI's process is gone (from wait, not from the end of its stream), and its output was read to the end."""

    exit_code: int | None


@dataclass(frozen=True, slots=True)
class SupervisorLost:
    """The sandbox side does not answer any more: supervisor, container or engine is gone."""


@dataclass(frozen=True, slots=True)
class Quiesced:
    """Clean-up is over and everything was looked at once."""

    observation: Observation


@dataclass(frozen=True, slots=True)
class ObservationJournalled:
    """The observation is durable outside the sandbox."""

    observation: Observation


@dataclass(frozen=True, slots=True)
class Settled:
    """The manager judged. `disposition` is final now."""

    disposition: ProcessDisposition


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The manager gave the activation up before a message was sent."""


Event = (
    PrepareBegun
    | Prepared
    | PrepareFailed
    | Admitted
    | MessageArrived
    | ForwardRecorded
    | ForwardNotRecorded
    | Interrupted
    | InterruptWaitOver
    | MessageStarted
    | NativeEnded
    | LifecycleOver
    | CliExited
    | SupervisorLost
    | Quiesced
    | ObservationJournalled
    | Settled
    | Abandoned
)


# --- effects -------------------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class MakeReady:
    """Reclaim what is left, start or find the process, read the store."""


@dataclass(frozen=True, slots=True)
class SendReport:
    """Sign the report and give it to the caller."""

    report: ActivationReport


@dataclass(frozen=True, slots=True)
class OpenGate:
    """Let exactly this message pass."""

    admission: Admission


@dataclass(frozen=True, slots=True)
class RecordForwarded:
    """Write FORWARDED durably; then ForwardRecorded or ForwardNotRecorded."""

    admission: Admission


@dataclass(frozen=True, slots=True)
class WriteMessage:
    """Write the frame to the CLI."""

    frame: bytes


@dataclass(frozen=True, slots=True)
class WriteInterrupt:
    """Write the native interrupt, and wait for the native end for a bounded time (InterruptWaitOver)."""


@dataclass(frozen=True, slots=True)
class CloseGate:
    """Let nothing pass any more."""


@dataclass(frozen=True, slots=True)
class AwaitLifecycle:
    """Wait at most a second for the CLI to close our message."""


@dataclass(frozen=True, slots=True)
class Quiesce:
    """End the turn's processes, take the census, read the store; then Quiesced. `end_process`: the CLI itself goes too."""

    end_process: bool


@dataclass(frozen=True, slots=True)
class ObserveBlind:
    """Put together the observation from what was seen before the sandbox was lost; then Quiesced."""


@dataclass(frozen=True, slots=True)
class JournalObservation:
    """Write the observation durably; then ObservationJournalled."""

    observation: Observation


@dataclass(frozen=True, slots=True)
class OfferObservation:
    """Tell the caller and the manager that it can be taken."""

    observation: Observation


@dataclass(frozen=True, slots=True)
class ReleaseSlot:
    """Give the slot back with this disposition."""

    disposition: ProcessDisposition


@dataclass(frozen=True, slots=True)
class TellNotSent:
    """Tell the caller that nothing was sent, and why."""

    reason: str


Effect = (
    MakeReady
    | SendReport
    | OpenGate
    | RecordForwarded
    | WriteMessage
    | WriteInterrupt
    | CloseGate
    | AwaitLifecycle
    | Quiesce
    | ObserveBlind
    | JournalObservation
    | OfferObservation
    | ReleaseSlot
    | TellNotSent
)

_BEFORE_MESSAGE = (
    ActivationState.GRANTED,
    ActivationState.PREPARING,
    ActivationState.READY,
    ActivationState.ADMITTED,
)
_SENT_AND_OPEN = (
    ActivationState.FORWARDED,
    ActivationState.ENDED,
    ActivationState.QUIESCING,
)


class Activation:
    """The machine. One task owns it; others send it events."""

    def __init__(self) -> None:
        self.state = ActivationState.GRANTED
        self.report: ActivationReport | None = None
        self.admission: Admission | None = None
        self.is_written = False
        self.is_started = False
        self.end: NativeEnd | None = None
        self.interrupted_by: str | None = None
        self.exit_code: int | None = None
        self.observation: Observation | None = None
        self.failed_because: str | None = None
        self._frame = b""
        self._has_exited = False

    def step(self, event: Event) -> list[Effect]:
        """Takes one event and says what is to be done. An impossible event raises IllegalTransitionError and changes nothing."""
        match self.state, event:
            case ActivationState.GRANTED, PrepareBegun():
                self.state = ActivationState.PREPARING
                return [MakeReady()]
            case ActivationState.PREPARING, Prepared(report):
                self.state, self.report = ActivationState.READY, report
                return [SendReport(report)]
            case ((ActivationState.GRANTED | ActivationState.PREPARING), PrepareFailed(reason)):
                return self._fail(reason)
            case ((ActivationState.READY | ActivationState.ADMITTED), Admitted(admission)):
                return self._admit(admission)
            case ActivationState.ADMITTED, MessageArrived(frame):
                return self._begin_forward(frame)
            case ActivationState.FORWARDING, ForwardRecorded():
                return self._forward()
            case ActivationState.FORWARDING, ForwardNotRecorded(reason):
                return self._fail(reason)
            case _, Abandoned() if self.state in _BEFORE_MESSAGE:
                return self._fail("ABANDONED")
            case ActivationState.FAILED, Abandoned():
                return []  # already so
            case _, Interrupted(by):
                return self._interrupt(by, event)
            case _, CliExited(exit_code):
                return self._exited(exit_code, event)
            case _, SupervisorLost():
                return self._lose_sandbox(event)
            case _:
                return self._wind_up(event)

    def _wind_up(self, event: Event) -> list[Effect]:
        """From the native end on."""
        match self.state, event:
            case ActivationState.FORWARDED, MessageStarted():
                return self._started()
            case _, MessageStarted() if self.state in (*_SENT_AND_OPEN[1:], ActivationState.OBSERVING):
                return []  # it is over by now
            case ActivationState.FORWARDED, NativeEnded(end):
                self.state, self.end = ActivationState.ENDED, end
                return [CloseGate(), AwaitLifecycle()]
            case ActivationState.FORWARDED, InterruptWaitOver() if self.interrupted_by is not None:
                self.state = ActivationState.QUIESCING
                return [CloseGate(), Quiesce(end_process=True)]
            case _, InterruptWaitOver() if self.state in (*_SENT_AND_OPEN[1:], ActivationState.OBSERVING):
                return []  # the end came while the wait was running out
            case ActivationState.ENDED, LifecycleOver():
                self.state = ActivationState.QUIESCING
                return [Quiesce(end_process=False)]
            case ActivationState.QUIESCING, Quiesced(observation):
                self.state, self.observation = ActivationState.OBSERVING, observation
                return [JournalObservation(observation)]
            case ActivationState.OBSERVING, Quiesced(observation) if self.observation is None:
                self.observation = observation
                return [JournalObservation(observation)]
            case ActivationState.OBSERVING, ObservationJournalled(observation) if self.observation == observation:
                self.state = ActivationState.OBSERVED
                return [OfferObservation(observation)]
            case ActivationState.OBSERVED, Settled(disposition):
                self.state = ActivationState.CLOSED
                return [ReleaseSlot(disposition)]
            case ActivationState.CLOSED, Settled():
                return []  # already so
            case _:
                raise self._illegal(event)

    def _admit(self, admission: Admission) -> list[Effect]:
        if self.admission == admission:
            return []  # already so
        if self.admission is not None:
            raise AdmissionConflictError(
                "this activation was admitted for another message; one activation sends one message",
                {"admitted": self.admission.message_digest, "found": admission.message_digest},
            )
        self.state, self.admission = ActivationState.ADMITTED, admission
        return [OpenGate(admission)]

    def _begin_forward(self, frame: bytes) -> list[Effect]:
        assert self.admission is not None
        self.state, self._frame = ActivationState.FORWARDING, frame
        return [RecordForwarded(self.admission)]

    def _forward(self) -> list[Effect]:
        frame, self._frame = self._frame, b""
        if self.interrupted_by is not None or self._has_exited:
            self.state = ActivationState.QUIESCING
            return [CloseGate(), Quiesce(end_process=True)]
        self.state, self.is_written = ActivationState.FORWARDED, True
        return [WriteMessage(frame)]

    def _started(self) -> list[Effect]:
        if self.is_started:
            return []  # already so
        self.is_started = True
        # Claude Code takes an interrupt that reaches it before it has begun on the message, and lets the message run all the same
        # (its receipt names it as still queued; seen within 2 ms of the write). So the interrupt goes once more.
        return [WriteInterrupt()] if self.interrupted_by is not None else []

    def _interrupt(self, by: str, event: Event) -> list[Effect]:
        if self.state in _BEFORE_MESSAGE:
            return self._fail(by)
        if self.state is ActivationState.FORWARDING:
            self.interrupted_by = self.interrupted_by or by
            return []
        if self.state is ActivationState.FORWARDED:
            if self.interrupted_by is not None:
                return []  # already so
            self.interrupted_by = by
            return [WriteInterrupt()]
        if self.state in (ActivationState.CLOSED, ActivationState.FAILED):
            raise self._illegal(event)
        return []  # the native turn is over: there is nothing to interrupt

    def _exited(self, exit_code: int | None, event: Event) -> list[Effect]:
        if self.state is ActivationState.GRANTED or self._has_exited:
            raise self._illegal(event)
        if self.state in _BEFORE_MESSAGE:
            self._note_exit(exit_code)
            return self._fail("CLI_EXIT")
        if self.state is ActivationState.FORWARDED:
            self._note_exit(exit_code)
            self.state = ActivationState.QUIESCING
            self.interrupted_by = self.interrupted_by or "CLI_EXIT"
            return [CloseGate(), Quiesce(end_process=True)]
        if self.state is ActivationState.ENDED:
            self._note_exit(exit_code)
            self.state = ActivationState.QUIESCING
            return [Quiesce(end_process=True)]
        if self.state is ActivationState.FORWARDING:
            self._note_exit(exit_code)
            self.interrupted_by = self.interrupted_by or "CLI_EXIT"
            return []
        if self.state in (ActivationState.CLOSED, ActivationState.FAILED):
            raise self._illegal(event)
        self._note_exit(exit_code)
        return []  # the observation or the slot says so

    def _note_exit(self, exit_code: int | None) -> None:
        self._has_exited, self.exit_code = True, exit_code

    def _lose_sandbox(self, event: Event) -> list[Effect]:
        if self.state in _BEFORE_MESSAGE:
            return self._fail("SUPERVISOR_LOST")
        if self.state is ActivationState.FORWARDING:
            self.interrupted_by = self.interrupted_by or "SUPERVISOR_LOST"
            return []
        if self.state in _SENT_AND_OPEN:
            # After the native end nothing was interrupted; only the store and the census are missing then.
            if self.end is None:
                self.interrupted_by = self.interrupted_by or "SUPERVISOR_LOST"
            self.state = ActivationState.OBSERVING
            return [CloseGate(), ObserveBlind()]
        if self.state in (ActivationState.OBSERVING, ActivationState.OBSERVED):
            return []  # the observation is taken; the slot learns of it by itself
        raise self._illegal(event)

    def _fail(self, reason: str) -> list[Effect]:
        # A kept process that nothing was written to is as good as it was before; a new one is not recorded anywhere yet.
        untouched = self.report is not None and self.report.process_was_running
        is_kept = untouched and reason not in ("CLI_EXIT", "SUPERVISOR_LOST")
        self.state, self.failed_because = ActivationState.FAILED, reason
        disposition = ProcessDisposition.KEPT if is_kept else ProcessDisposition.RECLAIM_FIRST
        return [CloseGate(), TellNotSent(reason), ReleaseSlot(disposition)]

    def _illegal(self, event: Event) -> IllegalTransitionError:
        return IllegalTransitionError("activation", self.state.value, type(event).__name__)
