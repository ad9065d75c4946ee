"""Turns a failed call to a neighbour into the runner's own errors.

Two questions matter to whoever called: did the neighbour *answer* (its reason counts), or is it *away* (ask again)?
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from runner.core.errors import HostUnavailableError, ManagerUnavailableError, ReasonedError
from standfast_chassis.rpc_status import RemoteError, remote_errors

# How a call ends when the neighbour is not there, dies in the middle of it, or does not answer in time.
_AWAY = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
    }
)


class PeerAnsweredError(ReasonedError):
    """The neighbour answered with a reason of ours. `code` as it sent it."""

    def __init__(self, error: RemoteError) -> None:
        super().__init__(error.reason, error.message, error.metadata)
        self.code = error.code


class PeerFaultError(ReasonedError):
    """The neighbour answered with something that is none of our reasons: a fault of its own, or not our service."""

    def __init__(self, who: str, address: str, error: RemoteError) -> None:
        super().__init__(
            "INTERNAL",
            f"The {who} at {address} failed with {error.code.name}; its log has the cause.",
            {"address": address, "code": error.code.name},
        )


@contextmanager
def errors_of_manager(address: str) -> Iterator[None]:
    """Around a call to the manager."""
    try:
        with remote_errors():
            yield
    except RemoteError as error:
        if error.has_error_info:
            raise PeerAnsweredError(error) from error
        if error.code in _AWAY:
            raise ManagerUnavailableError(
                f"The sandbox manager at {address} does not answer ({error.code.name}). Nothing is known to be lost.",
                {"address": address, "code": error.code.name},
            ) from error
        raise PeerFaultError("sandbox manager", address, error) from error


@contextmanager
def errors_of_host(address: str) -> Iterator[None]:
    """Around a call to a host agent."""
    try:
        with remote_errors():
            yield
    except RemoteError as error:
        if error.has_error_info:
            raise PeerAnsweredError(error) from error
        if error.code in _AWAY:
            raise HostUnavailableError(
                f"The host agent at {address} does not answer ({error.code.name}). That says nothing about its containers.",
                {"address": address, "code": error.code.name},
            ) from error
        raise PeerFaultError("host agent", address, error) from error
