"""Plain processes of the `local` engine: who lives, and ending what belongs to one retained folder.

By descent from the supervisor and by the marker in the environment, never by user: the user's own processes run beside them.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

MARKER_VARIABLE = "STANDFAST_SLOT_MARKER"
SUPERVISOR_VARIABLE = "STANDFAST_SUPERVISOR_OF"


def start_time(pid: int) -> int | None:
    """When the process began (clock ticks since boot); None if it is gone or only waits to be reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if _is_gone(fields) else int(fields[19])


def _is_gone(fields: list[bytes]) -> bool:
    """By the fields of `stat` from the state on. A first thread that has ended before the others shows as a zombie too: field 20."""
    return fields[0] == b"X" or (fields[0] == b"Z" and int(fields[17]) <= 1)


def is_alive(pid: int, began: int) -> bool:
    """Whether exactly this process lives."""
    return start_time(pid) == began


def send(pid: int, began: int, number: int) -> None:
    """Signals exactly this process; does nothing if it is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if start_time(pid) == began:
            signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return
    finally:
        os.close(descriptor)


def _parents() -> dict[int, tuple[int, int]]:
    """Each living process's parent and start time."""
    found: dict[int, tuple[int, int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            stat = Path(f"/proc/{name}/stat").read_bytes()
        except OSError:
            continue
        fields = stat[stat.rindex(b")") + 2 :].split()
        if not _is_gone(fields):
            found[int(name)] = int(fields[1]), int(fields[19])
    return found


def descendants(pid: int) -> set[tuple[int, int]]:
    """`(pid, start time)` of all that descend from the process, without itself."""
    table = _parents()
    known, grew = {pid}, True
    while grew:
        fresh = {child for child, (parent, _) in table.items() if parent in known and child not in known}
        known |= fresh
        grew = bool(fresh)
    return {(child, table[child][1]) for child in known - {pid}}


def marked(marker: str) -> set[tuple[int, int]]:
    """`(pid, start time)` of all that carry a slot's marker of this retained folder."""
    return _with_environment(f"{MARKER_VARIABLE}={marker}.".encode())


def supervisors(container_id: str) -> set[tuple[int, int]]:
    """`(pid, start time)` of the supervisors that were started for this retained folder: one at most, if all is well."""
    return _with_environment(f"{SUPERVISOR_VARIABLE}={container_id}\0".encode())


def _with_environment(needle: bytes) -> set[tuple[int, int]]:
    found: set[tuple[int, int]] = set()
    for pid, (_, began) in _parents().items():
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if needle in environ:
            found.add((pid, began))
    return found


def end_all(marker: str, also: set[tuple[int, int]], timeout_s: float) -> set[tuple[int, int]]:
    """SIGKILL to `also` and to all that carry the marker, until two scans are empty; returns what is left."""
    deadline = time.monotonic() + timeout_s
    empty_scans = 0
    while True:
        rest = marked(marker) | {key for key in also if is_alive(*key)}
        empty_scans = 0 if rest else empty_scans + 1
        if empty_scans == 2 or time.monotonic() > deadline:
            return rest
        for pid, began in rest:
            send(pid, began, signal.SIGSTOP)
        for pid, began in rest:
            send(pid, began, signal.SIGKILL)
        time.sleep(0.002)
