"""A sandbox group: one container and its retained writable layer. Pure; the conductor performs the effects.

    PLANNED ── EnsureWanted ──▶ STARTING ── Ensured ──▶ RUNNING ── StopWanted ──▶ STOPPING ── StopInspected(clean) ──▶ STOPPED
      id and nonce             ▲   │  ▲                   │                         │  record first                     │
      are durable              │   │  │ EnsureWanted      │ seen exited             │ not clean                         │
                               │   │  └──── UNCLEAN ◀─────┴─────────────────────────┘                                   │
                               │   └ EnsureFailed ▲                                                                     │
                               └──── VOIDING ◀────┼───────────────────────── EnsureWanted: void the stop durably first ─┘
                                                  │ seen again
    RUNNING, STOPPED, UNCLEAN ── seen absent ──▶ GONE ◀── EnsureFailed(gone) ── STARTING
    every state ── RemoveWanted ──▶ REMOVING ── Removed ──▶ REMOVED

STOPPING is durable before the first action, STOPPED only after an inspect that names the same container and start. An exited container
without that record is UNCLEAN whatever its exit code says: it may be started again under proof, and nothing is made from it before one.
GONE is what the engine said last, not a verdict: a container that is seen again is UNCLEAN.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sandbox_manager.core.errors import IllegalTransitionError, StaleGenerationError


class GroupState(Enum):
    PLANNED = "PLANNED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"
    VOIDING = "VOIDING"
    UNCLEAN = "UNCLEAN"
    GONE = "GONE"
    REMOVING = "REMOVING"
    REMOVED = "REMOVED"


class Seen(Enum):
    """What the engine says of the container."""

    RUNNING = "RUNNING"
    EXITED = "EXITED"  # created, or exited
    ABSENT = "ABSENT"


@dataclass(frozen=True, slots=True)
class CleanStop:
    """The record of one stop, as inspected: the key of what may be made from it."""

    container_id: str
    started_at: str
    finished_at: str


# --- events --------------------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class EnsureWanted:
    """A turn needs the container running."""


@dataclass(frozen=True, slots=True)
class Ensured:
    container_id: str
    image_id: str
    started_at: str


@dataclass(frozen=True, slots=True)
class EnsureFailed:
    """It could not be started. `gone`: the engine answered that there is no such container."""

    gone: bool = False


@dataclass(frozen=True, slots=True)
class StopWanted:
    """Nothing is active, output is drained, locators are durable."""


@dataclass(frozen=True, slots=True)
class StoppingRecorded:
    """STOPPING is durable."""


@dataclass(frozen=True, slots=True)
class StopInspected:
    """The inspect after the stop. `orderly`: every CLI and the supervisor left in order."""

    seen: Seen
    orderly: bool
    container_id: str | None = None
    started_at: str | None = None
    finished_at: str | None = None


@dataclass(frozen=True, slots=True)
class StopVoided:
    """The clean-stop record is durably void."""


@dataclass(frozen=True, slots=True)
class ContainerSeen:
    """A heartbeat or an inspect, decided on `container_generation`. An engine that does not answer sends none."""

    seen: Seen
    container_generation: int
    started_at: str | None = None


@dataclass(frozen=True, slots=True)
class RemoveWanted:
    pass


@dataclass(frozen=True, slots=True)
class Removed:
    pass


Event = (
    EnsureWanted
    | Ensured
    | EnsureFailed
    | StopWanted
    | StoppingRecorded
    | StopInspected
    | StopVoided
    | ContainerSeen
    | RemoveWanted
    | Removed
)


# --- effects -------------------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class EnsureSandbox:
    """Start the retained container, or make one of this generation when `container_id` is None."""

    container_id: str | None


@dataclass(frozen=True, slots=True)
class RecordStopping:
    """Make STOPPING durable; then StoppingRecorded."""


@dataclass(frozen=True, slots=True)
class StopSandbox:
    container_id: str


@dataclass(frozen=True, slots=True)
class RecordStopped:
    stop: CleanStop


@dataclass(frozen=True, slots=True)
class VoidStop:
    """Make the clean-stop record void, durably; then StopVoided."""


@dataclass(frozen=True, slots=True)
class RecordState:
    """Make the state durable: it was learnt, not caused."""


@dataclass(frozen=True, slots=True)
class RemoveSandbox:
    """Leave the tombstone durably, then remove the container."""

    container_id: str | None


Effect = EnsureSandbox | RecordStopping | StopSandbox | RecordStopped | VoidStop | RecordState | RemoveSandbox


class Group:
    """The machine. `state` and the fields are what is kept; build it from the record and `step` it."""

    def __init__(
        self,
        state: GroupState = GroupState.PLANNED,
        *,
        container_generation: int = 1,
        container_id: str | None = None,
        image_id: str | None = None,
        started_at: str | None = None,
        clean_stop: CleanStop | None = None,
    ) -> None:
        self.state = state
        self.container_generation = container_generation
        self.container_id = container_id
        self.image_id = image_id
        self.started_at = started_at
        self.clean_stop = clean_stop

    def step(self, event: Event) -> list[Effect]:
        """Takes one event and says what is to be done. An impossible event raises and changes nothing."""
        match self.state, event:
            case _, ContainerSeen() as seen:
                return self._seen(seen)
            case ((GroupState.PLANNED | GroupState.UNCLEAN | GroupState.GONE), EnsureWanted()):
                self.state = GroupState.STARTING
                return [EnsureSandbox(self.container_id)]
            case GroupState.STOPPED, EnsureWanted():
                self.state = GroupState.VOIDING
                return [VoidStop()]
            case GroupState.VOIDING, StopVoided():
                self.state, self.clean_stop = GroupState.STARTING, None
                return [EnsureSandbox(self.container_id)]
            case ((GroupState.RUNNING | GroupState.STARTING | GroupState.VOIDING), EnsureWanted()):
                return []  # already so, or under way
            case GroupState.STARTING, Ensured() as ensured:
                return self._ensured(ensured)
            case GroupState.STARTING, EnsureFailed(gone):
                return self._not_started(gone)
            case GroupState.RUNNING, StopWanted() if self.container_id is not None:
                self.state = GroupState.STOPPING
                return [RecordStopping()]
            case ((GroupState.STOPPING | GroupState.STOPPED), StopWanted()):
                return []  # already so, or under way
            case GroupState.STOPPING, StoppingRecorded() if self.container_id is not None:
                return [StopSandbox(self.container_id)]
            case GroupState.STOPPING, StopInspected() as inspected:
                return self._stopped(inspected)
            case ((GroupState.REMOVING | GroupState.REMOVED), RemoveWanted()):
                return []
            case _, RemoveWanted():
                self.state = GroupState.REMOVING
                return [RemoveSandbox(self.container_id)]
            case GroupState.REMOVING, Removed():
                self.state = GroupState.REMOVED
                return [RecordState()]
            case _:
                raise IllegalTransitionError("group", self.state.value, type(event).__name__)

    def _ensured(self, ensured: Ensured) -> list[Effect]:
        if self.container_id is not None and ensured.container_id != self.container_id:
            # A copy, or a new one under the old name, is another container: the recorded one is what must run.
            raise IllegalTransitionError("group", self.state.value, "Ensured with another container id")
        self.state = GroupState.RUNNING
        self.container_id, self.image_id, self.started_at = (
            ensured.container_id,
            ensured.image_id,
            ensured.started_at,
        )
        return [RecordState()]

    def _not_started(self, gone: bool) -> list[Effect]:
        if self.container_id is None:
            self.state = GroupState.PLANNED
        else:
            self.state = GroupState.GONE if gone else GroupState.UNCLEAN
        return [RecordState()]

    def _stopped(self, inspected: StopInspected) -> list[Effect]:
        if inspected.seen is Seen.RUNNING:
            self.state = GroupState.RUNNING
            return [RecordState()]
        if inspected.seen is Seen.ABSENT:
            self.state = GroupState.GONE
            return [RecordState()]
        if (
            inspected.orderly
            and inspected.container_id is not None
            and inspected.container_id == self.container_id
            and inspected.started_at is not None
            and inspected.started_at == self.started_at
            and inspected.finished_at
        ):
            self.state = GroupState.STOPPED
            self.clean_stop = CleanStop(inspected.container_id, inspected.started_at, inspected.finished_at)
            return [RecordStopped(self.clean_stop)]
        self.state = GroupState.UNCLEAN
        return [RecordState()]

    def _seen(self, event: ContainerSeen) -> list[Effect]:
        if event.container_generation != self.container_generation:
            raise StaleGenerationError("container", self.container_generation, event.container_generation)
        follows = self._state_after(event)
        if follows is None:
            return []
        self.state = follows
        if follows is not GroupState.STOPPED:
            self.clean_stop = None
        return [RecordState()]

    def _state_after(self, event: ContainerSeen) -> GroupState | None:
        """What an unasked-for sighting makes of the state; None when it says nothing new."""
        match self.state, event.seen:
            case ((GroupState.RUNNING | GroupState.STOPPED | GroupState.UNCLEAN), Seen.ABSENT):
                return GroupState.GONE
            case GroupState.RUNNING, Seen.EXITED:
                return GroupState.UNCLEAN
            case GroupState.RUNNING, Seen.RUNNING if (
                None not in (event.started_at, self.started_at) and event.started_at != self.started_at
            ):
                # It ended and was started by someone else in between.
                return GroupState.UNCLEAN
            case GroupState.STOPPED, Seen.RUNNING:
                # Someone else started it: the record of the stop is of an earlier content.
                return GroupState.UNCLEAN
            case GroupState.GONE, (Seen.RUNNING | Seen.EXITED):
                return GroupState.UNCLEAN
            case _:
                # In transit the answer to our own action decides; PLANNED and removed groups have nothing to see.
                return None
