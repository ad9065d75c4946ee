"""One slot of a sandbox: a member's UID, its private folder, at most one CLI process. Pure.

    EMPTY ── Wanted ──▶ STARTING ── Started ──▶ ACTIVE ── Released(KEPT) ──▶ IDLE ── Wanted(fitting) ──▶ ACTIVE
                            │                    │ │                          │ Wanted(not fitting), StopWanted
                            │ StartFailed        │ └─ Released(RETIRED) ─┐    ▼
                            ▼                    │ Released(RECLAIM_FIRST)└▶ RETIRING ── Exited, RetireWaitOver ─┐
                        RECLAIMING ◀─────────────┴──────────────────────────────────────────────────────────────┘
                         │     ▲
             Reclaimed(all gone)│ ReclaimWanted, Released
                         ▼     │
                       EMPTY  UNKNOWN ◀── Reclaimed(not proved), SupervisorLost, Exited in ACTIVE

    ContainerStopped (proved by the engine's inspect) ──▶ EMPTY, from every state

IDLE is the only state from which a turn can be LIVE. UNKNOWN starts nothing: what may still be there is ended first.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sandbox_manager.core.values import ProcessDisposition, SlotProcess
from sandbox_manager.host.core.disposition import LeaveBy
from sandbox_manager.host.core.errors import IllegalTransitionError


class SlotState(Enum):
    EMPTY = "EMPTY"
    STARTING = "STARTING"
    IDLE = "IDLE"
    ACTIVE = "ACTIVE"
    RETIRING = "RETIRING"
    RECLAIMING = "RECLAIMING"
    UNKNOWN = "UNKNOWN"


# --- events --------------------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Wanted:
    """An activation wants the slot. `fitting`: the kept process has the wanted generation, locator and settings, and no gap."""

    process_generation: int
    fitting: bool = False


@dataclass(frozen=True, slots=True)
class Started:
    process: SlotProcess


@dataclass(frozen=True, slots=True)
class StartFailed:
    reason: str


@dataclass(frozen=True, slots=True)
class Released:
    """The activation is over."""

    disposition: ProcessDisposition
    leave_by: LeaveBy = LeaveBy.CLOSE_STDIN


@dataclass(frozen=True, slots=True)
class StopWanted:
    """The group is being stopped: a kept process leaves in order."""


@dataclass(frozen=True, slots=True)
class Exited:
    exit_code: int | None


@dataclass(frozen=True, slots=True)
class RetireWaitOver:
    """A retired process did not leave in its time."""


@dataclass(frozen=True, slots=True)
class ReclaimWanted:
    pass


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """`complete`: every process of the slot is proved gone."""

    complete: bool


@dataclass(frozen=True, slots=True)
class SupervisorLost:
    pass


@dataclass(frozen=True, slots=True)
class ContainerStopped:
    """The engine's inspect says that the container is not running: nothing of it is."""


Event = (
    Wanted
    | Started
    | StartFailed
    | Released
    | StopWanted
    | Exited
    | RetireWaitOver
    | ReclaimWanted
    | Reclaimed
    | SupervisorLost
    | ContainerStopped
)


# --- effects -------------------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Spawn:
    process_generation: int


@dataclass(frozen=True, slots=True)
class UseKept:
    """The kept process serves the next turn."""

    process: SlotProcess


@dataclass(frozen=True, slots=True)
class AskToLeave:
    """Close stdin, or signal; then Exited or RetireWaitOver. Nothing else is written to it any more."""

    by: LeaveBy


@dataclass(frozen=True, slots=True)
class Reclaim:
    """End every process of the slot and prove it; then Reclaimed."""


Effect = Spawn | UseKept | AskToLeave | Reclaim


class Slot:
    """The machine. One task owns it."""

    def __init__(self, state: SlotState = SlotState.UNKNOWN) -> None:
        # A host agent that has just started knows nothing of a slot until it has looked.
        self.state = state
        self.process_generation: int | None = None
        self.process: SlotProcess | None = None

    def step(self, event: Event) -> list[Effect]:
        """Takes one event and says what is to be done. An impossible event raises IllegalTransitionError and changes nothing."""
        match self.state, event:
            case _, ContainerStopped():
                return self._emptied()
            case _, SupervisorLost():
                self.state = SlotState.UNKNOWN
                return []
            case SlotState.EMPTY, Wanted(generation):
                self.state, self.process_generation = SlotState.STARTING, generation
                return [Spawn(generation)]
            case SlotState.IDLE, Wanted(generation, fitting=True) if (
                self.process is not None and generation == self.process_generation
            ):
                self.state = SlotState.ACTIVE
                return [UseKept(self.process)]
            case SlotState.IDLE, (Wanted() | StopWanted()):
                self.state = SlotState.RETIRING
                return [AskToLeave(LeaveBy.CLOSE_STDIN)]
            case SlotState.STARTING, Started(process):
                self.state, self.process = SlotState.ACTIVE, process
                return []
            case SlotState.STARTING, (StartFailed() | Exited()):
                return self._reclaim()
            case SlotState.ACTIVE, Released(ProcessDisposition.KEPT):
                self.state = SlotState.IDLE
                return []
            case SlotState.ACTIVE, Released(ProcessDisposition.RETIRED, leave_by):
                self.state = SlotState.RETIRING
                return [AskToLeave(leave_by)]
            case ((SlotState.ACTIVE | SlotState.STARTING), Released()):
                return self._reclaim()
            case SlotState.ACTIVE, Exited():
                self.state = SlotState.UNKNOWN
                return []
            case SlotState.RETIRING, (Exited() | RetireWaitOver()):
                return self._reclaim()
            case SlotState.IDLE, (Exited() | ReclaimWanted()):
                return self._reclaim()
            case SlotState.UNKNOWN, (ReclaimWanted() | Released() | Wanted() | StopWanted()):
                return self._reclaim()
            case SlotState.UNKNOWN, (Exited() | RetireWaitOver() | Reclaimed(complete=False)):
                return []  # known to be unknown already
            case SlotState.RECLAIMING, Reclaimed(complete=True):
                return self._emptied()
            case SlotState.RECLAIMING, Reclaimed(complete=False):
                self.state = SlotState.UNKNOWN
                return []
            case SlotState.RECLAIMING, (Exited() | RetireWaitOver() | ReclaimWanted() | Released()):
                return []  # it is under way
            case SlotState.EMPTY, (ReclaimWanted() | StopWanted() | Released()):
                return []  # already so
            case _:
                raise IllegalTransitionError("slot", self.state.value, type(event).__name__)

    def _reclaim(self) -> list[Effect]:
        self.state = SlotState.RECLAIMING
        return [Reclaim()]

    def _emptied(self) -> list[Effect]:
        self.state, self.process, self.process_generation = SlotState.EMPTY, None, None
        return []
