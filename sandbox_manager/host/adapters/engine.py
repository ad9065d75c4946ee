"""What runs sandboxes: the port that the `docker` and `local` engines keep, and its values.

Silence proves nothing: an engine that does not answer raises EngineUnavailableError; only an engine that answers and has no such
container says ABSENT.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Protocol

from sandbox_manager.host.adapters.guest_connection import ExpectedPeer

LABEL_GROUP = "standfast.group"
LABEL_GENERATION = "standfast.generation"
LABEL_CONVERSATIONS = "standfast.conversations"
LABEL_TENANT = "standfast.tenant"
LABEL_STATE = "standfast.state_id"


def sandbox_labels(
    *, group_id: str, generation: int, tenant: str, state_id: str, conversations: Iterable[str]
) -> dict[str, str]:
    """The labels every sandbox carries. `state_id` names the host agent's state folder: others' sandboxes are left alone."""
    return {
        LABEL_GROUP: group_id,
        LABEL_GENERATION: str(generation),
        LABEL_TENANT: tenant,
        LABEL_STATE: state_id,
        LABEL_CONVERSATIONS: ",".join(sorted(conversations)),
    }


class ContainerState(Enum):
    """What an engine says of a container."""

    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"
    ABSENT = "absent"


class Network(Enum):
    """What a sandbox reaches: nothing but its model port, or what the engine's bridge reaches."""

    MODEL_ONLY = "model-only"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """A sandbox to create. `image_id`: as `Engine.image_id` gives it. `socket_dir`: the one folder shared with the host agent."""

    name: str
    image_id: str
    socket_dir: Path
    labels: Mapping[str, str]
    slots: int = 4
    network: Network = Network.MODEL_ONLY
    memory_bytes: int = 3 * 1024**3
    pids_max: int = 512
    cpus: float | None = None
    private_bytes: int = 64 * 1024**2


@dataclass(frozen=True, slots=True)
class Inspect:
    """A container as the engine sees it now. Times are the engine's own RFC 3339 texts; None: not yet, or not known.

    `pid` is the supervisor's number on the host, None while it does not run. `exit_code` 137 is a SIGKILL. An exited container without a
    stop record of ours is UNCLEAN whatever its exit code: the engine does not know which.
    """

    container_id: str
    name: str
    image_id: str
    state: ContainerState
    pid: int | None = None
    started_at: str | None = None
    finished_at: str | None = None
    exit_code: int | None = None
    oom_killed: bool | None = None
    is_paused: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[str, ...] = ()


def absent(container_id: str) -> Inspect:
    """What an engine that answers says of a container it does not have."""
    return Inspect(container_id, "", "", ContainerState.ABSENT)


@dataclass(frozen=True, slots=True)
class EngineVersion:
    """What answers. `detail` is for people."""

    name: str
    version: str
    detail: str


class Engine(Protocol):
    """One engine. Every method may raise EngineUnavailableError; what else it raises is said there."""

    name: str
    is_isolated: bool

    async def version(self) -> EngineVersion:
        """Asks the engine; the cheapest way to know that it answers."""

    async def image_id(self, reference: str) -> str:
        """The exact id behind a name. Raises ImageMissingError."""

    async def create(self, spec: SandboxSpec) -> str:
        """Makes a sandbox and returns its container id; nothing runs yet. Raises ImageMissingError, NameTakenError."""

    async def start(self, container_id: str) -> None:
        """Starts it; does nothing if it runs. Raises SandboxAbsentError, EngineRefusedError."""

    async def stop(self, container_id: str, timeout_s: float) -> None:
        """SIGTERM to the supervisor, SIGKILL after the timeout; does nothing if it does not run. Raises SandboxAbsentError."""

    async def kill(self, container_id: str) -> None:
        """SIGKILL to all of it; does nothing if it does not run. Raises SandboxAbsentError."""

    async def inspect(self, container: str) -> Inspect:
        """By container id or name. A container that the engine does not have is ABSENT, not an error."""

    async def remove(self, container_id: str) -> None:
        """Removes it with all it holds, killed first if it runs; does nothing if it is absent."""

    async def list_sandboxes(self, labels: Mapping[str, str]) -> list[Inspect]:
        """All containers that carry these labels, in any state."""

    async def run_measure(self, image_id: str) -> dict[str, object]:
        """A throw-away sandbox of that image, without network, that measures itself. Raises SupervisorMissingError."""

    async def size_bytes(self, container_id: str) -> int:
        """What the sandbox has written so far. Raises SandboxAbsentError."""

    def expected_peer(self, found: Inspect) -> ExpectedPeer:
        """Who must be behind the control socket of a running container."""

    async def close(self) -> None:
        """Gives the engine's client back; sandboxes go on. A second call does nothing."""
