"""Every ended child is reaped here and nowhere else.

Process 1 inherits all orphans; on the `local` engine the supervisor makes itself the reaper of its descendants.
No asyncio child watcher runs beside it: two callers of waitpid would take each other's children.
"""

import asyncio
import ctypes
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class ExitStatus:
    """How a process ended: exactly one of the two is set."""

    code: int | None
    signal: int | None

    def as_json(self) -> dict[str, int | None]:
        """The shape used in frames."""
        return {"code": self.code, "signal": self.signal}


def from_wait_status(status: int) -> ExitStatus:
    """Reads what waitpid returned."""
    if os.WIFSIGNALED(status):
        return ExitStatus(None, os.WTERMSIG(status))
    return ExitStatus(os.waitstatus_to_exitcode(status), None)


class Reaper:
    """Calls back for the children that somebody watches; the others are just reaped."""

    def __init__(self) -> None:
        self._watchers: dict[int, Callable[[ExitStatus], None]] = {}
        self._helpers: set[int] = set()

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts reaping on SIGCHLD."""
        if os.getpid() != 1:
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        loop.add_signal_handler(signal.SIGCHLD, self.reap)
        self.reap()

    @property
    def helpers(self) -> frozenset[int]:
        """The supervisor's own short-lived children, which belong to no slot whatever their user is."""
        return frozenset(self._helpers)

    def watch(self, pid: int, on_exit: Callable[[ExitStatus], None], is_helper: bool = False) -> None:
        """Must be called before control returns to the loop after the fork, so that no exit is missed."""
        self._watchers[pid] = on_exit
        if is_helper:
            self._helpers.add(pid)

    def exit_of(self, pid: int) -> "asyncio.Future[ExitStatus]":
        """A future with a helper's exit."""
        future: asyncio.Future[ExitStatus] = asyncio.get_running_loop().create_future()

        def on_exit(status: ExitStatus) -> None:
            if not future.done():
                future.set_result(status)

        self.watch(pid, on_exit, is_helper=True)
        return future

    def reap(self) -> None:
        """Takes every child that has ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._helpers.discard(pid)
            on_exit = self._watchers.pop(pid, None)
            if on_exit is not None:
                on_exit(from_wait_status(status))
