"""What can go wrong between the host agent and a supervisor. `reason` is a word of `error_reason.proto`."""

from __future__ import annotations

import errno
from collections.abc import Mapping

from standfast_chassis.errors import StandfastError


class GuestLinkError(StandfastError):
    """Base of the link's errors."""

    reason = "SUPERVISOR_UNAVAILABLE"


class GuestUnreachableError(GuestLinkError):
    """No supervisor said hello in time. It says nothing about the container."""


class GuestPeerError(GuestLinkError):
    """The process behind the socket is not the expected supervisor."""

    reason = "CONTAINER_CHANGED"


class GuestProtocolError(GuestLinkError):
    """The supervisor speaks another protocol version, or something that is not the protocol."""

    reason = "SUPERVISOR_MISSING"


class GuestLinkLostError(GuestLinkError):
    """The connection is gone. Whether an operation under way was carried out is not known."""

    reason = "SUPERVISOR_LOST"


class GuestRestartedError(GuestLinkError):
    """Another supervisor answers than the one this link began with: its processes are gone."""

    reason = "SUPERVISOR_LOST"


class GuestTimeoutError(GuestLinkError):
    """The supervisor did not answer an operation in time. Whether it was carried out is not known."""


# The supervisor's words, and the word of the contract that a caller acts on.
_REASONS = {
    "ABSENT": "STORE_MISSING",
    "ENOSPC": "STORAGE_FULL",
    "UNWRITABLE": "STORE_UNWRITABLE",
    "SYMLINK": "HISTORY_CHANGED_OUTSIDE_TURN",
    "NOT_REGULAR": "HISTORY_CHANGED_OUTSIDE_TURN",
    "OWNER": "HISTORY_CHANGED_OUTSIDE_TURN",
    "NLINK": "HISTORY_CHANGED_OUTSIDE_TURN",
    "UNREADABLE": "STORE_ERROR",
    "SLOT_BUSY": "SLOT_BUSY",
    "SLOT_LEFTOVERS": "RECLAIM_INCOMPLETE",
    "PROCESS_GENERATION_STALE": "GENERATION_STALE",
    "PROCESS_EXITED": "CLI_DIED",
    "STDIN_CLOSED": "CLI_DIED",
    "NONCE_MISMATCH": "CONTAINER_CHANGED",
    "EXECUTABLE_REFUSED": "EVIDENCE_CONTRADICTED",
    "SPAWN_FAILED": "HANDSHAKE_FAILED",
    "PORT_IN_USE": "ADDRESS_IN_USE",
    "BAD_REQUEST": "REQUEST_INVALID",
    "BAD_PATH": "REQUEST_INVALID",
    "REQUEST_TOO_LARGE": "REQUEST_INVALID",
}


class GuestOperationError(GuestLinkError):
    """The supervisor refused an operation, or it failed there. `guest_reason` is its own word, `facts` its facts."""

    def __init__(self, operation: str, guest_reason: str, message: str, facts: Mapping[str, object]) -> None:
        super().__init__(f"{operation}: {message}", {"operation": operation, "guest_reason": guest_reason, **facts})
        self.operation = operation
        self.guest_reason = guest_reason
        self.facts = dict(facts)
        is_full = facts.get("errno") in (errno.ENOSPC, errno.EDQUOT)
        self.reason = "STORAGE_FULL" if is_full else _REASONS.get(guest_reason, "INTERNAL")
