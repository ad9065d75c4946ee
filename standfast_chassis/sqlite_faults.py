"""Translates what SQLite and the file system say into the store errors, by code and never by wording.

Codes: https://www.sqlite.org/rescode.html (the low byte is the primary code).
"""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

from standfast_chassis.errors import (
    StorageFullError,
    StoreBusyError,
    StoreDamagedError,
    StoreError,
    StoreUnwritableError,
)

_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})
_UNWRITABLE_ERRNOS = frozenset({errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ENOTDIR, errno.ENOENT})
_UNWRITABLE_CODES = frozenset(
    {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PERM}
)


def storage_full(path: Path) -> StorageFullError:
    return StorageFullError(
        f"No space is left for {path}: expected room for a write, found the disk or the quota full. "
        f"Free space on the file system of {path.parent} and repeat the request; nothing of it was written.",
        {"path": path},
    )


def store_unwritable(path: Path, found: str) -> StoreUnwritableError:
    return StoreUnwritableError(
        f"{path} cannot be written: {found}. Check the owner and mode of {path.parent} and that its file system is "
        "mounted writable, then repeat the request; nothing of it was written.",
        {"path": path},
    )


def store_error(error: BaseException, path: Path) -> StoreError | None:
    """The store error for what SQLite or the file system raised; None when it is not about the file itself.

    A broken constraint or a wrong statement gives None: that is the caller's business.
    """
    if isinstance(error, StoreError):
        return error
    if isinstance(error, OSError):
        if error.errno in _FULL_ERRNOS:
            return storage_full(path)
        if error.errno in _UNWRITABLE_ERRNOS:
            return store_unwritable(path, error.strerror or "refused by the file system")
        return None
    if not isinstance(error, sqlite3.Error):
        return None
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return None
    primary = code & 0xFF
    if primary == sqlite3.SQLITE_FULL:
        return storage_full(path)
    if primary in _UNWRITABLE_CODES:
        return store_unwritable(path, f"SQLite says {error.sqlite_errorname}")
    if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreDamagedError(
            f"{path} is damaged or not a database (SQLite says {error.sqlite_errorname}). Keep the file, restore it "
            "from a backup, and do not start with an empty one: retained conversations would be unknown.",
            {"path": path},
        )
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreBusyError(
            f"{path} is locked by another process. Expected one process per state folder; stop the other one. "
            "Nothing was written.",
            {"path": path},
        )
    return None
