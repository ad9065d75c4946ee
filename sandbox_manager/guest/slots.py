"""One slot's machine. Pure: the supervisor feeds it and performs what it answers.

    IDLE ──SpawnAsked──▶ STARTING ──Started──▶ RUNNING ──Exited──▶ ENDED
     ▲                      │ StartFailed        │   ▲               │
     │◀─────────────────────┘        ReclaimAsked│   │               │ReclaimAsked
     │                                           ▼   │ main lives    │
     │◀──────complete, main gone────────── RECLAIMING ◀──────────────┘
     │                                        │   ▲
     │                     incomplete, main gone  │ ReclaimAsked
     │                                        ▼   │
     └──────LeftoversGone───────────────── LEFTOVERS ◀──LeftoversFound── IDLE

ENDED and LEFTOVERS both refuse a spawn: something of the slot may still live, and only a complete reclaim shows
that nothing does. An event that cannot happen raises and changes nothing.
"""

from dataclasses import dataclass
from enum import Enum


class SlotState(Enum):
    """The states of a slot."""

    IDLE = "IDLE"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    ENDED = "ENDED"
    RECLAIMING = "RECLAIMING"
    LEFTOVERS = "LEFTOVERS"


@dataclass(frozen=True)
class SpawnAsked:
    """The host wants a process in this slot."""

    process_generation: int


@dataclass(frozen=True)
class Started:
    """The process runs its program."""


@dataclass(frozen=True)
class StartFailed:
    """Nothing was started; what was forked is gone."""


@dataclass(frozen=True)
class Exited:
    """The slot's own process was reaped."""


@dataclass(frozen=True)
class ReclaimAsked:
    """End all processes of the slot that are not to be kept."""


@dataclass(frozen=True)
class ReclaimFinished:
    """A reclaim is over; `is_complete` if two scans in a row found nothing to end."""

    is_complete: bool


@dataclass(frozen=True)
class LeftoversFound:
    """A scan before a spawn found processes that nobody knows."""


SlotEvent = SpawnAsked | Started | StartFailed | Exited | ReclaimAsked | ReclaimFinished | LeftoversFound


class IllegalSlotEventError(Exception):
    """The event cannot happen in this state; nothing was changed."""


class Slot:
    """State of one slot. `process_generation` is the newest one started here since boot, None before."""

    def __init__(self) -> None:
        self.state = SlotState.IDLE
        self.process_generation: int | None = None
        self.is_main_alive = False

    def step(self, event: SlotEvent) -> None:
        """Applies one event, or raises IllegalSlotEventError and changes nothing."""
        match self.state, event:
            case SlotState.IDLE, SpawnAsked(generation) if self._is_newer(generation):
                self.state, self.process_generation = SlotState.STARTING, generation
            case SlotState.STARTING, Started():
                self.state, self.is_main_alive = SlotState.RUNNING, True
            case SlotState.STARTING, StartFailed():
                self.state = SlotState.IDLE
            case SlotState.RUNNING, Exited():
                self.state, self.is_main_alive = SlotState.ENDED, False
            case SlotState.RECLAIMING, Exited() if self.is_main_alive:
                self.is_main_alive = False
            case ((SlotState.IDLE | SlotState.RUNNING | SlotState.ENDED | SlotState.LEFTOVERS), ReclaimAsked()):
                self.state = SlotState.RECLAIMING
            case SlotState.RECLAIMING, ReclaimFinished(is_complete):
                self.state = self._after_reclaim(is_complete)
            case SlotState.IDLE, LeftoversFound():
                self.state = SlotState.LEFTOVERS
            case _:
                raise IllegalSlotEventError(f"{event} in {self.state.value}, generation {self.process_generation}")

    def _is_newer(self, generation: int) -> bool:
        return self.process_generation is None or generation > self.process_generation

    def _after_reclaim(self, is_complete: bool) -> SlotState:
        if self.is_main_alive:
            return SlotState.RUNNING
        return SlotState.IDLE if is_complete else SlotState.LEFTOVERS
