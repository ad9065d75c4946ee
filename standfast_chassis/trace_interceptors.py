"""gRPC calls as spans, on both sides, with the trace context carried in the metadata.

Status of the server's span (driven through eleven endings): no exception → `context.code()` or OK; AbortError →
`context.code()`; CancelledError → DEADLINE_EXCEEDED when no time is left, else CANCELLED; anything else → UNKNOWN.
A client whose deadline has passed also cancels, and that can arrive just before the server's own deadline, which began
later by the way of the request: hence a tenth of a second of slack.
The client's span ends in the call's done callback with the call's own code, never in the iterator: a loop that is
left early would lose it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind

from standfast_chassis import span_names
from standfast_chassis.rpc_handlers import wrapped
from standfast_chassis.trace_context import PROPAGATOR
from standfast_chassis.tracing import Tracing, set_error, traced_methods_only

# A probe every second would bury everything else.
UNTRACED_SERVICES = ("grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection")

# Codes that say something about the server and not about the caller's request
# (https://opentelemetry.io/docs/specs/semconv/rpc/grpc/): only these set the server span's status to ERROR.
# error.type is set for every code but OK.
_SERVER_ERRORS = frozenset(
    {
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)


_DEADLINE_SLACK_S = 0.1


def _attributes(method: str) -> dict[str, str]:
    return {span_names.RPC_SYSTEM_NAME: "grpc", span_names.RPC_METHOD: method.lstrip("/")}


class TraceServerInterceptor(grpc.aio.ServerInterceptor):
    """Outermost of the server interceptors."""

    def __init__(self, tracing: Tracing, untraced_services: tuple[str, ...] = UNTRACED_SERVICES) -> None:
        self._tracing = tracing
        self._untraced = untraced_services

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or not traced_methods_only(method, self._untraced):
            return handler
        carrier = {
            key: value for key, value in handler_call_details.invocation_metadata or () if isinstance(value, str)
        }

        async def around(run: Callable[[], Awaitable[Any]], context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            span = self._tracing.start_span(
                method.lstrip("/"),
                _attributes(method),
                kind=SpanKind.SERVER,
                context=PROPAGATOR.extract(carrier, context=otel_context.Context()),
            )
            code = grpc.StatusCode.UNKNOWN
            try:
                with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                    answer = await run()
                code = _set_code(context) or grpc.StatusCode.OK
                return answer
            except grpc.aio.AbortError:
                code = _set_code(context) or grpc.StatusCode.UNKNOWN
                raise
            except asyncio.CancelledError:
                left_s = context.time_remaining()
                is_late = left_s is not None and left_s <= _DEADLINE_SLACK_S
                code = grpc.StatusCode.DEADLINE_EXCEEDED if is_late else grpc.StatusCode.CANCELLED
                raise
            finally:
                _end(span, code, is_error=code in _SERVER_ERRORS)

        return wrapped(handler, around)


class _ClientSpans:
    """What the four client interceptors share. grpc files an interceptor under the first kind that it is an instance
    of, so one class cannot serve all four.
    """

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    async def _call(self, continuation: Any, details: grpc.aio.ClientCallDetails, request: Any) -> Any:
        raw: str | bytes = details.method
        method = raw.decode() if isinstance(raw, bytes) else raw
        if not traced_methods_only(method, UNTRACED_SERVICES):
            return await continuation(details, request)
        span = self._tracing.start_span(method.lstrip("/"), _attributes(method), kind=SpanKind.CLIENT)
        try:
            call = await continuation(_with_context(details, span), request)
        except BaseException as error:
            # Nothing was sent: the call was cancelled, or refused its arguments.
            is_cancel = isinstance(error, asyncio.CancelledError)
            _end(span, grpc.StatusCode.CANCELLED if is_cancel else grpc.StatusCode.UNKNOWN, is_error=True)
            raise
        call.add_done_callback(lambda _: self._when_done(span, call))
        return call

    def _when_done(self, span: Span, call: grpc.aio.Call) -> None:
        ended_ns = time.time_ns()

        async def end() -> None:
            code = await call.code()
            _end(span, code, is_error=code is not grpc.StatusCode.OK, ended_ns=ended_ns)

        self._tracing.keep_until_ended(asyncio.get_running_loop().create_task(end()))


class _UnaryUnary(_ClientSpans, grpc.aio.UnaryUnaryClientInterceptor):
    async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return await self._call(continuation, client_call_details, request)


class _UnaryStream(_ClientSpans, grpc.aio.UnaryStreamClientInterceptor):
    async def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return await self._call(continuation, client_call_details, request)


class _StreamUnary(_ClientSpans, grpc.aio.StreamUnaryClientInterceptor):
    async def intercept_stream_unary(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return await self._call(continuation, client_call_details, request_iterator)


class _StreamStream(_ClientSpans, grpc.aio.StreamStreamClientInterceptor):
    async def intercept_stream_stream(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return await self._call(continuation, client_call_details, request_iterator)


def client_interceptors(tracing: Tracing) -> list[grpc.aio.ClientInterceptor]:
    """The interceptors that give every call of a channel its span, one for each kind of call."""
    return [_UnaryUnary(tracing), _UnaryStream(tracing), _StreamUnary(tracing), _StreamStream(tracing)]


def _with_context(details: grpc.aio.ClientCallDetails, span: Span) -> grpc.aio.ClientCallDetails:
    carrier: dict[str, str] = {}
    PROPAGATOR.inject(carrier, context=trace.set_span_in_context(span))
    metadata = grpc.aio.Metadata(*(tuple(details.metadata or ())))
    for key, value in carrier.items():
        if metadata.get(key) is not None:
            metadata.delete_all(key)
        metadata.add(key, value)
    return grpc.aio.ClientCallDetails(
        details.method, details.timeout, metadata, details.credentials, details.wait_for_ready
    )


def _set_code(context: grpc.aio.ServicerContext[Any, Any]) -> grpc.StatusCode | None:
    """The code that a handler set or aborted with; None (or 0 in some versions) when it set none."""
    code: Any = context.code()
    if isinstance(code, grpc.StatusCode):
        return code
    return _CODES.get(code)


_CODES: dict[Any, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


def _end(span: Span, code: grpc.StatusCode, *, is_error: bool, ended_ns: int | None = None) -> None:
    span.set_attribute(span_names.RPC_RESPONSE_STATUS_CODE, code.name)
    if is_error:
        set_error(span, code.name)
    elif code is not grpc.StatusCode.OK:
        span.set_attribute(span_names.ERROR_TYPE, code.name)
    span.end(ended_ns)
