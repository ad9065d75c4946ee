"""The one tool that runs something: Bash, in the workspace, with the program's own environment."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress

_TIMEOUT_S = 120.0


class RunningTool:
    """Holds the command that runs now, so that an interrupt can end it."""

    def __init__(self, cwd: str) -> None:
        self._cwd = cwd
        self._process: subprocess.Popen[bytes] | None = None

    def bash(self, command: str) -> tuple[str, bool]:
        """Output and whether it failed. What the command leaves running stays: a file takes its output, so nothing waits for it."""
        read_end, write_end = os.pipe()
        process = subprocess.Popen(
            ["/bin/bash", "-c", command],
            cwd=self._cwd,
            stdin=subprocess.DEVNULL,
            stdout=write_end,
            stderr=write_end,
            start_new_session=True,
        )
        os.close(write_end)
        self._process = process
        try:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_TIMEOUT_S)
            os.set_blocking(read_end, False)
            with suppress(BlockingIOError):
                return os.read(read_end, 65536).decode("utf-8", "replace").rstrip("\n"), process.returncode != 0
            return "", process.returncode != 0
        finally:
            self._process = None
            os.close(read_end)

    def kill(self) -> None:
        """Ends the command and its group."""
        if (process := self._process) is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
