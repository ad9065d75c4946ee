"""Which processes are a slot's: by user in a container, by marker, descent and session in a retained folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from sandbox_manager.guest.attribution import MARKER_VARIABLE, MarkerAttribution, UserAttribution
from sandbox_manager.guest.processes import Process, read_descendants, read_process
from sandbox_manager.host.adapters.local_processes import start_time

ME = os.getpid()
NOBODY: frozenset[int] = frozenset()


def row(pid: int, parent: int = 1, *, session: int = 1, uid: int = 0, state: str = "S", began: int = 5) -> Process:
    return Process(pid, began, parent, session, session, state, "x", frozenset({uid}))


def by_marker(environs: dict[int, str], helpers: frozenset[int] = NOBODY) -> MarkerAttribution:
    return MarkerAttribution("secret", lambda: helpers, lambda pid: environs.get(pid, "").encode())


def pids(rows: list[Process]) -> set[int]:
    return {found.pid for found in rows}


def test_a_user_owns_by_any_of_its_four_numbers() -> None:
    half_switched = Process(7, 5, 1, 1, 1, "S", "x", frozenset({0, 20001}))
    census = UserAttribution({1: 20001}, lambda: NOBODY).census(
        1, [row(6, uid=20001), half_switched, row(8, uid=20002)]
    )
    assert pids(census.owned) == {6, 7}


def test_what_has_ended_and_what_is_the_supervisors_own_does_not_count() -> None:
    rows = [row(6, uid=20001, state="Z"), row(7, uid=20001), row(8, uid=20001)]
    assert pids(UserAttribution({1: 20001}, lambda: frozenset({8})).census(1, rows).owned) == {7}


def test_the_marker_names_the_slot_exactly() -> None:
    environs = {
        5: f"A=1\0{MARKER_VARIABLE}=secret.1\0B=2",
        6: f"{MARKER_VARIABLE}=secret.12",
        7: f"{MARKER_VARIABLE}=other.1",
        8: f"{MARKER_VARIABLE}=secret.1x",
        9: f"WORDS={MARKER_VARIABLE}=secret.1",
    }
    found = by_marker(environs).census(1, [row(pid) for pid in environs])
    assert pids(found.owned) == {5}


def test_descendants_belong_to_their_ancestors_slot() -> None:
    environs = {5: f"{MARKER_VARIABLE}=secret.1"}
    rows = [row(5), row(6, 5), row(7, 6), row(8, 1)]
    assert pids(by_marker(environs).census(1, rows).owned) == {5, 6, 7}


def test_what_was_owned_once_stays_owned_after_it_lost_its_parent() -> None:
    attribution = by_marker({})
    attribution.remember(1, row(5, ME, session=5))
    assert pids(attribution.census(1, [row(5, ME, session=5), row(6, 5, session=6)]).owned) == {5, 6}
    assert pids(attribution.census(1, [row(6, ME, session=6)]).owned) == {6}


def test_the_session_of_the_slots_own_process_is_the_slots() -> None:
    attribution = by_marker({})
    attribution.remember(2, row(5, ME, session=5))
    later = [row(9, ME, session=5), row(10, ME, session=77)]
    census = attribution.census(2, later)
    assert pids(census.owned) == {9}
    assert pids(census.unattributed) == {10}


def test_a_session_number_that_was_empty_is_nobodys() -> None:
    attribution = by_marker({})
    attribution.remember(2, row(5, ME, session=5))
    attribution.census(2, [row(40)])
    assert attribution.census(2, [row(5, 1, session=5, began=999)]).owned == []


def test_a_reused_number_is_another_process() -> None:
    attribution = by_marker({})
    attribution.remember(1, row(5, ME, session=1))
    assert pids(attribution.census(1, [row(5, 1, began=5)]).owned) == {5}
    assert attribution.census(1, [row(5, 1, began=6)]).owned == []


def test_an_innocent_process_of_the_same_user_is_neither_owned_nor_reported() -> None:
    census = by_marker({}).census(1, [row(30), row(31, 30)])
    assert (census.owned, census.unattributed) == ([], [])


def test_a_quick_scan_forgets_nothing_that_it_did_not_look_at() -> None:
    environs = {5: f"{MARKER_VARIABLE}=secret.1"}
    attribution = by_marker(environs)
    assert pids(attribution.census(1, [row(5)]).owned) == {5}
    assert attribution.census(1, [], is_thorough=False).owned == []
    environs.clear()
    assert pids(attribution.census(1, [row(5)]).owned) == {5}


def test_descendants_are_found_through_every_thread() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 600 & wait"]) as shell:
        try:
            deadline = time.monotonic() + 10
            while len(found := read_descendants(shell.pid)) < 1 and time.monotonic() < deadline:
                time.sleep(0.005)
            assert [child.parent for child in found] == [shell.pid]
            assert shell.pid in {child.pid for child in read_descendants(ME)}
        finally:
            for child in found:
                os.kill(child.pid, signal.SIGKILL)
    assert read_descendants(shell.pid) == []


def test_helpers_are_neither_owned_nor_reported() -> None:
    census = by_marker({}, frozenset({9})).census(1, [row(9, ME)])
    assert (census.owned, census.unattributed) == ([], [])


# Its first thread ends, the others run on.
_HEADLESS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).syscall(60, 0)
"""


def test_a_process_whose_first_thread_has_ended_is_not_gone_before_the_others_are() -> None:
    child = subprocess.Popen([sys.executable, "-c", _HEADLESS])
    try:
        headless = until(child.pid, lambda found: found.state == "Z")
        assert (headless.is_gone, headless.threads, headless.is_dying) == (False, 2, True)
        assert start_time(child.pid) == headless.start_time, "nor for the host agent of a retained folder"
        assert child.poll() is None, "it cannot be reaped"
    finally:
        child.kill()
        # Not reaped yet: the row is still there.
        ended = until(child.pid, lambda found: found.is_gone)
        child.wait(10)
    assert ended.threads <= 1
    assert read_process(child.pid) is None


def test_a_killed_process_is_dying_from_the_kill_on() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"], stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    child.stdout.readline()
    alive = read_process(child.pid)
    child.kill()
    killed = read_process(child.pid)
    child.wait(10)
    child.stdout.close()
    assert alive is not None
    assert killed is not None
    assert (alive.is_dying, killed.is_dying) == (False, True)


def until(pid: int, holds: Callable[[Process], bool]) -> Process:
    deadline = time.monotonic() + 20
    while True:
        found = read_process(pid)
        assert found is not None
        if holds(found):
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.01)


def test_a_stranger_that_got_the_number_of_an_ended_session_is_left_alone() -> None:
    attribution = by_marker({})
    attribution.remember(1, row(500, ME, session=500, began=10))
    left_behind = row(501, 1, session=500, began=11)
    assert pids(attribution.census(1, [left_behind]).owned) == {501}, "its leader has ended, the session lives"
    stranger, its_child = row(500, 1, session=500, began=99), row(502, 500, session=500, began=100)
    assert pids(attribution.census(1, [stranger, its_child]).owned) == set()
    assert pids(attribution.census(1, [its_child]).owned) == set(), "nor when that leader has ended in its turn"
