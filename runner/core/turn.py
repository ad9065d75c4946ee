"""The machine of one turn. Pure: events in, effects out; the conductor performs the effects and gives the events.

    ACCEPTED ─Claimed▶ PREPARING ─Prepared▶ ACTIVATING ─ReportReceived▶ ADMITTING ─Admitted▶ RUNNING
        │                 │                     │                           │                  │ NativeEnded
        │ Unavailable     │ Unavailable         └────── Refused, Unavailable, AttachBroke,     ▼
        ▼                 ▼                             cancel, limits ─────┐               QUIESCING
    FORGOTTEN         FORGOTTEN                                             │                  │ Observed, AttachBroke,
                                                                            │                  ▼ QuiesceTimedOut
    ACCEPTED ─Refused▶ ENDED        RUNNING ─no native end▶ ABANDONING ◀────┘   ┌───────── SETTLING ─Settled▶ SETTLED
    ACCEPTED ─KnownOver▶ ENDED                                 │  ▲             │              ▲
                                                               │  └─NotEnded────┘              │
                                                               ├─NativeEndFound────────────────┘
                                                               └─Abandoned▶ ENDED

FORGOTTEN: nothing was sent and nothing is recorded; the same turn_id may try again. ENDED: over without a settlement.
A stop (cancel, time limit, unanswered question) while RUNNING asks for a native interrupt and goes on waiting for the
native end; the first stop counts. It decides no outcome of a settlement: that is `settlement.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from runner.core.errors import IllegalTransitionError
from runner.core.events import NativeTurnEnded
from runner.core.values import Cause, Outcome


class TurnState(Enum):
    """Where a turn is."""

    ACCEPTED = "ACCEPTED"
    PREPARING = "PREPARING"
    ACTIVATING = "ACTIVATING"
    ADMITTING = "ADMITTING"
    RUNNING = "RUNNING"
    QUIESCING = "QUIESCING"
    SETTLING = "SETTLING"
    ABANDONING = "ABANDONING"
    SETTLED = "SETTLED"
    ENDED = "ENDED"
    FORGOTTEN = "FORGOTTEN"


OVER = frozenset({TurnState.SETTLED, TurnState.ENDED, TurnState.FORGOTTEN})
_BEFORE_SENDING = frozenset({TurnState.ACTIVATING, TurnState.ADMITTING})


# --- events ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Claimed:
    """The manager has the claim; a former turn, if there was one, is resolved."""


@dataclass(frozen=True, slots=True)
class KnownOver:
    """The manager knows this turn and it is over: another runner, or this one before it lost its store, ran it."""

    outcome: Outcome
    cause: Cause | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """The activation is granted and passed the runner's own checks."""


@dataclass(frozen=True, slots=True)
class ReportReceived:
    """The host agent's signed report came: slot, process and handshake are as it says."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The manager admitted the message."""


@dataclass(frozen=True, slots=True)
class Forwarded:
    """The host agent wrote the message to the CLI."""


@dataclass(frozen=True, slots=True)
class NativeStarted:
    """The CLI began to work on the message."""


@dataclass(frozen=True, slots=True)
class WillNotEnd:
    """The CLI said that it does not work on the message: no native end will come."""

    cause: Cause


@dataclass(frozen=True, slots=True)
class NativeEnded:
    """The CLI's own end evidence of this turn."""

    end: NativeTurnEnded


@dataclass(frozen=True, slots=True)
class Observed:
    """The host agent journalled its observation; no more bytes come. `cause`: why there is no native end, if the stream said so."""

    native_end_seen: bool
    cause: Cause | None = None


@dataclass(frozen=True, slots=True)
class AttachBroke:
    """The stream that carries the work ended before the observation. `before_forwarded`: the host agent promises that
    nothing of the message was written. `refused`: someone must fix something before it can work.
    """

    cause: Cause
    before_forwarded: bool
    refused: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """The manager, or a check of the runner's own, refuses the turn before anything was sent."""

    cause: Cause


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Something that is needed before sending does not answer, or is exhausted. Nothing was sent."""

    cause: Cause


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The turn shall end. `outcome`: CANCELLED, TIMED_OUT or UNANSWERED_QUESTION."""

    outcome: Outcome
    cause: Cause


