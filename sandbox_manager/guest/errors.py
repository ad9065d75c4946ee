"""What an operation is refused with: a reason the host can act on, a sentence, and facts."""

from typing import Any


class OperationError(Exception):
    """An operation was refused or failed; it goes back to the host as `ok: false`."""

    def __init__(self, reason: str, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.facts = facts
