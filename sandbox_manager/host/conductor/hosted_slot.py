"""One slot of a running sandbox as the host agent holds it: its machine, its CLI process, and who hears what the process prints.

Between activations nobody listens: what is printed then is counted, and an exit empties the slot. It knows nothing of turns.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import structlog

from sandbox_manager.core.values import Census, NativeLocator, ProcessDisposition, SlotProcess
from sandbox_manager.host.adapters.guest_errors import GuestLinkError, GuestOperationError
from sandbox_manager.host.adapters.guest_events import GuestEvents
from sandbox_manager.host.adapters.guest_link import GuestLink
from sandbox_manager.host.adapters.guest_values import (
    GuestProgram,
    GuestSlot,
    OutputChunk,
    OutputGap,
    ProcessExited,
)
from sandbox_manager.host.core import slot as machine
from sandbox_manager.host.core.disposition import LeaveBy
from sandbox_manager.host.errors import ReclaimIncompleteError, SlotBusyError
from sandbox_manager.host.relay.relay import Relay
from standfast_chassis.task_pool import TaskPool

_log = structlog.get_logger("standfast.host.slot")

STDERR_TAIL_BYTES = 4096
_SIGTERM = 15


@dataclass(frozen=True, slots=True)
class LinkLost:
    """The supervisor does not answer any more."""

    error: GuestLinkError


SlotNews = OutputChunk | OutputGap | ProcessExited | LinkLost
Listener = Callable[[SlotNews], Awaitable[None]]


@dataclass(slots=True)
class HostedCli:
    """One CLI process. `tap_end` is the offset of the next byte of its stdout.

    `family` are the processes that stay with it between turns: itself, and those that it had when its handshake was answered.
    """

    process_generation: int
    process: SlotProcess
    locator: NativeLocator
    settings_digest: str
    events: GuestEvents
    tap_end: int = 0
    has_gap: bool = False
    was_interrupted_on_loss: bool = False
    stderr_tail: bytes = b""
    exit: ProcessExited | None = None
    exited: asyncio.Event = field(default_factory=asyncio.Event)
    is_bridged: bool = False
    family: tuple[SlotProcess, ...] = ()

    @property
    def exit_code(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        if self.exit is None:
            return None
        return self.exit.code if self.exit.code is not None else -(self.exit.signal or 0)


class HostedSlot:
    """A slot. `hold` it for an activation; only the holder steps the machine."""

    def __init__(self, group_id: str, place: GuestSlot, link: GuestLink, relay: Relay, tasks: TaskPool) -> None:
        self.number = place.slot
        self.place = place
        self.name = f"slot-{place.slot}"
        self.machine = machine.Slot(machine.SlotState.UNKNOWN)
        self.cli: HostedCli | None = None
        self._group_id = group_id
        self._link = link
        self._relay = relay
        self._tasks = tasks
        self._listener: Listener | None = None
        self._held_by: str | None = None
        self._lock = asyncio.Lock()

    # --- who holds it -----------------------------------------------------------------------------------------------

    @property
    def held_by(self) -> str | None:
        """The activation that has the slot."""
        return self._held_by

    def hold(self, activation_id: str) -> None:
        """Takes the slot for one activation. Raises SlotBusyError."""
        if self._held_by is not None:
            raise SlotBusyError(
                f"slot {self.number} of {self._group_id} is held by activation {self._held_by}; "
                "expected it free. Wait for its end.",
                {"group_id": self._group_id, "slot": self.number, "held_by": self._held_by},
            )
        self._held_by = activation_id

    def let_go(self, activation_id: str) -> None:
        """Gives the slot back. Idempotent."""
        if self._held_by == activation_id:
            self._held_by = None
            self._listener = None

    def listen(self, listener: Listener) -> None:
        """From now on the process's news go to the holder."""
        self._listener = listener

    # --- the process ------------------------------------------------------------------------------------------------

    def fits(self, process_generation: int | None, locator: NativeLocator, settings_digest: str) -> bool:
        """Whether the kept process may serve a turn with these: design chapter 3, LIVE (a) to (d)."""
        cli = self.cli
        return (
            cli is not None
            and process_generation is not None
            and self.machine.state is machine.SlotState.IDLE
            and cli.process_generation == process_generation
            and cli.exit is None
            and cli.locator == locator
            and cli.settings_digest == settings_digest
            and not cli.has_gap
            and not cli.was_interrupted_on_loss
        )

    async def is_alive(self) -> bool:
        """Whether the supervisor would take input for the process now: its news of an exit may still be on the way here.

        Raises GuestLinkError.
        """
        if self.cli is None:
            return False
        try:
            await self._link.write(self.number, self.cli.process_generation, b"")
        except GuestOperationError as error:
            _log.info("a kept process is not there any more", slot=self.number, reason=error.guest_reason)
            return False
        return True

    async def start(
        self,
        process_generation: int,
        locator: NativeLocator,
        settings_digest: str,
        program: Callable[[str], GuestProgram],
        *,
        traceparent: str | None,
        reclaim_timeout_s: float,
        exit_wait_s: float,
    ) -> HostedCli:
        """Empties the slot and starts a program in it. `program` makes it from the slot's new model secret.

        Raises ReclaimIncompleteError when something of the slot could not be proved gone: nothing is started beside it.
        """
        async with self._lock:
            if self.cli is not None and self.cli.exit is None:
                await self._leave(LeaveBy.CLOSE_STDIN, exit_wait_s)
            census = await self._empty(reclaim_timeout_s)
            if not census.complete:
                raise ReclaimIncompleteError(
                    f"slot {self.number} of {self._group_id}: expected no process left, found {len(census.remaining)}; "
                    "nothing was started. Stop the sandbox to end them.",
                    {"group_id": self._group_id, "slot": self.number, "remaining": len(census.remaining)},
                )
            self.machine.step(machine.Wanted(process_generation))
            secret = secrets.token_urlsafe(32)
            self._relay.revoke_slot(self._group_id, self.name)
            self._relay.register_slot(self._group_id, self.name, secret, uid=self.place.uid)
            try:
                started = program(secret)
                spawned = await self._link.spawn(self.number, process_generation, started, traceparent)
            except BaseException:
                self.machine.step(machine.StartFailed("SPAWN_FAILED"))
                raise
            process = SlotProcess(spawned.pid, spawned.start_time)
            self.cli = HostedCli(
                process_generation,
                process,
                locator,
                settings_digest,
                spawned.events,
                is_bridged=started.is_bridged,
                family=(process,),
            )
            self.machine.step(machine.Started(process))
            self._tasks.start(lambda: self._pump(self.cli), name=f"{self._group_id}/{self.number}/{process_generation}")
            return self.cli

    async def record_family(self) -> None:
        """The handshake is answered: what a bridge has started by now, its server, stays with it. Raises GuestLinkError."""
        if self.cli is not None and self.cli.is_bridged:
            census = await self._link.census(self.number)
            self.cli.family = tuple(SlotProcess(one.pid, one.start_time) for one in census.processes)

    def use_kept(self) -> HostedCli:
        """Takes the kept process for the next turn; `fits` said that it may."""
        assert self.cli is not None
        self.machine.step(machine.Wanted(self.cli.process_generation, fitting=True))
        return self.cli

    async def write(self, data: bytes, traceparent: str | None = None) -> None:
        """Writes to the process's stdin. Raises GuestLinkError."""
        assert self.cli is not None
        await self._link.write(self.number, self.cli.process_generation, data, traceparent)

    async def deposit_interrupt(self, data: bytes, grace_s: float) -> None:
        """What the supervisor writes when this host agent is gone for longer than the grace; empty takes it back."""
        if self.cli is not None and self.cli.exit is None:
            await self._link.deposit_interrupt(self.number, self.cli.process_generation, data, grace_s)

    async def leave(self, by: LeaveBy, exit_wait_s: float) -> bool:
        """Asks the process to leave by itself and waits; whether its exit was confirmed."""
        async with self._lock:
            return await self._leave(by, exit_wait_s)

    async def reclaim(self, keep: tuple[SlotProcess, ...], timeout_s: float) -> Census:
        """Ends the slot's processes but those to keep."""
        async with self._lock:
            return await self._reclaim(keep, timeout_s)

    def release(self, disposition: ProcessDisposition, census: Census | None) -> None:
        """The activation is over. A process that is not kept has been dealt with before; the census says how that went."""
        if disposition is ProcessDisposition.KEPT and self.machine.state is machine.SlotState.IDLE:
            return
        if self.machine.state is machine.SlotState.ACTIVE and disposition is ProcessDisposition.KEPT:
            self.machine.step(machine.Released(ProcessDisposition.KEPT))
            return
        self._begin_reclaim()
        self._reclaimed(census is not None and census.complete and not census.kept)

    async def end_in_order(self, exit_wait_s: float, reclaim_timeout_s: float) -> bool:
        """Before the sandbox's stop: whether every process left by itself and nothing is left."""
        async with self._lock:
            left = True
            if self.cli is not None and self.cli.exit is None:
                left = await self._leave(LeaveBy.CLOSE_STDIN, exit_wait_s)
            return left and (await self._empty(reclaim_timeout_s)).complete

    # --- private ----------------------------------------------------------------------------------------------------

    async def _empty(self, timeout_s: float) -> Census:
        """Ends everything of the slot, and lets the machine know whether that was proved."""
        self._begin_reclaim()
        census = await self._reclaim((), timeout_s)
        self._reclaimed(census.complete)
        return census

    def _begin_reclaim(self) -> None:
        match self.machine.state:
            case machine.SlotState.ACTIVE | machine.SlotState.STARTING:
                self.machine.step(machine.Released(ProcessDisposition.RECLAIM_FIRST))
            case machine.SlotState.IDLE | machine.SlotState.UNKNOWN:
                self.machine.step(machine.ReclaimWanted())
            case machine.SlotState.RETIRING:
                self.machine.step(machine.RetireWaitOver())
            case machine.SlotState.EMPTY | machine.SlotState.RECLAIMING:
                return

    def _reclaimed(self, is_complete: bool) -> None:
        if self.machine.state is machine.SlotState.RECLAIMING:
            self.machine.step(machine.Reclaimed(is_complete))
        if is_complete:
            self.cli = None

    async def _leave(self, by: LeaveBy, exit_wait_s: float) -> bool:
        cli = self.cli
        if cli is None or cli.exit is not None:
            return True
        try:
            if by is LeaveBy.TERMINATE:
                await self._link.signal(self.number, cli.process_generation, _SIGTERM)
            else:
                await self._link.close_stdin(self.number, cli.process_generation)
        except GuestOperationError as error:
            _log.info("a process could not be asked to leave", slot=self.number, reason=error.guest_reason)
        try:
            async with asyncio.timeout(exit_wait_s):
                await cli.exited.wait()
        except TimeoutError:
            return False
        return True

    async def _reclaim(self, keep: tuple[SlotProcess, ...], timeout_s: float) -> Census:
        report = await self._link.reclaim(
            self.number, [(one.pid, one.started_ticks) for one in keep], timeout_s=timeout_s
        )
        return Census(
            complete=report.is_complete,
            kept=tuple(SlotProcess(one.pid, one.start_time) for one in report.kept),
            killed=len(report.killed),
            remaining=tuple(SlotProcess(one.pid, one.start_time) for one in report.remaining),
            unattributed=len(report.unattributed),
        )

    async def _pump(self, cli: HostedCli | None) -> None:
        assert cli is not None
        try:
            async for event in cli.events:
                match event:
                    case OutputChunk("stderr", _, data):
                        cli.stderr_tail = (cli.stderr_tail + data)[-STDERR_TAIL_BYTES:]
                    case OutputChunk("stdout", offset, data):
                        cli.tap_end = offset + len(data)
                        await self._tell(event)
                    case OutputGap("stdout", _, end):
                        cli.has_gap, cli.tap_end = True, end
                        await self._tell(event)
                    case ProcessExited():
                        cli.exit = event
                        cli.exited.set()
                        if self._listener is None and self.machine.state is machine.SlotState.IDLE:
                            # Nobody asked it to leave. The next start reclaims whatever it left behind.
                            self.machine.step(machine.Exited(cli.exit_code))
                        await self._tell(event)
                    case _:
                        continue
        except GuestLinkError as error:
            self.machine.step(machine.SupervisorLost())
            cli.exited.set()
            await self._tell(LinkLost(error))

    async def _tell(self, news: SlotNews) -> None:
        if self._listener is not None:
            await self._listener(news)
