"""Around the stub the shim is one process with it; around another program (`wrapped/claude` beside it) it is that one's parent.

A turn's clean-up ends a child that no handshake recorded, so a wrapped program serves one turn a process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any

from .altering import Altering, line_of


def main(argv: list[str], executable: str) -> int:
    """Runs what is wrapped, its output altered; its exit code."""
    folder = os.path.dirname(os.path.abspath(executable))
    wrapped = os.path.join(folder, "wrapped", "claude")
    if os.path.exists(wrapped):
        return _around_a_program(argv, wrapped, folder)
    return _around_the_stub(argv, executable, folder)


def _plan(folder: str) -> dict[str, str]:
    try:
        with open(os.path.join(folder, "shim.json"), encoding="utf-8") as file:
            plan: dict[str, str] = json.load(file)
            return plan
    except FileNotFoundError:
        return {}


def _altered(altering: Altering, folder: str, line: bytes) -> bytes:
    try:
        event: dict[str, Any] = json.loads(line)
    except ValueError:
        return line
    if altering.is_beginning(event):
        altering.begin(_plan(folder))
    return b"".join(line_of(one) for one in altering.events(event))


def _around_the_stub(argv: list[str], executable: str, folder: str) -> int:
    from stub_claude import main as stub  # type: ignore[import-not-found]  # both lie in one archive
    from stub_claude.printer import Printer  # type: ignore[import-not-found]  # as above

    altering, print_raw, lock = Altering(), Printer.raw, threading.Lock()

    def raw(self: Any, data: bytes) -> None:
        with lock:
            print_raw(self, _altered(altering, folder, data))

    Printer.raw = raw
    code: int = stub.main(argv, executable)
    return code


def _around_a_program(argv: list[str], wrapped: str, folder: str) -> int:
    child = subprocess.Popen([wrapped, *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    to_child = child.stdin
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _: child.send_signal(got))

    def pass_input() -> None:
        with suppress(OSError):
            while data := os.read(0, 65536):
                to_child.write(data)
                to_child.flush()
        with suppress(OSError):
            to_child.close()

    threading.Thread(target=pass_input, daemon=True).start()
    altering = Altering()
    for line in child.stdout:
        sys.stdout.buffer.write(_altered(altering, folder, line))
        sys.stdout.buffer.flush()
    return child.wait()
