"""A host as the manager knows it: registered by evidence, kept by heartbeats. Pure.

    REGISTERING ── Attested ──▶ ATTESTED ── Probed ──▶ READY ── DrainWanted ──▶ DRAINING ── Emptied ──▶ EVACUATED
        │ Refused                 │ Refused             │ LeaseOver               │ LeaseOver
        ▼                         ▼                     ▼                         ▼
     REJECTED ◀───────────────────┘                  EXPIRED ◀────────────────────┘
    every state but BANNED ── Registered ──▶ REGISTERING, with the next lease generation
    every state ── BanWanted ──▶ BANNED

Only READY starts sandboxes and admits; DRAINING admits no new group, and lets its retained ones go on. A lease is elapsed time, which
this machine does not know: the conductor sends LeaseOver.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sandbox_manager.core.errors import IllegalTransitionError, StaleGenerationError


class HostState(Enum):
    REGISTERING = "REGISTERING"
    ATTESTED = "ATTESTED"
    READY = "READY"
    DRAINING = "DRAINING"
    EVACUATED = "EVACUATED"
    EXPIRED = "EXPIRED"
    REJECTED = "REJECTED"
    BANNED = "BANNED"


@dataclass(frozen=True, slots=True)
class Registered:
    """The host opened a registration anew."""


@dataclass(frozen=True, slots=True)
class Attested:
    """Every item of its evidence is as the manifest names it."""


@dataclass(frozen=True, slots=True)
class Refused:
    """An item is missing or contradicted, or the reverse probe failed."""


@dataclass(frozen=True, slots=True)
class Probed:
    """The manager dialled the advertised address: same key, fresh nonce."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    lease_generation: int


@dataclass(frozen=True, slots=True)
class LeaseOver:
    lease_generation: int


@dataclass(frozen=True, slots=True)
class DrainWanted:
    pass


@dataclass(frozen=True, slots=True)
class Emptied:
    """No running group is left, every checkpoint is pushed."""


@dataclass(frozen=True, slots=True)
class BanWanted:
    pass


Event = Registered | Attested | Refused | Probed | Heartbeat | LeaseOver | DrainWanted | Emptied | BanWanted


@dataclass(frozen=True, slots=True)
class ProbeBack:
    """Dial the advertised address anew, with a fresh nonce."""


@dataclass(frozen=True, slots=True)
class GrantLease:
    lease_generation: int


@dataclass(frozen=True, slots=True)
class RenewLease:
    lease_generation: int


@dataclass(frozen=True, slots=True)
class EndLease:
    """Admit nothing there any more."""


Effect = ProbeBack | GrantLease | RenewLease | EndLease

_LEASED = (HostState.READY, HostState.DRAINING)


class Host:
    """The machine."""

    def __init__(self, state: HostState = HostState.REGISTERING, *, lease_generation: int = 1) -> None:
        self.state = state
        self.lease_generation = lease_generation

    @property
    def may_place(self) -> bool:
        """Whether a new group may be put there."""
        return self.state is HostState.READY

    @property
    def may_admit(self) -> bool:
        """Whether a retained group there may be started and admitted to."""
        return self.state in _LEASED

    def step(self, event: Event) -> list[Effect]:
        """Takes one event and says what is to be done. An impossible or stale one raises and changes nothing."""
        if isinstance(event, Heartbeat | LeaseOver) and event.lease_generation != self.lease_generation:
            raise StaleGenerationError("lease", self.lease_generation, event.lease_generation)
        match self.state, event:
            case HostState.BANNED, BanWanted():
                return []
            case HostState.BANNED, _:
                raise self._illegal(event)
            case _, BanWanted():
                had_lease = self.may_admit
                self.state = HostState.BANNED
                return [EndLease()] if had_lease else []
            case _, Registered():
                had_lease = self.may_admit
                self.state, self.lease_generation = HostState.REGISTERING, self.lease_generation + 1
                return [EndLease()] if had_lease else []
            case HostState.REGISTERING, Attested():
                self.state = HostState.ATTESTED
                return [ProbeBack()]
            case ((HostState.REGISTERING | HostState.ATTESTED), Refused()):
                self.state = HostState.REJECTED
                return []
            case HostState.ATTESTED, Probed():
                self.state = HostState.READY
                return [GrantLease(self.lease_generation)]
            case ((HostState.READY | HostState.DRAINING), Heartbeat()):
                return [RenewLease(self.lease_generation)]
            case ((HostState.READY | HostState.DRAINING), LeaseOver()):
                self.state = HostState.EXPIRED
                return [EndLease()]
            case HostState.EXPIRED, LeaseOver():
                return []
            case HostState.READY, DrainWanted():
                self.state = HostState.DRAINING
                return []
            case ((HostState.DRAINING | HostState.EVACUATED), DrainWanted()):
                return []
            case HostState.DRAINING, Emptied():
                self.state = HostState.EVACUATED
                return [EndLease()]
            case _:
                raise self._illegal(event)

    def _illegal(self, event: Event) -> IllegalTransitionError:
        return IllegalTransitionError("host", self.state.value, type(event).__name__)
