"""Performs what a slot's machine allows: start, census, reclaim. One keeper owns one slot."""

import asyncio
import functools
import os
import signal
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import replace

from .attribution import MARKER_VARIABLE, Attribution, Census, MarkerAttribution
from .cli_process import CliProcess
from .errors import OperationError
from .layout import Layout
from .processes import read_process
from .reaper import ExitStatus, Reaper
from .reclaim import Broadcast, Reclaim, ReclaimReport, signal_groups
from .slots import (
    Exited,
    IllegalSlotEventError,
    LeftoversFound,
    ReclaimAsked,
    ReclaimFinished,
    Slot,
    SlotEvent,
    SlotState,
    SpawnAsked,
    Started,
    StartFailed,
)
from .spawn import Program, become, fork_program, read_failure, run_forked
from .tap import DEFAULT_CAPACITY_BYTES

SPAWN_TIMEOUT_S = 10.0
_BROADCAST_TIMEOUT_S = 2.0


class SlotKeeper:
    """One slot's machine and process. `on_change` is called when there is something to tell the host."""

    def __init__(
        self,
        slot: int,
        layout: Layout,
        attribution: Attribution,
        reaper: Reaper,
        scans: Executor,
        on_change: Callable[[], None],
        tap_capacity: int = DEFAULT_CAPACITY_BYTES,
    ) -> None:
        self.machine = Slot()
        self.process: CliProcess | None = None
        self._slot = slot
        self._place = layout.slots[slot]
        self._layout = layout
        self._attribution = attribution
        self._reaper = reaper
        self._scans = scans
        self._on_change = on_change
        self._tap_capacity = tap_capacity

    def current(self, generation: int) -> CliProcess:
        """Returns the process of this generation; refuses a stale one."""
        if self.process is None or self.process.generation != generation:
            found = None if self.process is None else self.process.generation
            message = f"expected generation {found}, the request has {generation}"
            raise OperationError("PROCESS_GENERATION_STALE", message, expected=found, found=generation)
        return self.process

    def writable(self, generation: int) -> CliProcess:
        """Returns the process if input may go to it now.

        One that was killed is refused from the kill on: its exit is known only when the last of its threads has ended.
        """
        process = self.current(generation)
        if process.exit is not None:
            raise OperationError("PROCESS_EXITED", "the process is gone", **process.exit.as_json())
        row = None if process.row is None else read_process(process.row.pid)
        if row is not None and row.is_dying:
            raise OperationError("PROCESS_EXITED", "the process was killed and is going")
        if self.machine.state is not SlotState.RUNNING:
            raise OperationError("SLOT_BUSY", f"the slot is {self.machine.state.value}", state=self.machine.state.value)
        return process

    async def spawn(
        self, generation: int, program: Program, traceparent: str | None, *, is_bridged: bool = False
    ) -> CliProcess:
        """Starts a program in the idle, empty slot; a bridge with the way to its server (`wire.py`)."""
        await self._refuse_leftovers()
        newest = self.machine.process_generation
        if newest is not None and generation <= newest:
            raise OperationError(
                "PROCESS_GENERATION_STALE",
                f"generation {newest} was started here already",
                expected=newest + 1,
                found=generation,
            )
        self._step(SpawnAsked(generation))
        if self.process is not None:
            self.process.close()
            self.process = None
        try:
            process = CliProcess(
                self._slot,
                generation,
                traceparent,
                self._layout.own,
                self._on_change,
                self._tap_capacity,
                is_bridged,
                self._place.uid,
            )
        except OSError as error:
            self._step(StartFailed())
            message = f"streams: {error.strerror}"
            raise OperationError("SPAWN_FAILED", message, stage="streams", errno=error.errno) from error
        self.process = process
        try:
            forked = fork_program(
                self._place,
                self._marked(program),
                process.stdio,
                self._reaper,
                functools.partial(self._exited, process),
            )
        except OperationError:
            self._step(StartFailed())
            process.close()
            self.process = None
            raise
        try:
            process.forked(forked.pid)
            process.row = read_process(forked.pid)
            if process.row is not None:
                self._attribution.remember(self._slot, replace(process.row, session=forked.pid))
            await read_failure(forked, SPAWN_TIMEOUT_S)
        except (OperationError, OSError):
            await self._end_failed(process, forked.pid)
            raise
        self._step(Started())
        if process.exit is not None:
            self._step(Exited())
        return process

    def _marked(self, program: Program) -> Program:
        if not isinstance(self._attribution, MarkerAttribution):
            return program
        marker = {MARKER_VARIABLE: self._attribution.marker_of(self._slot)}
        return replace(program, env={**program.env, **marker}, dies_with_supervisor=True)

    async def _end_failed(self, process: CliProcess, pid: int) -> None:
        if process.exit is None:
            # Not reaped yet, so the number is still this child's.
            os.kill(pid, signal.SIGKILL)
        await process.ended.wait()
        process.close()
        self.process = None
        self._step(StartFailed())

    def _exited(self, process: CliProcess, status: ExitStatus) -> None:
        process.exited(status)
        if self.machine.is_main_alive:
            self._step(Exited())

    async def _refuse_leftovers(self) -> None:
        if self.machine.state is SlotState.IDLE:
            found = await self.census(is_thorough=False)
            if found.owned and self.machine.state is SlotState.IDLE:
                self._step(LeftoversFound())
        if self.machine.state is not SlotState.IDLE:
            reason = "SLOT_LEFTOVERS" if self.machine.state in (SlotState.ENDED, SlotState.LEFTOVERS) else "SLOT_BUSY"
            raise OperationError(
                reason,
                f"expected an idle slot, found {self.machine.state.value}; reclaim it first",
                state=self.machine.state.value,
            )

    async def census(self, is_thorough: bool = True) -> Census:
        """Scans once."""

        def scan() -> Census:
            return self._attribution.census(self._slot, self._attribution.scan(is_thorough), is_thorough)

        return await asyncio.get_running_loop().run_in_executor(self._scans, scan)

    async def reclaim(self, keep: frozenset[tuple[int, int]], timeout_s: float) -> ReclaimReport:
        """Ends all of the slot's processes but those to keep."""
        self._step(ReclaimAsked())
        report: ReclaimReport | None = None
        try:
            work = Reclaim(self._slot, keep, self._attribution, self._broadcaster())
            report = await asyncio.get_running_loop().run_in_executor(self._scans, work.run, timeout_s)
            # What was killed may be unreaped: the slot's own exit is to be known before the slot is called idle.
            self._reaper.reap()
        finally:
            self._step(ReclaimFinished(report is not None and report.is_complete))
        return report

    def _broadcaster(self) -> Broadcast:
        if self._place.uid is None:
            return functools.partial(signal_groups, self._slot, self._attribution)
        loop = asyncio.get_running_loop()

        def broadcast(number: int) -> bool:
            done: Future[bool] = asyncio.run_coroutine_threadsafe(self._signal_all(number), loop)
            return done.result(_BROADCAST_TIMEOUT_S * 2)

        return broadcast

    async def _signal_all(self, number: int) -> bool:
        """Signals every process of the slot's user, from a fork that became it; False if no fork was to be had."""

        def work() -> None:
            become(self._place)
            try:
                os.kill(-1, number)
            except ProcessLookupError:
                return

        try:
            pid = run_forked(work)
        except OSError:
            return False
        exit_of = self._reaper.exit_of(pid)
        try:
            return (await asyncio.wait_for(exit_of, _BROADCAST_TIMEOUT_S)).code == 0
        except TimeoutError:
            return False

    def _step(self, event: SlotEvent) -> None:
        try:
            self.machine.step(event)
        except IllegalSlotEventError as error:
            raise OperationError("SLOT_BUSY", f"not possible now: {error}", state=self.machine.state.value) from error