@dataclass(frozen=True, slots=True)
class StopTimedOut:
    """The native interrupt brought no native end in time."""


@dataclass(frozen=True, slots=True)
class QuiesceTimedOut:
    """The observation did not come in time; the manager is asked all the same."""


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """The manager says that the activation is no longer this runner's."""

    cause: Cause


@dataclass(frozen=True, slots=True)
class Resumed:
    """The runner started and finds this turn unresolved; what was sent is not known here."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The manager settled the turn (with whatever verdict), and the runner's record is made."""


@dataclass(frozen=True, slots=True)
class NotEnded:
    """The manager finds no native end in the host agent's observation."""

    cause: Cause


@dataclass(frozen=True, slots=True)
class NativeEndFound:
    """The host agent's journal holds native end evidence of a turn that was to be given up."""


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The turn is given up. `outcome` as the manager corrected it."""

    outcome: Outcome
    cause: Cause | None


Event = (
    Claimed
    | KnownOver
    | Prepared
    | ReportReceived
    | Admitted
    | Forwarded
    | NativeStarted
    | WillNotEnd
    | NativeEnded
    | Observed
    | AttachBroke
    | Refused
    | Unavailable
    | StopRequested
    | StopTimedOut
    | QuiesceTimedOut
    | LeaseLost
    | Resumed
    | Settled
    | NotEnded
    | NativeEndFound
    | Abandoned
)


# --- effects --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Prepare:
    """Ask the manager for the activation, and check the answer."""


@dataclass(frozen=True, slots=True)
class OpenAttach:
    """Open the stream that carries the work, and do the native handshake."""


@dataclass(frozen=True, slots=True)
class Admit:
    """Ask the manager to admit the message."""


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Send the admission and the one user frame. Happens at most once in a turn's life."""


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Send the native interrupt. `outcome` names why."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class CloseAttach:
    """End the stream that carries the work: the host agent interrupts and frees the slot by itself."""


@dataclass(frozen=True, slots=True)
class AnnounceEnd:
    """Tell the client that the native turn is over (or will not come to its end). Verification follows."""

    outcome: Outcome
    cause: Cause | None


@dataclass(frozen=True, slots=True)
class Settle:
    """Record the runner's verdict and ask the manager to settle. `replay`: the bytes are read again from the journal."""

    replay: bool


@dataclass(frozen=True, slots=True)
class Abandon:
    """Give the turn up at the manager. `may_have_been_sent`: only the manager's answer tells what became of it."""

    outcome: Outcome
    cause: Cause | None
    may_have_been_sent: bool


@dataclass(frozen=True, slots=True)
class Finish:
    """Record the end without a settlement."""

    outcome: Outcome
    cause: Cause | None


@dataclass(frozen=True, slots=True)
class Forget:
    """Take the turn out of the record: nothing was sent, and the same turn_id may try again."""

    cause: Cause


Effect = (
    Prepare
    | OpenAttach
    | Admit
    | SendMessage
    | Interrupt
    | CloseAttach
    | AnnounceEnd
    | Settle
    | Abandon
    | Finish
    | Forget
)


