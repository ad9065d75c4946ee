"""One running sandbox as the host agent holds it: its link to the supervisor, its slots, its model port."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from sandbox_manager.core.values import ContainerFacts
from sandbox_manager.host.adapters.guest_errors import GuestLinkError
from sandbox_manager.host.adapters.guest_link import GuestLink
from sandbox_manager.host.adapters.guest_values import GuestHello
from sandbox_manager.host.conductor.hosted_slot import HostedSlot
from sandbox_manager.host.relay.relay import Relay


@dataclass(slots=True)
class Sandbox:
    """Made by `Sandboxes` when the container runs and its supervisor has answered; dropped when it stops or is lost.

    `measuring`: what the supervisor measures of itself and the CLIs at this start. It takes as long as a CLI's own start, and goes on
    beside it; nothing is admitted before the manager has compared it.
    """

    group_id: str
    container_generation: int
    facts: ContainerFacts
    link: GuestLink
    hello: GuestHello
    relay: Relay
    model_port: int
    slots: dict[int, HostedSlot]
    measuring: asyncio.Task[Mapping[str, object]]

    @property
    def busy(self) -> tuple[str, ...]:
        """Activations that hold a slot now."""
        return tuple(slot.held_by for slot in self.slots.values() if slot.held_by is not None)

    @property
    def cannot_be_measured(self) -> bool:
        """Whether the measuring came to nothing: only a new connection measures anew."""
        return self.measuring.done() and (self.measuring.cancelled() or self.measuring.exception() is not None)

    async def measured(self) -> Mapping[str, object]:
        """What was measured, once it is. Raises GuestLinkError."""
        try:
            return await asyncio.shield(self.measuring)
        except asyncio.CancelledError:
            if self.measuring.cancelled():
                raise GuestLinkError("the sandbox was left before it had measured itself") from None
            raise

    async def close(self) -> None:
        """Gives link and model port back; the container goes on. Idempotent."""
        self.measuring.cancel()
        await self.relay.close_sandbox(self.group_id)
        await self.link.close()
        with suppress(asyncio.CancelledError, GuestLinkError):
            await self.measuring
