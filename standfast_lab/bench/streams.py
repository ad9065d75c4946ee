"""How many turns can stream at once: each with 10 events a second, on `local` with the ticking CLI, everything on this one machine.

An event's delay is from its printing by the CLI to its arrival at the client, by one clock. It counts while all turns of a step stream.
The CLIs, the supervisors and the client share the processors with the product, so what is found is a lower bound. Each CLI makes one
short model call a turn; its events do not come through the relay.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from standfast.types.v1 import types_pb2 as types
from standfast_client.sdk import Expect
from standfast_lab.bench.figures import Figure, median, p99
from standfast_lab.bench.processes import cpu_ms, generations_below, resident_mib
from standfast_lab.bench.site import Site
from standfast_lab.bench.turns import UnfitTurnError, timed_turn

STEPS = (10, 25, 50, 75, 100, 150, 200, 300, 400, 500)
RATE = 10
_WINDOW_S = 5.0
_DELAY_GOAL_MS = 50.0
_MEMORY_GOAL_MIB = 1.0
_STARTING_AT_ONCE = 4
_TICKS_MAX = 6000
_RAMP_TIMEOUT_S = 240.0


@dataclass(frozen=True, slots=True)
class Step:
    """What one number of streams came to. `cpu_ms`: processor time in the window, by who used it."""

    count: int
    delays_ms: list[float]
    memory_mib: float
    cpu_ms: dict[str, float]

    @property
    def cpu_text(self) -> str:
        """Microseconds an event, by who used them."""
        events = max(len(self.delays_ms), 1)
        return " ".join(f"{name} {used * 1000 / events:.0f}" for name, used in self.cpu_ms.items())


class Streams:
    """Conversations that are kept from step to step, so that a step starts only those it adds."""

    def __init__(self, site: Site, stop_file: Path, progress: Callable[[int], None]) -> None:
        self._site = site
        self._stop_file = stop_file
        self._progress = progress
        self._conversations: list[str] = []
        self._delays_ms: list[float] = []
        self._is_counting = False
        self._streaming = 0
        self._all_stream = asyncio.Event()
        self._idle_mib = self._memory_mib()

    async def step(self, count: int) -> Step:
        """Streams `count` turns at once."""
        await self._add(count)
        self._stop_file.unlink(missing_ok=True)
        self._delays_ms, self._streaming = [], 0
        self._all_stream.clear()
        async with asyncio.TaskGroup() as group:
            room = asyncio.Semaphore(_STARTING_AT_ONCE)
            for conversation in self._conversations:
                group.create_task(self._stream(conversation, room))
            try:
                async with asyncio.timeout(_RAMP_TIMEOUT_S):
                    await self._all_stream.wait()
                before = self._cpu_ms()
                self._is_counting = True
                await asyncio.sleep(_WINDOW_S)
                self._is_counting = False
                used = {name: after - before[name] for name, after in self._cpu_ms().items()}
                used_mib = self._memory_mib() - self._idle_mib
            finally:
                self._is_counting = False
                self._stop_file.touch()
        return Step(count, self._delays_ms, used_mib / count, used)

    def _cpu_ms(self) -> dict[str, float]:
        """Processor time so far: of each part of the product, of the stand-ins for the CLI, and of this process."""
        fleet = self._site.fleet
        supervisors, clis = generations_below(fleet.host_agent.pid)
        used = {member.kind.replace("-", "_"): cpu_ms([member.pid]) for member in fleet.members}
        return used | {"supervisors": cpu_ms(supervisors), "clis": cpu_ms(clis), "client": cpu_ms([os.getpid()])}

    async def _add(self, count: int) -> None:
        room = asyncio.Semaphore(_STARTING_AT_ONCE)

        async def begin(conversation: str) -> None:
            async with room:
                await timed_turn(self._site.client, conversation, "hello", "NEW")
                self._conversations.append(conversation)
                self._progress(len(self._conversations))

        async with asyncio.TaskGroup() as group:
            for number in range(len(self._conversations), count):
                group.create_task(begin(f"bench-stream-{number}"))

    async def _stream(self, conversation: str, room: asyncio.Semaphore) -> None:
        await room.acquire()
        is_waiting = True
        try:
            stream = self._site.client.start_turn(conversation, f"ticks: {RATE} {_TICKS_MAX}", expect=Expect.CONTINUE)
            async for event in stream:
                if event.WhichOneof("body") != "text_delta":
                    continue
                if is_waiting:
                    is_waiting = False
                    room.release()
                    self._streaming += 1
                    if self._streaming == len(self._conversations):
                        self._all_stream.set()
                if self._is_counting:
                    self._delays_ms.append((time.monotonic_ns() - int(event.text_delta.text)) / 1e6)
            outcome = types.Outcome.Name(stream.result.outcome)
            if outcome != "OUTCOME_COMPLETED":
                raise UnfitTurnError(f"a streaming turn ended {outcome}: {stream.result.failure.message}")
        finally:
            if is_waiting:
                room.release()

    def _memory_mib(self) -> float:
        """Resident memory of runner, manager and host agent together."""
        return sum(resident_mib(member.pid) for member in self._site.fleet.members)


async def stream_figures(
    site: Site, stop_file: Path, steps: tuple[int, ...], note: Callable[[str], None], progress: Callable[[int], None]
) -> list[Figure]:
    """Climbs the steps until one misses the delay's goal."""
    streams = Streams(site, stop_file, progress)
    detail: dict[str, float | int | str] = {}
    memory_detail: dict[str, float | int | str] = {}
    held, memory_mib = 0, float("nan")
    for count in steps:
        step = await streams.step(count)
        note(
            f"{count} streams: p99 {p99(step.delays_ms):.1f} ms, median {median(step.delays_ms):.1f} ms, "
            f"{step.memory_mib:.2f} MiB a turn; processor time an event, us: {step.cpu_text}"
        )
        detail |= {
            f"p99_at_{count}_ms": round(p99(step.delays_ms), 1),
            f"median_at_{count}_ms": round(median(step.delays_ms), 1),
            f"events_at_{count}": len(step.delays_ms),
            f"cpu_us_an_event_at_{count}": step.cpu_text,
        }
        memory_detail[f"at_{count}_mib"] = round(step.memory_mib, 3)
        is_held = p99(step.delays_ms) <= _DELAY_GOAL_MS
        if is_held or held == 0:
            # What waits in queues at a step that is not held is another question.
            memory_mib = step.memory_mib
        if not is_held:
            break
        held = count
    what = f"turns that stream {RATE} events/s at once with p99 event delay <= {_DELAY_GOAL_MS:g} ms"
    memory = f"memory a turn in runner, manager and host agent, at {held} turns"
    return [
        Figure("streams", what, held, "turns", float(STEPS[-1]), "at least", detail),
        Figure("streams", memory, memory_mib, "MiB", _MEMORY_GOAL_MIB, detail=memory_detail),
    ]
