"""The server program: started on loopback with a secret of its own, watched, and ended with everything it started."""

import asyncio
import ctypes
import os
import secrets
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from .dialling import Dialler, free_port
from .flavours import Flavour
from .http_client import CallError, HttpClient

START_TIMEOUT_S = 120.0  # on busy cores it takes a minute; whoever started the bridge has a deadline of its own
END_TIMEOUT_S = 6.0
_LOOK_S = 0.2
_LINE_BYTES_MAX = 1 << 20
_LISTENING = b"listening on"
SHELL = Path(__file__).resolve().parent / "shell" / "bash"


_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class ServerFailedError(RuntimeError):
    """The server did not come up, or is another than the pinned one."""


class ServerProcess:
    """One server, in a process group of its own. `client` calls it."""

    def __init__(self, flavour: Flavour, executable: str, directory: str, wire_fd: int | None) -> None:
        self._flavour = flavour
        self._executable = executable
        self._directory = directory
        self._port = free_port()
        self._secret = secrets.token_urlsafe(32)
        self._process: asyncio.subprocess.Process | None = None
        self._is_listening = asyncio.Event()
        self._passing_on: asyncio.Task[None] | None = None
        self.client = HttpClient(Dialler(self._port, wire_fd), flavour.user, self._secret)

    async def start(self, environment: Mapping[str, str]) -> None:
        """Starts it and waits until it is healthy. Raises ServerFailedError."""
        env = {
            **environment,
            f"{self._flavour.prefix}_SERVER_PASSWORD": self._secret,
            f"{self._flavour.prefix}_SERVER_USERNAME": self._flavour.user,
            # The server gives its whole environment to the shells of its tools; this one takes the secret out of it.
            "SHELL": str(SHELL),
        }
        argv = (self._executable, "serve", "--port", str(self._port), "--hostname", "127.0.0.1")
        try:
            self._process = await asyncio.create_subprocess_exec(
                *argv,
                env=env,
                cwd=self._directory,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=sys.stderr,
                limit=_LINE_BYTES_MAX,
                process_group=0,
                preexec_fn=_die_with_parent,  # what a bridge that is killed cannot do any more
            )
        except OSError as error:
            raise ServerFailedError(f"the server could not be started: {error.strerror}") from error
        self._passing_on = asyncio.create_task(self._pass_on(self._process))
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._is_listening.wait()
                version = await self._healthy()
        except TimeoutError:
            raise ServerFailedError(f"the server was not healthy within {START_TIMEOUT_S} s") from None
        if version != self._flavour.version:
            raise ServerFailedError(f"expected server version {self._flavour.version}, found {version}")

    async def _pass_on(self, process: asyncio.subprocess.Process) -> None:
        """What the server prints goes to our stderr; one line of it says that it listens. Its end wakes whoever waits for that too."""
        assert process.stdout is not None
        with suppress(ValueError):  # a line over the bound: nothing more of it is passed on
            while line := await process.stdout.readline():
                sys.stderr.buffer.write(line)
                sys.stderr.flush()
                if _LISTENING in line:
                    self._is_listening.set()
        await process.wait()
        self._is_listening.set()

    async def _healthy(self) -> str:
        while True:
            if self._process is None or self._process.returncode is not None:
                code = None if self._process is None else self._process.returncode
                raise ServerFailedError(f"the server left with exit code {code} before it was healthy")
            with suppress(CallError):
                answer = await self.client.call("GET", "/global/health", timeout_s=5.0)
                if answer.status == 200:
                    found = answer.json()
                    return str(found.get("version")) if isinstance(found, dict) else "none"
            await asyncio.sleep(_LOOK_S)

    async def ended(self) -> int:
        """Waits for its exit code."""
        assert self._process is not None
        return await self._process.wait()

    async def end(self) -> None:
        """Asks it to leave, and then ends its whole group. A second call does nothing."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.terminate()
            with suppress(TimeoutError):
                async with asyncio.timeout(END_TIMEOUT_S):
                    await process.wait()
        # What it started may outlive it; its group is known even when it is gone itself.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        if self._passing_on is not None:
            self._passing_on.cancel()
