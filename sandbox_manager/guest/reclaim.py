"""Ends a slot's processes, except those named to be kept, and says what is left.

Scans and signals to everybody take turns until two scans in a row found nothing: a process that forks and exits for
ever slips through a scan, and a signal to everybody needs a free process number, which a slot can use up.
With nothing to keep, everybody is `kill(-1, SIGKILL)` from a fork under the slot's user. With a CLI to keep,
everybody is stopped first (SIGSTOP cannot be ignored), the strangers are killed one by one while nothing can fork,
and the kept ones are continued. A retained folder has no user of its own to send to: there "everybody" are the process
groups in which the slot has a process.
Runs in a worker thread: every call here blocks for milliseconds.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from .attribution import Attribution, Census
from .processes import Process, start_time_of

Broadcast = Callable[[int], bool]


@dataclass
class ReclaimReport:
    """What a reclaim did. `is_complete`: two scans in a row found nothing but what was to be kept."""

    is_complete: bool = False
    killed: list[Process] = field(default_factory=list)
    kept: list[Process] = field(default_factory=list)
    remaining: list[Process] = field(default_factory=list)
    unattributed: list[Process] = field(default_factory=list)
    rounds: int = 0
    elapsed_ms: float = 0.0

    def as_json(self) -> dict[str, object]:
        """The shape used in frames."""
        lists = {
            name: [row.as_json() for row in getattr(self, name)]
            for name in ("killed", "kept", "remaining", "unattributed")
        }
        took = {"rounds": self.rounds, "elapsed_ms": round(self.elapsed_ms, 3)}
        return {"is_complete": self.is_complete, **took, **lists}


def send_signal(process: Process, number: int) -> bool:
    """Signals exactly this process: by pidfd, after its start time was compared. False if it is gone or refused."""
    try:
        fd = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        if start_time_of(process.pid) != process.start_time:
            return False
        signal.pidfd_send_signal(fd, number)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


class Reclaim:
    """One reclaim of one slot. `broadcast(signal)` signals everybody of the slot at once; False if it could not."""

    def __init__(
        self, slot: int, keep: frozenset[tuple[int, int]], attribution: Attribution, broadcast: Broadcast
    ) -> None:
        self._slot = slot
        self._keep = keep
        self._attribution = attribution
        self._broadcast = broadcast
        self._killed: dict[tuple[int, int], Process] = {}

    def run(self, timeout_s: float) -> ReclaimReport:
        """Works until the slot is clean or the time is over."""
        began = time.monotonic()
        report = ReclaimReport()
        clean_scans = 0
        has_swept = False
        census = Census([], [])
        while (clean_scans < 2 or not has_swept) and (time.monotonic() - began < timeout_s or report.rounds == 0):
            report.rounds += 1
            # The scan that would end it looks everywhere.
            census = self._census(is_thorough=clean_scans >= 1)
            rest = self._rest(census)
            if rest:
                clean_scans = 0
                for row in rest:
                    self._kill_one(row)
                time.sleep(0.001)
            else:
                clean_scans += 1
            if rest or not has_swept:
                has_reached_all, has_found = self._sweep()
                has_swept = has_swept or has_reached_all
                if has_found:
                    clean_scans = 0
        # Where everybody could not be signalled once, a scan's silence proves nothing.
        report.is_complete = clean_scans >= 2 and has_swept
        if not report.is_complete:
            census = self._census(is_thorough=True)
        report.remaining = self._rest(census)
        report.kept = [row for row in census.owned if row.key in self._keep]
        report.unattributed = census.unattributed
        report.killed = [row for key, row in self._killed.items() if key not in {left.key for left in report.remaining}]
        report.elapsed_ms = (time.monotonic() - began) * 1000
        return report

    def _census(self, is_thorough: bool = False) -> Census:
        return self._attribution.census(self._slot, self._attribution.scan(is_thorough), is_thorough)

    def _rest(self, census: Census) -> list[Process]:
        return [row for row in census.owned if row.key not in self._keep]

    def _kill_one(self, row: Process) -> None:
        if send_signal(row, signal.SIGKILL):
            self._killed[row.key] = row

    def _sweep(self) -> tuple[bool, bool]:
        """Signals everybody once; returns whether that worked, and whether something was found that way."""
        if not self._keep:
            return self._broadcast(signal.SIGKILL), False
        try:
            has_reached_all = self._broadcast(signal.SIGSTOP)
            rest = self._rest(self._census())
            for row in rest:
                self._kill_one(row)
            return has_reached_all, bool(rest)
        finally:
            # Whatever was stopped and shall live must go on, also after an error in the scan.
            for row in self._census().owned:
                if row.key in self._keep:
                    send_signal(row, signal.SIGCONT)


def signal_groups(slot: int, attribution: Attribution, number: int) -> bool:
    """Signals all process groups in which the slot has a process; what was forked since the scan is in them too.

    The slot's process opened a session of its own, so each such group was made by the slot and holds nobody else.
    """
    census = attribution.census(slot, attribution.scan(False), False)
    for group in {row.group for row in census.owned} - {os.getpgrp()}:
        with contextlib.suppress(OSError):
            os.killpg(group, number)
    return True
