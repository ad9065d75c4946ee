"""Why a session cannot be opened or written. `cause` is a stable word for programs, the text is for people."""

from __future__ import annotations


class SessionError(Exception):
    """`cause`: NO_SUCH_SESSION, SESSION_EXISTS, SESSION_IN_USE, SESSION_DAMAGED, SESSION_TOO_NEW, SESSION_MISMATCH, STORAGE_FULL,
    STORE_UNWRITABLE.
    """

    def __init__(self, cause: str, text: str) -> None:
        super().__init__(text)
        self.cause = cause


class SessionWriteError(SessionError):
    """A record could not be made durable. Nothing that needs it may happen."""
