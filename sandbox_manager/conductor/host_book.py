"""What is known of hosts right now: leases by elapsed time, and the engine's truth from the last heartbeat. In memory only."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from sandbox_manager.conductor.leases import Clock, Leases


@dataclass(frozen=True, slots=True)
class SeenContainer:
    """One container as a host's engine lists it. `conversation` is its label."""

    container_id: str
    group_id: str
    container_generation: int
    state: str
    conversation: str


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The newest sign of life of a host. `containers` is None when its engine did not answer."""

    lease_generation: int
    containers: tuple[SeenContainer, ...] | None
    disk_free_bytes: int | None

    def containers_by_id(self) -> dict[str, str]:
        """States by container id."""
        return {one.container_id: one.state for one in self.containers or ()}


class HostBook:
    """Leases and heartbeats by host id."""

    def __init__(self, lease_s: float, clock: Clock) -> None:
        self.leases: Leases[str] = Leases(lease_s, clock)
        self._beats: dict[str, Heartbeat] = {}
        self._heard = asyncio.Condition()

    def registered(self, host_id: str) -> int:
        """A host was accepted: it has a lease, and what it said before it registered anew is not held against it."""
        self._beats.pop(host_id, None)
        return self.leases.renew(host_id)

    async def beat(self, host_id: str, heartbeat: Heartbeat) -> int:
        """Takes a heartbeat; returns the lease in milliseconds."""
        former = self._beats.get(host_id)
        if heartbeat.containers is None and former is not None:
            # An engine that does not answer has not lost its containers: the last list stays the last word.
            heartbeat = Heartbeat(heartbeat.lease_generation, former.containers, heartbeat.disk_free_bytes)
        self._beats[host_id] = heartbeat
        async with self._heard:
            self._heard.notify_all()
        return self.leases.renew(host_id)

    def has_lease(self, host_id: str) -> bool:
        """Whether the host may start, admit and push."""
        return self.leases.is_live(host_id)

    def leased(self) -> list[str]:
        """Hosts whose lease has time left."""
        return [host_id for host_id in self.leases.known() if self.has_lease(host_id)]

    def last(self, host_id: str) -> Heartbeat | None:
        """The newest heartbeat since the host registered."""
        return self._beats.get(host_id)

    def silent(self) -> list[str]:
        """Hosts with a lease that have not said, since they registered, which containers their engine has."""
        return [host_id for host_id in self.leased() if self._containers(host_id) is None]

    def labelled(self, conversation: str) -> Mapping[str, Sequence[SeenContainer]]:
        """Containers with this conversation's label, by host, from the last heartbeat of every host with a lease."""
        found: dict[str, list[SeenContainer]] = {}
        for host_id in self.leased():
            for container in self._containers(host_id) or ():
                if container.conversation == conversation:
                    found.setdefault(host_id, []).append(container)
        return found

    async def heard_all(self, timeout_s: float) -> None:
        """Waits until every host with a lease has listed its containers, at most `timeout_s`: a dead host or engine does not block."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._heard:
                await self._heard.wait_for(lambda: not self.silent())

    def _containers(self, host_id: str) -> tuple[SeenContainer, ...] | None:
        beat = self._beats.get(host_id)
        return beat.containers if beat is not None else None
