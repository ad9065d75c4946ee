"""One running sandbox as the host agent holds it: its link to the supervisor, its slots, its model port."""

from __future__ import annotations

from dataclasses import dataclass

from sandbox_manager.core.values import ContainerFacts
from sandbox_manager.host.adapters.guest_link import GuestLink
from sandbox_manager.host.adapters.guest_values import GuestHello
from sandbox_manager.host.conductor.hosted_slot import HostedSlot
from sandbox_manager.host.relay.relay import Relay


@dataclass(slots=True)
class Sandbox:
    """Made by `Sandboxes` when the container runs and its supervisor has answered; dropped when it stops or is lost."""

    group_id: str
    container_generation: int
    facts: ContainerFacts
    link: GuestLink
    hello: GuestHello
    relay: Relay
    model_port: int
    slots: dict[int, HostedSlot]
    measured: dict[str, object]

    @property
    def busy(self) -> tuple[str, ...]:
        """Activations that hold a slot now."""
        return tuple(slot.held_by for slot in self.slots.values() if slot.held_by is not None)

    async def close(self) -> None:
        """Gives link and model port back; the container goes on. Idempotent."""
        await self.relay.close_sandbox(self.group_id)
        await self.link.close()
