"""One conversation's messages that wait for their turn. Pure; what is durable is the store's, and time nobody's here.

    RUNNING ─TurnOver, normal, none waits──────────▶ FREE
       │  ▲                                           │ TurnBegan
       │  └───────────────────────────────────────────┘
       ├─TurnOver, normal, some wait──▶ RUNNING the first of them (Begin)
       └─TurnOver, not normal, some wait──▶ HELD ─Released──▶ RUNNING the first of them (Begin), or FREE when none is left
                                              │ ▲
                                              │ └─TurnOver, however──┐
                                              └─TurnBegan──▶ HELD_RUNNING (a turn that was not queued; what is held stays held)

Order is that of Queued. One message is begun at a time, each for itself; nothing is merged, moved forward or dropped: only its
own Cancelled takes a message out. A message whose turn could not be begun goes back to the front (PutBack), and the queue is held.
"""

from __future__ import annotations

from dataclasses import dataclass

from runner.core.errors import IllegalTransitionError, RunnerError
from runner.core.values import Outcome


class QueueFullError(RunnerError):
    """As many messages of the conversation wait as may."""

    reason = "QUEUE_FULL"


class TurnNotQueuedError(RunnerError):
    """The turn does not wait in a queue."""

    reason = "TURN_NOT_QUEUED"


@dataclass(frozen=True, slots=True)
class Hold:
    """Why nothing is begun. `outcome` None: the turn could not be begun; `reason` says why, where that is known."""

    after_turn: str
    outcome: Outcome | None
    reason: str


# --- events ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class TurnBegan:
    """A turn runs that was not queued."""

    turn_id: str


@dataclass(frozen=True, slots=True)
class Queued:
    """A message is to wait."""

    turn_id: str


@dataclass(frozen=True, slots=True)
class TurnOver:
    """The running turn is over. `hold` None: its end was a normal one."""

    turn_id: str
    hold: Hold | None


@dataclass(frozen=True, slots=True)
class PutBack:
    """The running turn was queued, and could not be begun: nothing of it was sent."""

    turn_id: str
    hold: Hold


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A waiting message is taken out."""

    turn_id: str


@dataclass(frozen=True, slots=True)
class Released:
    """A held queue may go on."""


@dataclass(frozen=True, slots=True)
class TakenUp:
    """The runner has started, and knows what runs: a queue that is not held goes on."""


Event = TurnBegan | Queued | TurnOver | PutBack | Cancelled | Released | TakenUp


def hold_after(turn_id: str, outcome: Outcome, *, is_settled: bool, reason: str) -> Hold | None:
    """The hold that follows on a turn's end; None after a normal one: COMPLETED, or FAILED with the session settled and kept."""
    if outcome is Outcome.COMPLETED or (outcome is Outcome.FAILED and is_settled):
        return None
    return Hold(turn_id, outcome, reason)


# --- effects --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Begin:
    """Begin this message's turn now. It counts as running from here on."""

    turn_id: str


@dataclass(frozen=True, slots=True)
class TellQueued:
    """Tell this message's viewers that it waits behind so many others."""

    turn_id: str
    ahead: int


@dataclass(frozen=True, slots=True)
class TellHeld:
    """Tell this message's viewers that it is held."""

    turn_id: str
    hold: Hold


@dataclass(frozen=True, slots=True)
class RecordHold:
    """Make the hold, or its end (None), durable. Comes before anything that rests on it."""

    hold: Hold | None


Effect = Begin | TellQueued | TellHeld | RecordHold


class MessageQueue:
    """`waiting`, `running` and `hold` may be read; only `step` changes them."""

    def __init__(self, messages_max: int, *, waiting: tuple[str, ...] = (), hold: Hold | None = None) -> None:
        """`waiting` and `hold`: as they were recorded before a restart."""
        self.messages_max = messages_max
        self.waiting: list[str] = list(waiting)
        self.running: str | None = None
        self.hold = hold

    @property
    def is_idle(self) -> bool:
        """Nothing runs, nothing waits, nothing is held: the queue need not be kept in memory."""
        return self.running is None and not self.waiting and self.hold is None

    def step(self, event: Event) -> list[Effect]:
        """Takes one event. Raises QueueFullError, TurnNotQueuedError or IllegalTransitionError, and changes nothing then."""
        match event:
            case TurnBegan(turn_id):
                if self.running is not None:
                    raise IllegalTransitionError(f"TurnBegan {turn_id} while {self.running} runs")
                self.running = turn_id
                return []
            case Queued(turn_id):
                return self._queued(turn_id)
            case TurnOver(turn_id, hold):
                self._require_running(turn_id)
                self.running = None
                return self._held(hold) if hold is not None and self.waiting else self._next()
            case PutBack(turn_id, hold):
                self._require_running(turn_id)
                self.running = None
                self.waiting.insert(0, turn_id)
                return self._held(hold)
            case Cancelled(turn_id):
                return self._cancelled(turn_id)
            case Released():
                if self.hold is None:
                    return []  # already so
                self.hold = None
                return [RecordHold(None), *self._next()]
            case TakenUp():
                return self._next()

    def _queued(self, turn_id: str) -> list[Effect]:
        if turn_id in self.waiting or turn_id == self.running:
            raise IllegalTransitionError(f"Queued {turn_id} twice")
        if len(self.waiting) >= self.messages_max:
            raise QueueFullError(
                f"{len(self.waiting)} messages of this conversation wait already; at most {self.messages_max} may. Wait, or take "
                "one out.",
                {"messages_max": self.messages_max},
            )
        self.waiting.append(turn_id)
        if self.running is None and self.hold is None:
            return self._next()
        told: list[Effect] = [TellQueued(turn_id, len(self.waiting) - 1)]
        if self.hold is not None:
            told.append(TellHeld(turn_id, self.hold))
        return told

    def _cancelled(self, turn_id: str) -> list[Effect]:
        if turn_id not in self.waiting:
            raise TurnNotQueuedError(
                f"Turn {turn_id} does not wait in the queue.", {"turn_id": turn_id, "running_turn": self.running or ""}
            )
        self.waiting.remove(turn_id)
        if not self.waiting and self.hold is not None:
            self.hold = None  # there is nothing left to hold
            return [RecordHold(None)]
        return []

    def _held(self, hold: Hold) -> list[Effect]:
        if self.hold is not None:
            return []  # the first reason stays: nothing was begun since
        self.hold = hold
        return [RecordHold(hold), *(TellHeld(turn_id, hold) for turn_id in self.waiting)]

    def _next(self) -> list[Effect]:
        if self.running is not None or self.hold is not None or not self.waiting:
            return []
        self.running = self.waiting.pop(0)
        return [Begin(self.running)]

    def _require_running(self, turn_id: str) -> None:
        if self.running != turn_id:
            raise IllegalTransitionError(f"{turn_id} is over, but {self.running or 'nothing'} runs")
