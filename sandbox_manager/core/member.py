"""A member: a conversation's execution identity. One unresolved prompt at most. Pure.

    FREE ── Granted ──▶ GRANTED ── Admitted ──▶ ADMITTED ── Settled, NotSaved, GivenUp ──▶ FREE
     ▲                    │ GivenUp, LeaseOver    │ LeaseOver
     └────────────────────┘                       ▼
     ▲                                        UNRESOLVED ── Adopted ──▶ ADMITTED
     └── Settled, NotSaved, GivenUp ──────────────┘
    FREE ── Removed ──▶ REMOVED

A lease that runs out frees a grant, and never an admitted prompt: it may be running, and what it leaves behind is found out first.
UNRESOLVED is an admitted turn whose runner is gone; any runner may adopt it, settle it or give it up.
Every event names the activation generation it was decided on; an older one is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sandbox_manager.core.errors import IllegalTransitionError, StaleGenerationError


class MemberState(Enum):
    FREE = "FREE"
    GRANTED = "GRANTED"
    ADMITTED = "ADMITTED"
    UNRESOLVED = "UNRESOLVED"
    REMOVED = "REMOVED"


@dataclass(frozen=True, slots=True)
class Granted:
    """A new activation: its generation is the member's next one."""

    activation_generation: int
    turn_id: str


@dataclass(frozen=True, slots=True)
class Admitted:
    activation_generation: int


@dataclass(frozen=True, slots=True)
class Settled:
    """Confirmed on both sides and saved."""

    activation_generation: int


@dataclass(frozen=True, slots=True)
class NotSaved:
    """Judged, and not confirmed: the turn failed, the saved locator stays."""

    activation_generation: int


@dataclass(frozen=True, slots=True)
class GivenUp:
    """No native end, or nothing was sent."""

    activation_generation: int


@dataclass(frozen=True, slots=True)
class LeaseOver:
    activation_generation: int


@dataclass(frozen=True, slots=True)
class Adopted:
    """Another runner goes on with the unresolved turn."""

    activation_generation: int


@dataclass(frozen=True, slots=True)
class Removed:
    activation_generation: int


Event = Granted | Admitted | Settled | NotSaved | GivenUp | LeaseOver | Adopted | Removed


class Member:
    """The machine. It has no effects: the record itself is the effect, written in the same transaction."""

    def __init__(
        self,
        state: MemberState = MemberState.FREE,
        *,
        activation_generation: int = 0,
        turn_id: str | None = None,
        last_settled_turn: str | None = None,
        settled_turns: int = 0,
    ) -> None:
        self.state = state
        self.activation_generation = activation_generation
        self.turn_id = turn_id
        self.last_settled_turn = last_settled_turn
        self.settled_turns = settled_turns

    def step(self, event: Event) -> None:
        """Takes one event. An impossible or stale one raises and changes nothing."""
        if isinstance(event, Granted):
            self._grant(event)
            return
        if event.activation_generation != self.activation_generation:
            raise StaleGenerationError("activation", self.activation_generation, event.activation_generation)
        match self.state, event:
            case MemberState.GRANTED, Admitted():
                self.state = MemberState.ADMITTED
            case MemberState.ADMITTED, Admitted():
                pass  # already so
            case ((MemberState.ADMITTED | MemberState.UNRESOLVED), Settled()):
                self.last_settled_turn, self.settled_turns = self.turn_id, self.settled_turns + 1
                self._free()
            case ((MemberState.ADMITTED | MemberState.UNRESOLVED), NotSaved()):
                self._free()
            case ((MemberState.GRANTED | MemberState.ADMITTED | MemberState.UNRESOLVED), GivenUp()):
                self._free()
            case MemberState.GRANTED, LeaseOver():
                self._free()
            case MemberState.ADMITTED, LeaseOver():
                self.state = MemberState.UNRESOLVED
            case MemberState.UNRESOLVED, Adopted():
                self.state = MemberState.ADMITTED
            case ((MemberState.FREE | MemberState.UNRESOLVED), LeaseOver()):
                pass  # already so
            case MemberState.FREE, Removed():
                self.state = MemberState.REMOVED
            case _:
                raise IllegalTransitionError("member", self.state.value, type(event).__name__)

    def _grant(self, event: Granted) -> None:
        if self.state is not MemberState.FREE:
            raise IllegalTransitionError("member", self.state.value, "Granted")
        if event.activation_generation != self.activation_generation + 1:
            raise StaleGenerationError("activation", self.activation_generation + 1, event.activation_generation)
        self.state = MemberState.GRANTED
        self.activation_generation, self.turn_id = event.activation_generation, event.turn_id

    def _free(self) -> None:
        self.state, self.turn_id = MemberState.FREE, None
