"""Carries a StandfastError through a gRPC status as google.rpc.ErrorInfo, and reads it back on the other side.

Which code a reason gets is the table of each process; this module only packs and unpacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Never

import grpc
from google.protobuf import any_pb2

# googleapis-common-protos ships stubs but no py.typed, so mypy does not read them.
from google.rpc import status_pb2  # type: ignore[import-untyped]
from google.rpc.error_details_pb2 import ErrorInfo  # type: ignore[import-untyped]
from grpc_status import rpc_status

from standfast_chassis.errors import StandfastError

DOMAIN = "standfast"
DETAILS_METADATA_KEY = "grpc-status-details-bin"

# gRPC may drop a status whose metadata exceeds 8 KiB (the default soft limit), message and details together, and
# percent-encodes each non-ASCII byte of the message to three.
_MESSAGE_MAX_BYTES = 1024
_VALUE_MAX_BYTES = 512
_METADATA_MAX_BYTES = 2048


class RemoteError(StandfastError):
    """What a peer answered: its gRPC `code`, the `reason` and `metadata` of its ErrorInfo, and its message.

    Without an ErrorInfo (the peer is not ours, or gRPC itself failed) `reason` is the name of the code and
    `has_error_info` is false.
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        reason: str,
        message: str,
        metadata: dict[str, str] | None = None,
        *,
        has_error_info: bool = True,
    ) -> None:
        super().__init__(message, metadata)
        self.code = code
        self.reason = reason
        self.has_error_info = has_error_info

    def __str__(self) -> str:
        return f"{self.code.name} {self.reason}: {self.message}"


def to_status(error: StandfastError, code: grpc.StatusCode) -> grpc.Status:
    """The rich status for `error`. A long message or value is cut, since gRPC drops statuses that are too large."""
    if code is grpc.StatusCode.OK:
        raise ValueError("an error cannot have the code OK")
    message = _cut(error.message, _MESSAGE_MAX_BYTES)
    info = ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=_bounded(error.metadata))
    detail = any_pb2.Any()
    detail.Pack(info)
    number: int = code.value[0]
    status: grpc.Status = rpc_status.to_status(status_pb2.Status(code=number, message=message, details=[detail]))
    return status


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: StandfastError, code: grpc.StatusCode) -> Never:
    """Ends the call with `code` and the error's reason and metadata. Raises, as grpc's own abort does."""
    await context.abort_with_status(to_status(error, code))


def error_info(error: BaseException) -> ErrorInfo | None:
    """The ErrorInfo (of our domain) that a failed call carried; None when it carried none or it cannot be read."""
    if not isinstance(error, grpc.aio.AioRpcError):
        return None
    for key, value in error.trailing_metadata() or ():
        if key != DETAILS_METADATA_KEY or not isinstance(value, bytes):
            continue
        try:
            status = status_pb2.Status.FromString(value)
        except ValueError:  # protobuf's DecodeError is one
            return None
        for detail in status.details:
            info = ErrorInfo()
            if detail.Is(ErrorInfo.DESCRIPTOR) and detail.Unpack(info) and info.domain == DOMAIN:
                return info
    return None


def remote_error(error: grpc.aio.AioRpcError) -> RemoteError:
    """The failed call as one of our errors."""
    info = error_info(error)
    message = error.details() or ""
    if info is None:
        return RemoteError(error.code(), error.code().name, message, has_error_info=False)
    return RemoteError(error.code(), info.reason, message, dict(info.metadata))


@contextmanager
def remote_errors() -> Iterator[None]:
    """`with remote_errors(): await stub.Call(...)` (or an `async for` over a stream): raises RemoteError instead.

    A local cancellation stays asyncio.CancelledError.
    """
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise remote_error(error) from error


def _cut(text: str, max_bytes: int) -> str:
    raw = text.encode("utf-8", "replace")
    if len(raw) <= max_bytes:
        return raw.decode()
    return raw[: max_bytes - 3].decode("utf-8", "ignore") + "..."


def _bounded(metadata: dict[str, str]) -> dict[str, str]:
    left = _METADATA_MAX_BYTES
    bounded: dict[str, str] = {}
    for key, value in metadata.items():
        cut = _cut(value, _VALUE_MAX_BYTES)
        left -= len(key) + len(cut.encode())
        if left < 0:
            break
        bounded[key] = cut
    return bounded
