"""Calls whose failures become ClientErrors."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from standfast_chassis.rpc_status import RemoteError, remote_errors
from standfast_client.errors import client_error

T = TypeVar("T")


@contextmanager
def client_errors() -> Iterator[None]:
    """`with client_errors():` around a call or the reading of a stream."""
    try:
        with remote_errors():
            yield
    except RemoteError as error:
        raise client_error(error) from error


async def answered(call: Awaitable[T]) -> T:
    """The answer of a unary call. Raises ClientError."""
    with client_errors():
        return await call
