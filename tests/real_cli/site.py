"""A fleet on real parts that the tests of a module share, each with conversations of its own; and how to look behind the product."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import tarfile
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import docker

from standfast_client.sdk import StandfastClient
from standfast_lab.fleet.fleet import Fleet, Parts
from standfast_lab.oracle import Verdict, judge_session
from standfast_lab.provider import LabProvider, Row
from tests.real_cli.talk import Talk

_POLL_S = 0.05
WORKSPACE_GID = 20000
_WAIT_S = 30.0


@dataclass(frozen=True)
class Ran:
    """A command that was run in a sandbox from outside."""

    code: int
    output: str


class Site:
    """Use as an async context manager. `provider_url` None: the lab itself."""

    def __init__(self, folder: Path, parts: Parts, *, through: Tee | None = None) -> None:
        self.lab = LabProvider()
        self._folder = folder
        self._parts = parts
        self._through = through
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.lab)
        url = self.lab.base_url
        if self._through is not None:
            self._through.port = self.lab.port
            await self._stack.enter_async_context(self._through)
            url = self._through.base_url
        self.fleet = await self._stack.enter_async_context(Fleet(self._folder, self._parts, url))
        self.client = await self._stack.enter_async_context(StandfastClient(self.fleet.runner.address))
        if self._parts.engine == "docker":
            self.docker = docker.from_env(timeout=60)
            self._stack.callback(self.docker.close)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)
        assert self.lab.failures == (), "the lab provider itself failed"

    def talk(self, *, agent: str = "claude-code", model: str | None = None, **options: str) -> Talk:
        """A new conversation. `options` are the agent's."""
        return Talk(self.client, agent=agent, model=model, options=options)

    # --- what the model was told --------------------------------------------------------------------------------------

    def history(self, talk: Talk, session: str) -> Verdict:
        """Whether the newest request of the session carried all that was said."""
        verdict = judge_session(self.lab.log.rows(), session, talk.said)
        if verdict.is_complete or not talk.unwritten:
            return verdict
        written = [turn for turn in talk.said if not any(turn is one for one in talk.unwritten)]
        return judge_session(self.lab.log.rows(), session, written)

    def roots(self, session: str) -> list[Row]:
        """The session's own requests, in order."""
        return self.lab.log.roots(session)

    def requests_for(self, text: str) -> list[Row]:
        """All requests whose newest message holds just this text, whoever sent them."""
        return [row for row in self.lab.log.rows() if row["messages"] and text in row["messages"][-1]["texts"]]

    # --- processes ----------------------------------------------------------------------------------------------------

    def cli_pid(self, session: str) -> int:
        """The host's pid of the CLI process that serves this session now."""
        found = [pid for pid, words in command_lines().items() if session in words and words[0].endswith("claude")]
        assert len(found) == 1, f"expected one CLI of session {session}, found {found}"
        return found[0]

    async def kill_cli(self, session: str) -> None:
        """SIGKILL, and waits until its parent has reaped it; who else knows by then is the product's to care for."""
        pid = self.cli_pid(session)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not Path(f"/proc/{pid}").exists(), f"process {pid} was not reaped")

    # --- sandboxes of docker ------------------------------------------------------------------------------------------

    async def run(
        self, container_id: str, command: str, *, uid: int = 0, environment: Mapping[str, str] | None = None
    ) -> Ran:
        """Runs a shell command in a sandbox as this user, with no right more than a process of the sandbox has."""
        return await asyncio.to_thread(self._run, container_id, command, uid, dict(environment or {}))

    def _run(self, container_id: str, command: str, uid: int, environment: dict[str, str]) -> Ran:
        container = self.docker.containers.get(container_id)
        ran = container.exec_run(["bash", "-c", command], user=f"{uid}:{WORKSPACE_GID}", environment=environment)
        assert isinstance(ran.output, bytes)
        assert ran.exit_code is not None
        return Ran(ran.exit_code, ran.output.decode(errors="replace"))

    async def start_beside(self, container_id: str, command: str, *, uid: int) -> None:
        """Starts a process of another slot's user in a sandbox, where no product process starts one yet."""
        container = self.docker.containers.get(container_id)
        await asyncio.to_thread(container.exec_run, ["bash", "-c", command], user=f"{uid}:{WORKSPACE_GID}", detach=True)

    async def put(self, container_id: str, folder: str, name: str, content: bytes) -> None:
        """Lays a file of root's, readable by all, into a sandbox."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
        container = self.docker.containers.get(container_id)
        assert await asyncio.to_thread(container.put_archive, folder, packed.getvalue())

    def processes(self, container_id: str) -> list[str]:
        """The command lines in a sandbox, as the engine sees them."""
        return [" ".join(row[7:]) for row in self.docker.containers.get(container_id).top()["Processes"]]


def command_lines() -> dict[int, list[str]]:
    """Every process of this machine and its command line; zombies have none."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[0]:
                found[int(folder.name)] = [word.decode(errors="replace") for word in words]
    return found


async def until(holds: Callable[[], bool], what: str, *, timeout_s: float = _WAIT_S) -> None:
    """Waits for a state."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(_POLL_S)


@dataclass
class Tee:
    """A plain TCP pass between host agent and lab that keeps what was sent: the lab's log has no instruction texts. `port`: the lab's."""

    port: int = 0
    sent: bytearray = field(default_factory=bytearray)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        their_reader, their_writer = await asyncio.open_connection("127.0.0.1", self.port)
        await asyncio.gather(self._pass(reader, their_writer, self.sent), self._pass(their_reader, writer, None))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray | None) -> None:
        try:
            while data := await reader.read(65536):
                if kept is not None:
                    kept += data
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass  # either side may leave at any time
        finally:
            writer.close()
