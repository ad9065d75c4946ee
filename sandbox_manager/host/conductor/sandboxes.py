"""Conducts the sandboxes of one engine: makes, starts, finds, stops and removes them, one thing at a time for each group.

It decides nothing about a conversation: what the engine and the supervisor say is signed and handed to the manager.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import structlog

from sandbox_manager.core.values import ContainerFacts
from sandbox_manager.host.adapters.engine import (
    LABEL_GENERATION,
    LABEL_GROUP,
    LABEL_STATE,
    ContainerState,
    Engine,
    Inspect,
    SandboxSpec,
    sandbox_labels,
)
from sandbox_manager.host.adapters.engine_errors import EngineError, SandboxAbsentError
from sandbox_manager.host.adapters.guest_errors import GuestLinkError
from sandbox_manager.host.adapters.guest_link import GuestLink
from sandbox_manager.host.adapters.journal import Journal
from sandbox_manager.host.conductor.hosted_slot import HostedSlot
from sandbox_manager.host.conductor.sandbox import Sandbox
from sandbox_manager.host.errors import ContainerGoneError, SandboxUnknownError, SlotBusyError
from sandbox_manager.host.relay.relay import Relay
from standfast_chassis.task_pool import TaskPool

_log = structlog.get_logger("standfast.host.sandboxes")

# Fixed inside a container, so that root-owned settings of a CLI can name it; `local` shares the machine's loopback.
CONTAINER_MODEL_PORT = 8377
# A stop mostly waits; this many at once end a hundred sandboxes in seconds, not in a minute.
_STOPS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Wish:
    """Which sandbox is wanted. `container_id` None: one of this generation is found by its labels, or made."""

    group_id: str
    container_generation: int
    nonce: str
    container_id: str | None
    tenant: str
    conversation_id: str
    image_id: str | None


@dataclass(frozen=True, slots=True)
class StopLimits:
    """Seconds that a stop's parts may take."""

    exit_wait_s: float
    reclaim_timeout_s: float
    stop_timeout_s: float


@dataclass(frozen=True, slots=True)
class Ensured:
    """The running sandbox and what this call did to get it. `measured` None: the start is so new that it is still being measured."""

    sandbox: Sandbox
    created_now: bool
    started_now: bool
    measured: Mapping[str, object] | None = None


