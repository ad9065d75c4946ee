"""Runs one program in a process group of its own: bounded in time and output, and gone with everything in its group afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_AFTER_EXIT_S = 0.3
_KILL_WAIT_S = 5.0
_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Ran:
    """How it ended. `exit_code` is None when it was ended by us; negative: by that signal. `head` and `tail` are what was kept of its
    output, `dropped` the bytes between them.
    """

    exit_code: int | None
    head: bytes
    tail: bytes
    dropped: int


async def run_group(
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    timeout_s: float,
    head_bytes: int,
    tail_bytes: int,
    stdin: bytes = b"",
    pass_fds: tuple[int, ...] = (),
) -> Ran:
    """Raises OSError when it cannot be started. Cancelled, it kills the group and says so by raising CancelledError."""
    reader, writer = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd=cwd,
            env=dict(env),
            stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
            stdout=writer,
            stderr=writer,
            start_new_session=True,
            pass_fds=pass_fds,
        )
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    kept = _Kept(head_bytes, tail_bytes)
    drain = asyncio.create_task(_drain(reader, kept))
    try:
        if stdin and process.stdin is not None:
            process.stdin.write(stdin)
            process.stdin.close()
        is_over = await _exited(process, timeout_s)
    finally:
        # Also what the program left in its group: a background child must not outlive the call.
        _kill_group(process.pid)
        try:
            # A child that left the group may hold the pipe open; what it prints later is not this call's.
            await asyncio.wait({drain}, timeout=_AFTER_EXIT_S)
        finally:
            drain.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await drain
            os.close(reader)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _KILL_WAIT_S)
    return kept.as_ran(process.returncode if is_over else None)


async def _exited(process: asyncio.subprocess.Process, timeout_s: float) -> bool:
    try:
        await asyncio.wait_for(process.wait(), timeout_s)
    except TimeoutError:
        return False
    return True


def _kill_group(pid: int) -> None:
    # The number of a group stays taken while one process is in it; an empty one is not found.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


class _Kept:
    """The first bytes and the last ones of an output of any length."""

    def __init__(self, head_bytes: int, tail_bytes: int) -> None:
        self._head_max, self._tail_max = head_bytes, tail_bytes
        self._head, self._tail = bytearray(), bytearray()
        self._dropped = 0

    def add(self, data: bytes) -> None:
        room = self._head_max - len(self._head)
        self._head += data[:room]
        self._tail += data[max(room, 0) :]
        over = len(self._tail) - self._tail_max
        if over > 0:
            del self._tail[:over]
            self._dropped += over

    def as_ran(self, exit_code: int | None) -> Ran:
        return Ran(exit_code, bytes(self._head), bytes(self._tail), self._dropped)


async def _drain(reader: int, kept: _Kept) -> None:
    os.set_blocking(reader, False)
    loop = asyncio.get_running_loop()
    while True:
        try:
            data = os.read(reader, _READ_BYTES)
        except BlockingIOError:
            ready: asyncio.Future[None] = loop.create_future()
            loop.add_reader(reader, _wake, ready)
            try:
                await ready
            finally:
                loop.remove_reader(reader)
            continue
        if not data:
            return
        kept.add(data)
        await asyncio.sleep(0)


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
