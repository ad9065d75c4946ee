"""The tap keeps the newest bytes under their numbers, and says what it has lost."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_manager.guest import tap as tap_module
from sandbox_manager.guest.tap import Tap


@given(pieces=st.lists(st.binary(min_size=1, max_size=40), max_size=30), capacity=st.integers(1, 50))
def test_it_holds_the_newest_bytes_whatever_came_in_whatever_pieces(pieces: list[bytes], capacity: int) -> None:
    whole = b"".join(pieces)
    tap = Tap(Path("/tmp"), capacity)
    try:
        for piece in pieces:
            tap.append(piece)
        assert tap.end == len(whole)
        assert tap.start == max(0, len(whole) - capacity)
        assert tap.read(tap.start, capacity) == whole[tap.start :]
        assert tap.read(tap.end, 10) == b""
    finally:
        tap.close()


def test_an_offset_that_is_gone_is_no_silent_answer(tmp_path: Path) -> None:
    tap = Tap(tmp_path, 4)
    tap.append(b"abcdefgh")
    with pytest.raises(ValueError, match="outside"):
        tap.read(3, 1)
    tap.close()


def test_room_is_what_can_come_without_losing_what_the_host_still_needs(tmp_path: Path) -> None:
    tap = Tap(tmp_path, 10)
    tap.append(b"x" * 6)
    assert tap.room == 10, "nobody is connected: old bytes may go"
    tap.floor = 0
    assert tap.room == 4
    tap.acknowledge(5)
    assert tap.room == 9
    tap.acknowledge(3)
    assert tap.room == 9, "an older acknowledgement takes nothing back"
    tap.close()


def test_a_loss_is_seen_only_where_the_host_had_not_read(tmp_path: Path) -> None:
    tap = Tap(tmp_path, 4)
    tap.append(b"abcd")
    tap.acknowledge(2)
    tap.append(b"ef")
    assert not tap.has_lost_unread
    tap.append(b"g")
    assert tap.has_lost_unread
    tap.close()


def test_nothing_of_it_is_in_the_file_system(tmp_path: Path) -> None:
    tap = Tap(tmp_path)
    tap.append(b"secret words")
    assert list(tmp_path.iterdir()) == []
    tap.close()
    tap.close()


def test_a_full_file_system_moves_it_to_memory_without_losing_what_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tap_module, "MEMORY_CAPACITY_BYTES", 8)
    tap = Tap(tmp_path, 100)
    tap.append(b"0123456789")
    real, full = os.pwrite, tap._fd

    def pwrite(fd: int, *rest: Any) -> int:
        if fd == full and not tap.is_in_memory:
            raise OSError(errno.ENOSPC, "no space")
        return real(fd, *rest)

    monkeypatch.setattr(os, "pwrite", pwrite)
    tap.append(b"abc")
    assert tap.is_in_memory
    assert (tap.start, tap.end) == (5, 13)
    assert tap.read(5, 8) == b"56789abc"
    tap.close()


def test_a_folder_that_cannot_be_written_means_memory_from_the_start(tmp_path: Path) -> None:
    tap = Tap(tmp_path / "absent")
    tap.append(b"still here")
    assert tap.is_in_memory
    assert tap.read(0, 20) == b"still here"
    tap.close()