class TurnMachine:
    """One turn. `state`, `stop`, `native_end` and `forwarded` may be read; only `step` changes them."""

    def __init__(self) -> None:
        self.state = TurnState.ACCEPTED
        self.forwarded = False
        self.native_end: NativeTurnEnded | None = None
        self.stop: StopRequested | None = None
        self._end_is_announced = False

    @property
    def is_over(self) -> bool:
        return self.state in OVER

    def step(self, event: Event) -> list[Effect]:
        """Takes one event. Raises IllegalTransitionError, and changes nothing, for one that cannot happen here."""
        match event:
            case StopRequested():
                return self._stop(event)
            case AttachBroke():
                return self._attach_broke(event)
            case LeaseLost(cause):
                return self._lease_lost(cause)
            case Refused(cause):
                return self._refused(cause)
            case Unavailable(cause):
                return self._unavailable(cause)
            case Observed():
                return self._observed(event)
            case _:
                return self._forward(event)

    def _forward(self, event: Event) -> list[Effect]:
        """The events that each belong to one state."""
        match self.state, event:
            case TurnState.ACCEPTED, Claimed():
                return self._go(TurnState.PREPARING, Prepare())
            case TurnState.ACCEPTED, KnownOver(outcome, cause):
                return self._go(TurnState.ENDED, Finish(outcome, cause))
            case TurnState.ACCEPTED, Resumed():
                return self._abandon(Outcome.INTERRUPTED, None, may_have_been_sent=True)
            case TurnState.PREPARING, Prepared():
                return self._go(TurnState.ACTIVATING, OpenAttach())
            case TurnState.ACTIVATING, ReportReceived():
                return self._go(TurnState.ADMITTING, Admit())
            case TurnState.ADMITTING, Admitted():
                return self._go(TurnState.RUNNING, SendMessage())
            case ((TurnState.RUNNING | TurnState.QUIESCING), Forwarded()):
                self.forwarded = True
                return []
            case TurnState.RUNNING, NativeStarted():
                # An interrupt that came before the CLI began was an interrupt of nothing.
                return [Interrupt(self.stop.outcome)] if self.stop is not None else []
            case TurnState.RUNNING, NativeEnded(end):
                self.forwarded = True
                self.native_end = end
                return [*self._announce(*self._native_outcome(end)), *self._go(TurnState.QUIESCING)]
            case TurnState.RUNNING, StopTimedOut() if self.stop is not None:
                return [CloseAttach(), *self._abandon(self.stop.outcome, self.stop.cause, may_have_been_sent=True)]
            case TurnState.RUNNING, WillNotEnd(cause):
                stop = self.stop or StopRequested(Outcome.INTERRUPTED, cause)
                return [CloseAttach(), *self._abandon(stop.outcome, stop.cause, may_have_been_sent=True)]
            case TurnState.QUIESCING, QuiesceTimedOut():
                return [CloseAttach(), *self._go(TurnState.SETTLING, Settle(replay=False))]
            case TurnState.SETTLING, Settled():
                return self._go(TurnState.SETTLED)
            case TurnState.SETTLING, NotEnded(cause):
                return self._abandon(Outcome.INTERRUPTED, cause, may_have_been_sent=True)
            case TurnState.ABANDONING, NativeEndFound():
                return self._go(TurnState.SETTLING, Settle(replay=True))
            case TurnState.ABANDONING, Abandoned(outcome, cause):
                return self._go(TurnState.ENDED, Finish(outcome, cause))
            case _:
                raise self._illegal(event)

    # --- events that may come in several states --------------------------------------------------------------------
    def _stop(self, event: StopRequested) -> list[Effect]:
        """A request: accepted, or already so. It never brings a turn back, and never changes a stop that was given."""
        if self.stop is not None or self.state not in _STOPPABLE:
            return []
        self.stop = event
        if self.state is TurnState.RUNNING:
            return [Interrupt(event.outcome)]
        if self.state is TurnState.ACCEPTED:
            # The claim may or may not have been made; giving it up is safe either way.
            return self._abandon(event.outcome, event.cause, may_have_been_sent=False)
        close: list[Effect] = [CloseAttach()] if self.state in _BEFORE_SENDING else []
        return [*close, *self._abandon(event.outcome, event.cause, may_have_been_sent=False)]

    def _attach_broke(self, event: AttachBroke) -> list[Effect]:
        match self.state:
            case TurnState.ACTIVATING | TurnState.ADMITTING:
                outcome = Outcome.REFUSED if event.refused else Outcome.NOT_SENT
                return [CloseAttach(), *self._abandon(outcome, event.cause, may_have_been_sent=False)]
            case TurnState.RUNNING:
                return [CloseAttach(), *self._broke_while_running(event)]
            case TurnState.QUIESCING:
                return [CloseAttach(), *self._go(TurnState.SETTLING, Settle(replay=False))]
            case _:
                raise self._illegal(event)

    def _broke_while_running(self, event: AttachBroke) -> list[Effect]:
        if self.stop is not None:
            return self._abandon(self.stop.outcome, self.stop.cause, may_have_been_sent=True)
        if event.before_forwarded and not self.forwarded:
            outcome = Outcome.REFUSED if event.refused else Outcome.NOT_SENT
            return self._abandon(outcome, event.cause, may_have_been_sent=True)
        return self._abandon(Outcome.INTERRUPTED, event.cause, may_have_been_sent=True)

    def _lease_lost(self, cause: Cause) -> list[Effect]:
        match self.state:
            case TurnState.ACTIVATING | TurnState.ADMITTING:
                return [CloseAttach(), *self._abandon(Outcome.NOT_SENT, cause, may_have_been_sent=False)]
            case TurnState.RUNNING:
                # Another runner may hold the member now: the work must stop, not only its report.
                return [CloseAttach(), *self._abandon(Outcome.INTERRUPTED, cause, may_have_been_sent=True)]
            case TurnState.QUIESCING | TurnState.SETTLING | TurnState.ABANDONING:
                return []  # the native turn is over; who may settle it, the manager says
            case _:
                raise self._illegal(LeaseLost(cause))

    def _refused(self, cause: Cause) -> list[Effect]:
        match self.state:
            case TurnState.ACCEPTED:
                return self._go(TurnState.ENDED, Finish(Outcome.REFUSED, cause))
            case TurnState.PREPARING:
                return self._abandon(Outcome.REFUSED, cause, may_have_been_sent=False)
            case TurnState.ACTIVATING | TurnState.ADMITTING:
                return [CloseAttach(), *self._abandon(Outcome.REFUSED, cause, may_have_been_sent=False)]
            case _:
                raise self._illegal(Refused(cause))

    def _unavailable(self, cause: Cause) -> list[Effect]:
        match self.state:
            case TurnState.ACCEPTED | TurnState.PREPARING:
                return self._go(TurnState.FORGOTTEN, Forget(cause))
            case TurnState.ACTIVATING | TurnState.ADMITTING:
                # The activation was used: it cannot be attached again, so this turn_id cannot go on.
                return [CloseAttach(), *self._abandon(Outcome.NOT_SENT, cause, may_have_been_sent=False)]
            case _:
                raise self._illegal(Unavailable(cause))

    def _observed(self, event: Observed) -> list[Effect]:
        match self.state:
            case TurnState.QUIESCING:
                return self._go(TurnState.SETTLING, Settle(replay=False))
            case TurnState.RUNNING if event.native_end_seen:
                # The host agent saw an end that this side's reading has not: judged as what it is here, Unproven.
                return [*self._announce(Outcome.FAILED, None), *self._go(TurnState.SETTLING, Settle(replay=False))]
            case TurnState.RUNNING:
                outcome = self.stop.outcome if self.stop is not None else Outcome.INTERRUPTED
                cause = self.stop.cause if self.stop is not None else event.cause
                return self._abandon(outcome, cause, may_have_been_sent=True)
            case TurnState.ACTIVATING | TurnState.ADMITTING:
                cause = Cause(
                    "HANDSHAKE_FAILED", "The host agent ended the activation before the message was admitted."
                )
                return [CloseAttach(), *self._abandon(Outcome.NOT_SENT, cause, may_have_been_sent=False)]
            case _:
                raise self._illegal(event)

    # --- steps ------------------------------------------------------------------------------------------------------
    def _go(self, state: TurnState, *effects: Effect) -> list[Effect]:
        self.state = state
        return [*effects]

    def _abandon(self, outcome: Outcome, cause: Cause | None, *, may_have_been_sent: bool) -> list[Effect]:
        announced = self._announce(outcome, cause) if may_have_been_sent and self.state is TurnState.RUNNING else []
        return [*announced, *self._go(TurnState.ABANDONING, Abandon(outcome, cause, may_have_been_sent))]

    def _announce(self, outcome: Outcome, cause: Cause | None) -> list[Effect]:
        if self._end_is_announced:
            return []
        self._end_is_announced = True
        return [AnnounceEnd(outcome, cause)]

    def _native_outcome(self, end: NativeTurnEnded) -> tuple[Outcome, Cause | None]:
        if self.stop is not None:
            return self.stop.outcome, self.stop.cause
        return (Outcome.FAILED if end.failed else Outcome.COMPLETED), None

    def _illegal(self, event: Event) -> IllegalTransitionError:
        return IllegalTransitionError(f"{type(event).__name__} in {self.state.value}: this cannot happen")


_STOPPABLE = frozenset(
    {
        TurnState.ACCEPTED,
        TurnState.PREPARING,
        TurnState.ACTIVATING,
        TurnState.ADMITTING,
        TurnState.RUNNING,
    }
)