@dataclass
class Sandboxes:
    """All sandboxes of this host agent.

    `printed_versions`: by digest, what the CLIs printed at this host's own measuring. `require_space` raises when a new start must be
    refused for want of space.
    """

    engine: Engine
    relay: Relay
    journal: Journal
    tasks: TaskPool
    sockets: Path
    state_id: str
    image_id: Callable[[], str]
    printed_versions: Callable[[], Mapping[str, str]]
    require_space: Callable[[], None]
    stop_limits: StopLimits
    extra_labels: dict[str, str] = field(default_factory=dict)
    _running: dict[str, Sandbox] = field(default_factory=dict)
    _locks: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    def running(self, group_id: str, container_generation: int) -> Sandbox:
        """The sandbox this agent holds. Raises SandboxUnknownError."""
        sandbox = self._running.get(group_id)
        if sandbox is None or sandbox.link.is_lost or sandbox.container_generation != container_generation:
            raise SandboxUnknownError(
                f"group {group_id}: this host agent holds no running sandbox of generation {container_generation}; "
                "prepare the turn again.",
                {"group_id": group_id, "container_generation": container_generation},
            )
        return sandbox

    async def ensure(self, wish: Wish) -> Ensured:
        """Makes, starts or finds the sandbox. Raises ContainerGoneError, EngineError, GuestLinkError, StorageFullError.

        One that runs has been measured when this returns; one that this call has started is measured on the way.
        """
        ensured = await self._ensure(wish)
        if (ensured.created_now or ensured.started_now) and not ensured.sandbox.measuring.done():
            return ensured
        return replace(ensured, measured=await ensured.sandbox.measured())

    async def _ensure(self, wish: Wish) -> Ensured:
        await self.journal.fence_group(wish.group_id, wish.container_generation)
        async with self._locks[wish.group_id]:
            found = await self._find(wish)
            held = self._running.get(wish.group_id)
            if (
                held is not None
                and not held.link.is_lost
                and not held.cannot_be_measured
                and found is not None
                and found.state is ContainerState.RUNNING
                and held.facts.container_id == found.container_id
                and held.facts.started_at == (found.started_at or "")
            ):
                return Ensured(held, created_now=False, started_now=False)
            if held is not None:
                await self._drop(held)
            created_now = started_now = False
            if found is None:
                self.require_space()
                found = await self._create(wish)
                created_now = True
            if found.state is not ContainerState.RUNNING:
                self.require_space()
                await self.engine.start(found.container_id)
                started_now = True
            return Ensured(await self._connect(wish, found.container_id), created_now, started_now)

    async def measured(self, group_id: str, found: Inspect) -> Mapping[str, object] | None:
        """What the running container measured at its start, once it has; None when this agent does not hold that very run of it."""
        held = self._running.get(group_id)
        if (
            held is None
            or found.state is not ContainerState.RUNNING
            or (held.facts.container_id, held.facts.started_at) != (found.container_id, found.started_at or "")
        ):
            return None
        return await held.measured()

    async def inspect(self, group_id: str, container_generation: int, container_id: str | None) -> Inspect:
        """What the engine says."""
        if container_id:
            return await self.engine.inspect(container_id)
        found = await self._by_label(group_id, container_generation)
        return found or Inspect("", "", "", ContainerState.ABSENT)

    async def stop(
        self, group_id: str, container_id: str, *, force: bool, interrupt: Callable[[str], Any]
    ) -> tuple[Inspect, bool | None]:
        """Closes CLIs, empties slots, stops the container. The inspect after it, and whether all left in order.

        Raises SlotBusyError when an activation is open and `force` is not given.
        """
        async with self._locks[group_id]:
            held = self._running.get(group_id)
            before = await self.engine.inspect(container_id)
            if before.state is not ContainerState.RUNNING:
                if held is not None:
                    await self._drop(held)
                return before, None
            orderly = held is not None and not held.link.is_lost
            if held is not None:
                orderly = await self._end_processes(held, force=force, interrupt=interrupt) and orderly
            await self.engine.stop(container_id, self.stop_limits.stop_timeout_s)
            if held is not None:
                await self._drop(held)
            after = await self.engine.inspect(container_id)
            return after, orderly and after.state is ContainerState.EXITED and after.exit_code == 0

    async def remove(self, group_id: str, container_generation: int, container_id: str | None) -> None:
        """Removes the container and what this agent holds of it. Removing an absent one does nothing."""
        async with self._locks[group_id]:
            held = self._running.get(group_id)
            if held is not None:
                await self._drop(held)
            found = await self.inspect(group_id, container_generation, container_id)
            if found.state is not ContainerState.ABSENT:
                await self.engine.remove(found.container_id)

    async def adopt_running(self) -> None:
        """At start: takes up the sandboxes of a former run of this host agent that are still running.

        Their CLIs' output was not read without a gap, so no process of theirs serves a LIVE turn.
        """
        for found in await self.truth():
            if found.state is not ContainerState.RUNNING:
                continue
            group_id = found.labels.get(LABEL_GROUP, "")
            try:
                async with self._locks[group_id]:
                    await self._connect_to(group_id, int(found.labels.get(LABEL_GENERATION, "0")), None, found)
            except (GuestLinkError, EngineError) as error:
                _log.warning("a running sandbox could not be taken up", group_id=group_id, reason=error.reason)

    async def truth(self) -> list[Inspect]:
        """All containers of this host agent, in any state, as the engine lists them."""
        return await self.engine.list_sandboxes({LABEL_STATE: self.state_id})

    async def close(self, *, stop: bool) -> None:
        """Gives all links back; with `stop` the sandboxes are stopped in order first, several at a time."""
        if stop:
            room = asyncio.Semaphore(_STOPS_AT_ONCE)
            async with asyncio.TaskGroup() as group:
                for sandbox in list(self._running.values()):
                    group.create_task(self._stop_at_the_end(sandbox, room))
        for sandbox in list(self._running.values()):
            await self._drop(sandbox)

    async def _stop_at_the_end(self, sandbox: Sandbox, room: asyncio.Semaphore) -> None:
        async with room:
            try:
                await self.stop(sandbox.group_id, sandbox.facts.container_id, force=True, interrupt=lambda _: None)
            except (EngineError, GuestLinkError, SlotBusyError) as error:
                _log.warning("a sandbox was not stopped", group_id=sandbox.group_id, reason=error.reason)

    # --- private ----------------------------------------------------------------------------------------------------

    async def _find(self, wish: Wish) -> Inspect | None:
        if wish.container_id is None:
            return await self._by_label(wish.group_id, wish.container_generation)
        found = await self.engine.inspect(wish.container_id)
        if found.state is ContainerState.ABSENT:
            raise ContainerGoneError(
                f"group {wish.group_id}: expected the retained container {wish.container_id}, the engine has none of "
                "that id. Nothing was started in its place.",
                {"group_id": wish.group_id, "container_id": wish.container_id},
            )
        return found

    async def _by_label(self, group_id: str, container_generation: int) -> Inspect | None:
        labels = {LABEL_GROUP: group_id, LABEL_GENERATION: str(container_generation), LABEL_STATE: self.state_id}
        found = await self.engine.list_sandboxes(labels)
        return found[0] if found else None

    async def _create(self, wish: Wish) -> Inspect:
        folder = self._socket_dir(wish.group_id, wish.container_generation)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        labels = sandbox_labels(
            group_id=wish.group_id,
            generation=wish.container_generation,
            tenant=wish.tenant,
            state_id=self.state_id,
            conversations=[wish.conversation_id],
        )
        container_id = await self.engine.create(
            SandboxSpec(
                name=f"standfast-{wish.group_id}-{wish.container_generation}",
                image_id=wish.image_id or self.image_id(),
                socket_dir=folder,
                labels={**labels, **self.extra_labels},
            )
        )
        return await self.engine.inspect(container_id)

    async def _connect(self, wish: Wish, container_id: str) -> Sandbox:
        found = await self.engine.inspect(container_id)
        return await self._connect_to(wish.group_id, wish.container_generation, wish.nonce, found)

    async def _connect_to(self, group_id: str, generation: int, nonce: str | None, found: Inspect) -> Sandbox:
        """Connects to a running container's supervisor. `nonce` None: the one in the writable layer is taken as it is."""
        if found.state is not ContainerState.RUNNING:
            raise SandboxAbsentError(self.engine.name, found.container_id)
        folder = self._socket_dir(group_id, generation)
        link = await GuestLink.connect(folder, self.engine.expected_peer(found))
        measuring: asyncio.Task[Mapping[str, object]] | None = None
        try:
            if link.hello.nonce is None and nonce is not None:
                await link.adopt(nonce)
            hello = await link.refresh_hello()
            measuring = asyncio.create_task(link.measure(self.printed_versions()))
            # Looked at by whoever needs it; a failure that nobody has asked about yet is no news for the loop.
            measuring.add_done_callback(lambda task: None if task.cancelled() else task.exception())
            listener = await link.listen_model_port(CONTAINER_MODEL_PORT if self.engine.is_isolated else 0)
            port = int(listener.getsockname()[1])
            await self.relay.close_sandbox(group_id)
            await self.relay.open_sandbox(
                group_id, listener, container_pid=found.pid if self.engine.is_isolated else None
            )
        except BaseException:
            if measuring is not None:
                measuring.cancel()
            await link.close()
            raise
        sandbox = Sandbox(
            group_id=group_id,
            container_generation=generation,
            facts=ContainerFacts(
                container_id=found.container_id,
                image_id=found.image_id,
                nonce=hello.nonce or "",
                started_at=found.started_at or "",
            ),
            link=link,
            hello=hello,
            relay=self.relay,
            model_port=port,
            slots={place.slot: HostedSlot(group_id, place, link, self.relay, self.tasks) for place in hello.slots},
            measuring=measuring,
        )
        self._running[group_id] = sandbox
        return sandbox

    async def _end_processes(self, held: Sandbox, *, force: bool, interrupt: Callable[[str], Any]) -> bool:
        if held.busy and not force:
            raise SlotBusyError(
                f"group {held.group_id}: activation {held.busy[0]} is open; expected none. Wait for its end, or force.",
                {"group_id": held.group_id, "held_by": held.busy[0]},
            )
        for activation_id in held.busy:
            finished = interrupt(activation_id)
            if finished is not None:
                await finished
        orderly = True
        for slot in held.slots.values():
            try:
                orderly = (
                    await slot.end_in_order(self.stop_limits.exit_wait_s, self.stop_limits.reclaim_timeout_s)
                    and orderly
                )
            except GuestLinkError as error:
                _log.warning("a slot could not be emptied before the stop", slot=slot.number, reason=error.reason)
                orderly = False
        return orderly

    async def _drop(self, held: Sandbox) -> None:
        if self._running.get(held.group_id) is held:
            del self._running[held.group_id]
        await held.close()

    def _socket_dir(self, group_id: str, generation: int) -> Path:
        # Short: a unix socket's path is at most 107 bytes.
        return self.sockets / f"{group_id}-{generation}"
