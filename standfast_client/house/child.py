"""One process of the house: started in a process group of its own, its lines shown with its name, ended within a bound."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence

LINE_BYTES_MAX = 256 * 1024
READ_BYTES = 64 * 1024
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)

OnLine = Callable[[str, str], None]


class Child:
    """A started process. Made by `Child.start`."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, on_line: OnLine) -> None:
        self.name = name
        self._process = process
        self._on_line = on_line
        self._reading = asyncio.create_task(self._read(), name=f"lines of {name}")

    @classmethod
    async def start(cls, name: str, argv: Sequence[str], environment: Mapping[str, str], on_line: OnLine) -> Child:
        """Starts `argv`. Its standard output and error both go to `on_line(name, line)`."""
        process = await asyncio.create_subprocess_exec(
            *argv,
            env=dict(environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            # Of its own, so that Ctrl-C reaches the house alone, which ends its processes in order.
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        return cls(name, process, on_line)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: ended by that signal."""
        return self._process.returncode

    async def wait(self) -> int:
        """Returns when it has ended, with its exit code."""
        return await self._process.wait()

    async def stop(self, timeout_s: float, hurry: asyncio.Event) -> bool:
        """SIGTERM, then SIGKILL to its group when the time is up or `hurry` is set for a while. True: it left by itself."""
        self._signal(signal.SIGTERM)
        ended = asyncio.create_task(self._process.wait())
        hurried = asyncio.create_task(hurry.wait())
        try:
            await asyncio.wait({ended, hurried}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done() and hurry.is_set():
                # A second signal tells the process to hurry too; it gets a moment to do so.
                self._signal(signal.SIGTERM)
                await asyncio.wait({ended}, timeout=min(timeout_s, HURRIED_S))
            left = ended.done()
            if not left:
                self._kill_group()
                await ended
        finally:
            ended.cancel()
            hurried.cancel()
        # A grandchild may hold the pipe open: the last lines are waited for, but not for ever.
        await asyncio.wait({self._reading}, timeout=1)
        self._reading.cancel()
        return left

    async def _read(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        rest = b""
        while chunk := await stream.read(READ_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._on_line(self.name, line.decode("utf-8", "replace"))
            if len(rest) > LINE_BYTES_MAX:
                self._on_line(self.name, rest.decode("utf-8", "replace"))
                rest = b""
        if rest:
            self._on_line(self.name, rest.decode("utf-8", "replace"))

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            try:
                self._process.send_signal(number)
            except ProcessLookupError:
                return

    def _kill_group(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return


HURRIED_S = 3.0


def _die_with_parent() -> None:
    # A house that is killed leaves nobody behind who serves on its ports.
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
