"""Turns what a handler raises into a gRPC status, in one place for all handlers of a process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
import structlog

from standfast_chassis.errors import StandfastError
from standfast_chassis.rpc_handlers import wrapped
from standfast_chassis.rpc_status import abort
from standfast_chassis.trace_context import current_trace_id

_log = structlog.get_logger("standfast.rpc")


class InternalError(StandfastError):
    """What a caller sees of an error that nobody foresaw. Its cause is in the log, under the trace id."""

    reason = "INTERNAL"


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Innermost of the server interceptors, so that the others see the status that is sent.

    - StandfastError with a reason in `codes`: that code, with reason, message and metadata.
    - any other exception, or a reason not in `codes`: logged once, INTERNAL without the inner text.
    - a cancel and an abort by the handler itself pass through.
    """

    def __init__(self, codes: Mapping[str, grpc.StatusCode]) -> None:
        self._codes = codes

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method

        async def around(run: Callable[[], Awaitable[Any]], context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            try:
                return await run()
            except (asyncio.CancelledError, grpc.aio.AbortError):
                raise
            except StandfastError as error:
                code = self._codes.get(error.reason)
                if code is None:
                    _log.exception("an error whose reason has no code in this process", method=method)
                    await abort(context, _internal(method), grpc.StatusCode.INTERNAL)
                else:
                    await abort(context, error, code)
            except Exception:  # noqa: BLE001 - the outermost frame of a handler
                _log.exception("a handler failed", method=method)
                await abort(context, _internal(method), grpc.StatusCode.INTERNAL)

        return wrapped(handler, around)


def _internal(method: str) -> InternalError:
    trace_id = current_trace_id()
    where = f" under trace {trace_id}" if trace_id else ""
    metadata = {"method": method} | ({"trace_id": trace_id} if trace_id else {})
    return InternalError(f"{method} failed inside the server; the cause is in its log{where}.", metadata)
