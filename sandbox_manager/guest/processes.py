"""Facts about processes, read from /proc.

`start_time` is field 22 of `stat` (clock ticks since boot): pid and start time together name one process for good.
"""

import os
import signal
from dataclasses import dataclass

_PF_EXITING = 0x4
_SIGKILL_BIT = 1 << (signal.SIGKILL - 1)


@dataclass(frozen=True)
class Process:
    """One row of the process table at the moment of a scan. `is_dying`: nothing that is given to it now is read any more."""

    pid: int
    start_time: int
    parent: int
    group: int
    session: int
    state: str
    name: str
    uids: frozenset[int]
    threads: int = 1
    is_dying: bool = False

    @property
    def key(self) -> tuple[int, int]:
        """What names this process even after its number is used again."""
        return self.pid, self.start_time

    @property
    def is_gone(self) -> bool:
        """Whether it has ended and only waits to be reaped.

        Its first thread may have ended before the others: that one shows as a zombie and cannot be reaped, and the rest runs on.
        """
        return self.state == "X" or (self.state == "Z" and self.threads <= 1)

    def as_json(self) -> dict[str, object]:
        """The shape used in frames."""
        return {
            "pid": self.pid,
            "start_time": self.start_time,
            "parent": self.parent,
            "name": self.name,
            "state": self.state,
        }


def read_process(pid: int) -> Process | None:
    """Returns the process's row, None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
        with open(f"/proc/{pid}/status", "rb") as file:
            status = file.read()
    except OSError:
        return None
    # The name may hold spaces and parentheses; the fields are counted from the last one.
    name_end = stat.rindex(b")")
    fields = stat[name_end + 2 :].split()
    name = stat[stat.index(b"(") + 1 : name_end].decode(errors="replace")
    uids: list[bytes] = []
    pending = 0
    for line in status.splitlines():
        if line.startswith(b"Uid:"):
            uids = line.split()[1:]
        elif line.startswith((b"SigPnd:", b"ShdPnd:")):
            pending |= int(line.split()[1], 16)
    return Process(
        pid,
        int(fields[19]),
        int(fields[1]),
        int(fields[2]),
        int(fields[3]),
        fields[0].decode(),
        name,
        frozenset(int(uid) for uid in uids),
        int(fields[17]),
        # Killed, though it may take a while to be gone: the signal is pending from the kill on, then the process is exiting.
        fields[0] in (b"Z", b"X") or bool(int(fields[6]) & _PF_EXITING) or bool(pending & _SIGKILL_BIT),
    )


def read_all() -> list[Process]:
    """Returns every process that can be seen."""
    rows = (read_process(int(name)) for name in os.listdir("/proc") if name.isdecimal())
    return [row for row in rows if row is not None]


def read_descendants(pid: int) -> list[Process]:
    """Returns what descends from the process: its cost does not grow with the machine, as that of `read_all` does.

    A list of children that is read while children come and go can miss one: it is never the last word.
    """
    found: dict[int, Process] = {}
    waiting = children_of(pid)
    while waiting:
        child = waiting.pop()
        row = None if child in found else read_process(child)
        if row is not None:
            found[child] = row
            waiting += children_of(child)
    return list(found.values())


def children_of(pid: int) -> list[int]:
    """Returns the children of all the process's threads; none if it is gone."""
    children: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                children += [int(child) for child in file.read().split()]
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return children
    return children


def read_environ(pid: int) -> bytes | None:
    """Returns the environment the process was started with, None if it cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read()
    except OSError:
        return None


def start_time_of(pid: int) -> int | None:
    """Returns when the process began, None if it is gone."""
    row = read_process(pid)
    return None if row is None else row.start_time
