"""What processes have used, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def resident_mib(pid: int) -> float:
    """Resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def cpu_ms(pids: Iterable[int]) -> float:
    """Processor time that all threads of these processes have used; of a process that has ended, none."""
    whole_ns = 0
    for pid in pids:
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with suppress(OSError):
                    whole_ns += int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0])
    return whole_ns / 1e6


def generations_below(pid: int) -> tuple[list[int], list[int]]:
    """A process's children, and all that descend from those."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with suppress(OSError):
                # The name in parentheses may hold anything; the parent is the second word behind it.
                parent = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    first = children.get(pid, [])
    below: list[int] = []
    waiting = list(first)
    while waiting:
        found = children.get(waiting.pop(), [])
        below += found
        waiting += found
    return first, below
