"""The state folder: private, for one process, and unusable ones are named with what to do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from standfast_chassis.errors import (
    StateFolderError,
    StateFolderInUseError,
    StorageFullError,
    StoreUnwritableError,
)
from standfast_chassis.state_folder import StateFolder

REPOSITORY = Path(__file__).parents[3]


def _mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_missing_folder_is_made_private_with_its_parents(tmp_path: Path) -> None:
    with StateFolder(tmp_path / "a" / "b") as folder:
        assert _mode(folder.path) == 0o700
        assert _mode(folder.folder("journal")) == 0o700
        assert sorted(entry.name for entry in folder.path.iterdir()) == ["journal", "lock"]
        assert _mode(folder.file("lock")) == 0o600


def test_a_second_opener_is_refused_with_the_holders_pid_and_gets_it_afterwards(tmp_path: Path) -> None:
    with StateFolder(tmp_path / "s"):
        with pytest.raises(StateFolderInUseError) as caught:
            StateFolder(tmp_path / "s").open()
        assert caught.value.metadata["holder_pid"] == str(os.getpid())
        assert str(os.getpid()) in caught.value.message
    with StateFolder(tmp_path / "s") as folder:
        assert folder.file("lock").read_text() == f"{os.getpid()}\n"


def test_the_lock_of_a_killed_process_is_free_and_its_children_do_not_hold_it(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys\n"
        "from standfast_chassis.state_folder import StateFolder\n"
        "StateFolder(sys.argv[1]).open()\n"
        "child = subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL, close_fds=False)\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "s")],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    ) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        try:
            with pytest.raises(StateFolderInUseError) as caught:
                StateFolder(tmp_path / "s").open()
            assert caught.value.metadata["holder_pid"] == str(holder.pid)
            holder.send_signal(signal.SIGKILL)
            holder.wait(20)
            with StateFolder(tmp_path / "s"):
                pass
        finally:
            holder.kill()
            os.kill(child, signal.SIGKILL)


def test_close_may_be_called_again_and_open_twice_is_once(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "s")
    folder.open()
    folder.open()
    folder.close()
    folder.close()
    with StateFolder(tmp_path / "s"):
        pass


def test_an_empty_folder_of_ours_is_tightened(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.mkdir(mode=0o755)
    with StateFolder(path):
        assert _mode(path) == 0o700
    path.chmod(0o750)
    with StateFolder(path):
        assert _mode(path) == 0o700


def test_an_open_folder_with_other_content_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "shared"
    path.mkdir()
    path.chmod(0o755)
    (path / "someone's file").touch()
    with pytest.raises(StateFolderError, match="0700"):
        StateFolder(path).open()
    assert _mode(path) == 0o755
    assert [entry.name for entry in path.iterdir()] == ["someone's file"]


def test_a_shared_temporary_folder_is_never_made_private(tmp_path: Path) -> None:
    path = tmp_path / "tmp"
    path.mkdir()
    path.chmod(0o1777)
    with pytest.raises(StateFolderError):
        StateFolder(path).open()
    assert path.stat().st_mode & 0o7777 == 0o1777


def test_a_file_in_its_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "s").touch()
    with pytest.raises(StateFolderError, match="found a file"):
        StateFolder(tmp_path / "s").open()


def test_a_folder_that_cannot_be_written_is_named_and_the_lock_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def read_only(descriptor: int) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "fsync", read_only)
    with pytest.raises(StoreUnwritableError, match="Read-only file system"):
        StateFolder(tmp_path / "s").open()
    monkeypatch.setattr(os, "fsync", real)
    with StateFolder(tmp_path / "s") as folder:
        assert [entry.name for entry in folder.path.iterdir()] == ["lock"]


def test_too_little_space_is_named_with_what_was_found(tmp_path: Path) -> None:
    with pytest.raises(StorageFullError) as caught:
        StateFolder(tmp_path / "s", free_min_bytes=1 << 62).open()
    assert int(caught.value.metadata["free_bytes"]) > 0
    with StateFolder(tmp_path / "s", free_min_bytes=1) as folder:
        assert folder.free_bytes() > 1
