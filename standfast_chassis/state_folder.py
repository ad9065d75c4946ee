"""The folder in which one process keeps its state: private, writable, and used by one process at a time."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path
from types import TracebackType
from typing import Self

from standfast_chassis.errors import StateFolderError, StateFolderInUseError, StorageFullError
from standfast_chassis.sqlite_faults import store_error

_LOCK_NAME = "lock"


class StateFolder:
    """An opened state folder: `with StateFolder(path) as folder:`.

    Made with mode 0700 when it is missing. A second process on it is refused while the first lives, however the first
    ends: the lock is the kernel's. `free_min_bytes`: refuse to open with less free space than this.
    """

    def __init__(self, path: Path | str, *, free_min_bytes: int = 0) -> None:
        self.path = Path(path).absolute()
        self._free_min_bytes = free_min_bytes
        self._lock: int | None = None

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Raises StateFolderError, StateFolderInUseError, StoreUnwritableError or StorageFullError."""
        if self._lock is not None:
            return
        try:
            self._make_private()
            self._take_lock()
        except OSError as error:
            raise self._unusable(error) from error
        try:
            self.check_writable()
            self.require_free(self._free_min_bytes)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Gives the lock back. May be called again."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def file(self, name: str) -> Path:
        return self.path / name

    def folder(self, name: str) -> Path:
        """A sub-folder, made with mode 0700 when it is missing."""
        path = self.path / name
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise self._unusable(error) from error
        return path

    def free_bytes(self) -> int:
        """Space that this process may still use on the folder's file system."""
        found = os.statvfs(self.path)
        return (found.f_bfree if os.geteuid() == 0 else found.f_bavail) * found.f_frsize

    def require_free(self, bytes_min: int) -> None:
        """Raises StorageFullError when less than this is free."""
        free = self.free_bytes()
        if free < bytes_min:
            raise StorageFullError(
                f"{self.path}: expected at least {bytes_min} bytes of free space, found {free}. Free some, or choose "
                "a state folder on another file system.",
                {"path": self.path, "free_bytes": free, "expected_bytes": bytes_min},
            )

    def check_writable(self) -> None:
        """Writes and syncs a small file. Raises StoreUnwritableError or StorageFullError."""
        probe = self.path / f".probe-{os.getpid()}"
        try:
            with probe.open("wb") as file:
                file.write(b"x" * 4096)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._unusable(error) from error
        finally:
            # A probe that could not be made needs no removal, and that error is the one to report.
            _remove(probe)

    def _make_private(self) -> None:
        if not self.path.exists():
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            return
        if not self.path.is_dir():
            raise StateFolderError(f"{self.path}: expected a folder, found a file.", {"path": self.path})
        found = self.path.stat()
        if not found.st_mode & 0o077:
            return
        # Tightened only where it is plainly ours: `--state /tmp` must not make /tmp private.
        is_ours = (self.path / _LOCK_NAME).exists() or not any(self.path.iterdir())
        if found.st_uid == os.geteuid() and is_ours and not found.st_mode & stat.S_ISVTX:
            self.path.chmod(0o700)
            return
        raise StateFolderError(
            f"{self.path}: expected a folder that only its owner can enter (0700), found "
            f"{stat.filemode(found.st_mode)} with other content. Choose a folder of its own, or `chmod 700` it.",
            {"path": self.path},
        )

    def _take_lock(self) -> None:
        descriptor = os.open(self.path / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise StateFolderInUseError(
                f"{self.path} is in use by the process with pid {holder or 'unknown'}. Stop it, or give this process "
                "a state folder of its own.",
                {"path": self.path, "holder_pid": holder},
            ) from None
        except BaseException:
            os.close(descriptor)
            raise
        self._lock = descriptor
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except BaseException:
            self.close()
            raise

    def _unusable(self, error: OSError) -> Exception:
        known = store_error(error, self.path)
        if known is not None:
            return known
        return StateFolderError(f"{self.path}: cannot be used ({error.strerror}).", {"path": self.path})


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return
