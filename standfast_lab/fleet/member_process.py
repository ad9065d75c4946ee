"""One process of a fleet as its parent sees it: started, waited for, killed, stopped, its log kept."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from standfast_chassis.build_info import RELEASE_SHA_VARIABLE, build_info
from standfast_lab.fleet.process import VARIABLE
from standfast_lab.fleet.switches import Switches

# A host agent is ready when it has measured all agents and is registered: seconds, but minutes beside several test runs on two cores.
READY_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0


class ProcessNotReadyError(Exception):
    """A process did not come up, or ended by itself. The message has the end of its log."""


class MemberProcess:
    """A process that listens on `address`. `log` collects its standard error over all its lives."""

    def __init__(self, kind: str, address: str, flags: dict[str, Any], switches: Switches, log: Path) -> None:
        self.kind = kind
        self.address = address
        self.flags = flags
        self.switches = switches
        self.log = log
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """Of the process that runs."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Starts it; `wait_ready` waits for its readiness."""
        given = json.dumps({"flags": self.flags, "switches": self.switches.as_json()})
        env = {**os.environ, VARIABLE: given, "GRPC_ENABLE_FORK_SUPPORT": "false", "PYTHONUNBUFFERED": "1"}
        if (sha := build_info().release_sha) is not None:
            # One tree is one release: a commit between the starts of two processes must not part them.
            env.setdefault(RELEASE_SHA_VARIABLE, sha)
        with self.log.open("ab") as out:
            # A session of its own: a Ctrl-C at the parent's terminal stops the fleet in the parent's order.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "standfast_lab.fleet.process",
                self.kind,
                env=env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    async def wait_ready(self, timeout_s: float = READY_TIMEOUT_S, *, serving: bool = True) -> None:
        """Until its health service answers SERVING (or just answers). Raises ProcessNotReadyError."""
        try:
            async with asyncio.timeout(timeout_s):
                while not await self._answers(serving):
                    if not self.is_running:
                        raise ProcessNotReadyError(f"{self.kind} ended by itself.\n{self.log_tail()}")
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise ProcessNotReadyError(
                f"{self.kind} at {self.address} was not ready within {timeout_s} s.\n{self.log_tail()}"
            ) from None

    async def kill(self) -> None:
        """SIGKILL, and waits for the exit."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
            await self._process.wait()

    def freeze(self) -> None:
        """SIGSTOP: alive for the kernel, silent for everybody else."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int | None:
        """SIGTERM, SIGKILL after the time; the exit code."""
        process = self._process
        if process is None:
            return None
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(timeout_s):
                    await process.wait()
            except TimeoutError:
                await self.kill()
        return process.returncode

    def log_tail(self, lines: int = 30) -> str:
        """The end of the log."""
        if not self.log.exists():
            return "(no log)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    async def _answers(self, serving: bool) -> bool:
        async with grpc.aio.insecure_channel(
            self.address, options=[("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
        ) as channel:
            try:
                stub: Any = health_pb2_grpc.HealthStub(channel)
                answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=2.0)
            except grpc.aio.AioRpcError:
                return False
        return not serving or bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
