"""A sandbox under test on either engine, and a stub CLI in its slots."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sandbox_manager.host.adapters.engine import ContainerState, Engine, Inspect, SandboxSpec, sandbox_labels
from sandbox_manager.host.adapters.guest_link import GuestLink, SpawnedProcess
from sandbox_manager.host.adapters.guest_values import (
    GuestProgram,
    OutputChunk,
    OutputEnded,
    OutputGap,
    ProcessExited,
    SlotFile,
)

STUB = Path(__file__).with_name("stub_cli.py")
PATIENCE_S = 20.0


async def eventually(holds: Callable[[], Awaitable[bool]], timeout_s: float = PATIENCE_S) -> None:
    """Waits for a state: asks until it holds; TimeoutError after the deadline."""
    async with asyncio.timeout(timeout_s):
        while True:
            if await holds():
                return
            await asyncio.sleep(0.01)


class StubCli:
    """The stub CLI in one slot, spoken to in JSON lines."""

    def __init__(self, sandbox: Sandbox, slot: int, generation: int, process: SpawnedProcess) -> None:
        self.sandbox = sandbox
        self.slot = slot
        self.generation = generation
        self.process = process
        self.stdout = bytearray()
        self.line_count = 0
        self.stderr = bytearray()
        self.gaps: list[OutputGap] = []
        self.ended: set[str] = set()
        self.exit: ProcessExited | None = None

    async def send(self, order: Mapping[str, Any]) -> None:
        line = json.dumps(order).encode() + b"\n"
        await self.sandbox.link.write(self.slot, self.generation, line)

    async def ask(self, order: Mapping[str, Any]) -> Any:
        """Sends an order and waits for its answer."""
        lines = self.line_count
        await self.send(order)
        await self.read_until(lambda: self.line_count > lines)
        return json.loads(self.stdout.split(b"\n")[lines])["answer"]

    async def run(self, code: str) -> Any:
        """Has the stub run Python code and returns its `result`."""
        return await self.ask({"run": code})

    async def read_until(self, is_enough: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not is_enough():
                await self.read_one()

    async def read_one(self) -> None:
        match await anext(self.process.events):
            case OutputChunk(stream, offset, data):
                buffer = self.stdout if stream == "stdout" else self.stderr
                if not any(gap.stream == stream for gap in self.gaps):
                    assert offset == len(buffer), "a byte was lost or doubled"
                buffer += data
                # Counted as they come: the whole is not searched again for each piece of a long line.
                self.line_count += data.count(b"\n") if stream == "stdout" else 0
            case OutputGap() as gap:
                self.gaps.append(gap)
            case OutputEnded(stream, _):
                self.ended.add(stream)
            case ProcessExited() as exited:
                self.exit = exited

    async def wait_for_exit(self) -> ProcessExited:
        await self.read_until(lambda: self.exit is not None)
        assert self.exit is not None
        return self.exit


class Sandbox:
    """One container or retained folder."""

    def __init__(self, engine: Engine, container_id: str, socket_dir: Path) -> None:
        self.engine = engine
        self.container_id = container_id
        self.socket_dir = socket_dir
        self._link: GuestLink | None = None

    @property
    def link(self) -> GuestLink:
        assert self._link is not None
        return self._link

    async def start(self) -> GuestLink:
        await self.engine.start(self.container_id)
        return await self.connect()

    async def connect(self) -> GuestLink:
        await self.disconnect()
        peer = self.engine.expected_peer(await self.inspect())
        self._link = await GuestLink.connect(self.socket_dir, peer)
        return self._link

    async def disconnect(self) -> None:
        if self._link is not None:
            await self._link.close()
            self._link = None

    async def inspect(self) -> Inspect:
        return await self.engine.inspect(self.container_id)

    async def stop(self) -> Inspect:
        await self.disconnect()
        await self.engine.stop(self.container_id, 15)
        return await self.inspect()

    async def wait_for_state(self, state: ContainerState) -> Inspect:
        found = await self.inspect()

        async def is_there() -> bool:
            nonlocal found
            found = await self.inspect()
            return found.state is state

        await eventually(is_there)
        return found

    def program(self, slot: int, *, argv: tuple[str, ...] = (), env: Mapping[str, str] | None = None) -> GuestProgram:
        """The stub, or another command, in that slot."""
        place = self.link.hello.slot(slot)
        variables = {"HOME": place.home, "TMPDIR": place.private, "PATH": "/usr/bin:/bin", **(env or {})}
        return GuestProgram(
            argv=argv or ("/usr/bin/python3", "-u", f"{place.private}/stub_cli.py"),
            env=variables,
            cwd=self.link.hello.workspace,
            files=(SlotFile("private", ("stub_cli.py",), 0o600, STUB.read_bytes()),),
            must_be_unreadable=False,
        )

    async def spawn(self, slot: int = 1, generation: int = 1, **of_program: Any) -> StubCli:
        process = await self.link.spawn(slot, generation, self.program(slot, **of_program))
        return StubCli(self, slot, generation, process)


@asynccontextmanager
async def sandbox_on(
    engine: Engine, image_id: str, name: str, folder: Path, extra_labels: Mapping[str, str]
) -> AsyncIterator[Sandbox]:
    """A created sandbox; removed at the end whatever happened."""
    socket_dir = folder / "sockets"
    socket_dir.mkdir(mode=0o700)
    labels = sandbox_labels(group_id=name, generation=1, tenant="local", state_id=name, conversations=["c1"])
    container_id = await engine.create(SandboxSpec(name, image_id, socket_dir, {**labels, **extra_labels}))
    sandbox = Sandbox(engine, container_id, socket_dir)
    try:
        yield sandbox
    finally:
        await sandbox.disconnect()
        await engine.remove(container_id)
