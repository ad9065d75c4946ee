"""The base of all domain errors, and the ones that the chassis itself raises. Nothing here knows gRPC.

A class has a `reason` (a stable word that a caller can act on); an instance has a message for people and `metadata`
with whatever varies in that message, under stable keys. Which gRPC code a reason becomes is decided by each process
in its own `status.py`.
"""

from __future__ import annotations

from collections.abc import Mapping


class StandfastError(Exception):
    """A domain error.

    `reason`: UPPER_SNAKE word, stable. `metadata`: lower_snake keys, text values. Neither may hold a secret: both are
    sent to callers.
    """

    reason: str = "INTERNAL"

    def __init__(self, message: str, metadata: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.metadata: dict[str, str] = {key: str(value) for key, value in (metadata or {}).items()}

    def __str__(self) -> str:
        return self.message


class StoreError(StandfastError):
    """Something about a database file. `metadata["path"]` names it."""

    reason = "STORE_ERROR"


class StorageFullError(StoreError):
    """No space is left. What was committed before stays committed; the failed write is undone as a whole."""

    reason = "STORAGE_FULL"


class StoreUnwritableError(StoreError):
    """The file or its folder cannot be written: read-only, wrong owner, or the device answers with errors."""

    reason = "STORE_UNWRITABLE"


class StoreTooNewError(StoreError):
    """The store was written by a newer release; this one would not understand it."""

    reason = "STORE_TOO_NEW"


class StoreForeignError(StoreError):
    """The file is a store of another kind."""

    reason = "STORE_FOREIGN"


class StoreDamagedError(StoreError):
    """SQLite finds the file damaged, or not a database at all."""

    reason = "STORE_DAMAGED"


class StoreBusyError(StoreError):
    """More calls are waiting than the queue's bound, or another process holds the file's lock. Nothing was written."""

    reason = "STORE_BUSY"


class StoreClosedError(StoreError):
    """The call came after close() or before the store was opened. Nothing was written."""

    reason = "STORE_CLOSED"


class StateFolderError(StandfastError):
    """A state folder cannot be used as it is. `metadata["path"]` names it."""

    reason = "STATE_FOLDER_UNUSABLE"


class StateFolderInUseError(StateFolderError):
    """Another process works on this state folder. `metadata["holder_pid"]` when it is known."""

    reason = "STATE_FOLDER_IN_USE"


class AddressInUseError(StandfastError):
    """A server cannot listen on its address. `metadata["address"]`."""

    reason = "ADDRESS_IN_USE"


class KeyFileError(StandfastError):
    """A key file is unreadable, has the wrong kind of key, or can be read by others. `metadata["path"]`."""

    reason = "KEY_FILE_UNUSABLE"


class TokenRejectedError(StandfastError):
    """A signed token is not what it must be: bad signature, another key, another kind, or not a token."""

    reason = "TOKEN_REJECTED"


class SettingsError(StandfastError):
    """A setting is unknown, missing or has a wrong value. The message lists every one of them."""

    reason = "SETTINGS_INVALID"


class TaskPoolFullError(StandfastError):
    """The pool holds as many tasks as it may. Nothing was started."""

    reason = "TASKS_FULL"


class TaskPoolClosedError(StandfastError):
    """The pool is closing. Nothing was started."""

    reason = "TASKS_CLOSED"
