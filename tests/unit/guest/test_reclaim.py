"""When a reclaim may say complete: two scans in a row that found nothing, and nothing else."""

from __future__ import annotations

import signal

from sandbox_manager.guest.attribution import Census
from sandbox_manager.guest.processes import Process
from sandbox_manager.guest.reclaim import Reclaim

# Numbers above any that the kernel gives: a signal to them reaches nobody.
BASE = 1 << 23


def row(number: int) -> Process:
    return Process(BASE + number, 5, 1, 1, 1, "S", "x", frozenset({20001}))


class Scans:
    """Gives prepared censuses, the last one for ever."""

    def __init__(self, *scans: list[Process]) -> None:
        self.scans = list(scans)
        self.thorough: list[bool] = []

    def scan(self, is_thorough: bool) -> list[Process]:
        self.thorough.append(is_thorough)
        return []

    def census(self, slot: int, rows: object, is_thorough: bool = True) -> Census:
        return Census(self.scans.pop(0) if len(self.scans) > 1 else self.scans[0], [])

    def remember(self, slot: int, process: Process) -> None:
        raise AssertionError("a reclaim starts nothing")


class Broadcasts:
    def __init__(self) -> None:
        self.sent: list[int] = []

    def __call__(self, number: int) -> bool:
        self.sent.append(number)
        return True


def reclaim(scans: Scans, broadcasts: Broadcasts, *keep: Process) -> Reclaim:
    return Reclaim(1, frozenset(process.key for process in keep), scans, broadcasts)


def test_an_empty_slot_is_complete_after_everybody_was_signalled_once() -> None:
    scans, broadcasts = Scans([]), Broadcasts()
    report = reclaim(scans, broadcasts).run(1)
    assert report.is_complete
    assert broadcasts.sent == [signal.SIGKILL], "a scan alone misses what forks and ends for ever"
    assert report.rounds >= 2
    assert scans.thorough[-1] is True, "the last word is a scan of everything"


def test_what_comes_back_after_an_empty_scan_starts_the_count_anew() -> None:
    scans, broadcasts = Scans([row(1)], [], [row(2)], [], []), Broadcasts()
    report = reclaim(scans, broadcasts).run(1)
    assert report.is_complete
    assert report.rounds == 5
    assert len(broadcasts.sent) >= 2, "a find is answered by signalling everybody"


def test_what_stays_is_reported_and_the_time_is_bounded() -> None:
    report = reclaim(Scans([row(1)]), Broadcasts()).run(0.05)
    assert not report.is_complete
    assert [left.key for left in report.remaining] == [row(1).key]
    assert report.killed == []


def test_beside_a_kept_process_everybody_is_stopped_and_nobody_is_killed_blindly() -> None:
    kept, broadcasts = row(1), Broadcasts()
    report = reclaim(Scans([kept]), broadcasts, kept).run(1)
    assert report.is_complete
    assert broadcasts.sent == [signal.SIGSTOP]
    assert [process.key for process in report.kept] == [kept.key]


def test_a_process_found_only_while_everybody_stands_still_keeps_the_reclaim_going() -> None:
    kept, hidden = row(1), row(2)
    scans = Scans([kept], [kept, hidden], [kept], [kept])
    report = reclaim(scans, Broadcasts(), kept).run(1)
    assert report.is_complete
    assert report.rounds >= 3
