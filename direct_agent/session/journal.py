"""One append-only file of lines. An append returns when its lines are durable. Blocking; one writer, kept so by a lock.

A half line at the end is what a kill in the middle of an append leaves: nobody was told that it was written. It is kept apart in a
file beside (`.torn`), and only then cut off, so that no record is ever glued to it.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from direct_agent.session.errors import SessionError, SessionWriteError

Reach = Callable[[str], None]


def _nothing(_point: str) -> None:
    pass


class Journal:
    """An open file, locked for this process. Make it with `create` or `open`."""

    def __init__(self, path: Path, fd: int, reach: Reach) -> None:
        self._path = path
        self._fd = fd
        self._reach = reach
        self._length = os.fstat(fd).st_size
        self._is_broken = False

    @classmethod
    def create(cls, path: Path, first: Sequence[bytes], *, reach: Reach = _nothing) -> Self:
        """A new file that holds `first`; it appears whole or not at all. Raises SessionError (SESSION_EXISTS) or SessionWriteError."""
        if path.exists():
            raise SessionError("SESSION_EXISTS", f"expected no session at {path}, found one")
        aside = path.with_name(f"{path.name}.new")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                _write_all(fd, b"".join(first))
                os.fsync(fd)
            finally:
                os.close(fd)
            reach("session aside")
            os.rename(aside, path)
            _sync_folder(path.parent)
        except OSError as error:
            raise _write_error(error) from error
        reach("session created")
        return cls.open(path, reach=reach)

    @classmethod
    def open(cls, path: Path, *, reach: Reach = _nothing) -> Self:
        """Opens an existing file for this process alone. Raises SessionError: NO_SUCH_SESSION, SESSION_IN_USE, STORE_UNWRITABLE."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise SessionError("NO_SUCH_SESSION", f"expected a session at {path}, found none") from None
        except OSError as error:
            raise _write_error(error) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise SessionError(
                "SESSION_IN_USE", "this session is open in another process; end that one first"
            ) from None
        return cls(path, fd, reach)

    def close(self) -> None:
        """Repeating it changes nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def read(self) -> list[bytes]:
        """All complete lines, without their line ends. What follows the last line end is set aside first."""
        content = self._path_content()
        end = content.rfind(b"\n") + 1
        if end < len(content):
            self._set_aside(content[end:], end)
        self._length = end
        return content[:end].split(b"\n")[:-1]

    def append(self, lines: Sequence[bytes]) -> None:
        """Durable when it returns. Raises SessionWriteError; then none of the lines counts as written."""
        if not lines:
            return
        if self._is_broken or self._fd < 0:
            raise SessionWriteError("STORE_UNWRITABLE", "the session could not be written before; load it anew")
        self._reach("before append")
        content = b"".join(lines)
        try:
            _write_all(self._fd, content, self._reach)
            self._reach("appended")
            os.fsync(self._fd)
        except OSError as error:
            self._take_back()
            raise _write_error(error) from error
        self._length += len(content)
        self._reach("durable")

    def _take_back(self) -> None:
        """After a failed write the file is as before, or nothing more is written: a later fsync would not say what is on disk."""
        try:
            os.ftruncate(self._fd, self._length)
            os.fsync(self._fd)
        except OSError:
            self._is_broken = True

    def _path_content(self) -> bytes:
        parts, offset = [], 0
        while chunk := os.pread(self._fd, 1 << 20, offset):
            parts.append(chunk)
            offset += len(chunk)
        return b"".join(parts)

    def _set_aside(self, half: bytes, offset: int) -> None:
        entry = {
            "offset": offset,
            "length": len(half),
            "sha256": hashlib.sha256(half).hexdigest(),
            "base64": base64.b64encode(half).decode("ascii"),
        }
        line = json.dumps(entry, separators=(",", ":")).encode("ascii") + b"\n"
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(self._path.with_name(f"{self._path.name}.torn"), flags, 0o600)
            try:
                # A kill here may have left half an entry, too.
                size = os.fstat(fd).st_size
                if size and os.pread(fd, 1, size - 1) != b"\n":
                    line = b"\n" + line
                _write_all(fd, line)
                os.fsync(fd)
            finally:
                os.close(fd)
            _sync_folder(self._path.parent)
            self._reach("set aside")
            os.ftruncate(self._fd, offset)
            os.fsync(self._fd)
        except OSError as error:
            raise _write_error(error) from error
        self._reach("cut off")


def _write_all(fd: int, content: bytes, reach: Reach = _nothing) -> None:
    view = memoryview(content)
    while view:
        written = os.write(fd, view)
        view = view[written:]
        if view:
            reach("half append")


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # some file systems cannot; then the rename is as durable as they make it
            os.fsync(fd)
    finally:
        os.close(fd)


def _write_error(error: OSError) -> SessionWriteError:
    why = os.strerror(error.errno) if error.errno else "no reason given"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return SessionWriteError("STORAGE_FULL", f"the session cannot be written: {why}; free some space")
    return SessionWriteError("STORE_UNWRITABLE", f"the session cannot be written: {why}")
