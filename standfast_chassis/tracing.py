"""Traces of one process: a provider of its own, spans, and the export of them, which never delays a turn.

    tracing = configure_tracing("runner", endpoint)        # endpoint None: spans exist (ids for logs), nothing is sent
    with tracing.span(span_names.PREPARE, {...}): ...
    await tracing.shutdown()

Span attributes and events hold names, ids and numbers: exception texts are not recorded, since a text can hold a
secret; the error's type is.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.util.types import AttributeValue

from standfast_chassis import span_names
from standfast_chassis.trace_context import context_from_traceparent, current_trace_id, current_traceparent

__all__ = ["Attributes", "Tracing", "configure_tracing", "current_trace_id", "current_traceparent", "error_type"]

Attributes = Mapping[str, AttributeValue | None]

_EXPORT_TIMEOUT_S = 2
_EXPORT_INTERVAL_MS = 1000


class Tracing:
    """The tracer of one process (several may live in one interpreter: nothing global is set)."""

    def __init__(self, provider: TracerProvider) -> None:
        self.provider = provider
        self.tracer: Tracer = provider.get_tracer("standfast")
        self._ending: set[asyncio.Task[None]] = set()

    @contextmanager
    def span(
        self,
        name: str,
        attributes: Attributes | None = None,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        context: Context | None = None,
    ) -> Iterator[Span]:
        """A current span around a block. An exception sets ERROR and error.type, and is raised on.

        Attributes whose value is None are left out. `context`: the parent's; default the current one.
        """
        span = self.start_span(name, attributes, kind=kind, context=context)
        with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            try:
                yield span
            except BaseException as error:
                set_error(span, error)
                raise

    def start_span(
        self,
        name: str,
        attributes: Attributes | None = None,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        context: Context | None = None,
    ) -> Span:
        """A span that is not made current and that the caller must end: for work spread over several tasks."""
        return self.tracer.start_span(name, context=context, kind=kind, attributes=known(attributes))

    @contextmanager
    def span_from_traceparent(
        self,
        name: str,
        traceparent: str | None,
        attributes: Attributes | None = None,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> Iterator[Span]:
        """As span(), under a parent that came as text: a guest frame, a relay's slot. None or malformed: a root."""
        with self.span(name, attributes, kind=kind, context=context_from_traceparent(traceparent)) as span:
            yield span

    def keep_until_ended(self, task: asyncio.Task[None]) -> None:
        """Holds a task that will end a span, so that shutdown() can wait for it."""
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def shutdown(self, *, timeout_s: float = 3.0) -> None:
        """Sends what is left and stops, in a thread, for at most `timeout_s`. May be called again."""
        deadline = time.monotonic() + timeout_s
        if self._ending:
            await asyncio.wait(set(self._ending), timeout=timeout_s)
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def flush() -> None:
            self.provider.shutdown()
            with suppress(RuntimeError):  # the loop may be gone when a dead backend took too long
                loop.call_soon_threadsafe(done.set)

        # A daemon thread of its own: the loop's default pool would be joined at exit, however long that takes.
        threading.Thread(target=flush, name="trace-flush", daemon=True).start()
        with suppress(TimeoutError):
            await asyncio.wait_for(done.wait(), max(0.0, deadline - time.monotonic()))


def configure_tracing(
    service_name: str,
    endpoint: str | None = None,
    *,
    service_version: str | None = None,
    release_sha: str | None = None,
    resource_attributes: Mapping[str, str] | None = None,
    exporter: SpanExporter | None = None,
) -> Tracing:
    """`endpoint`: of an OTLP/gRPC receiver, `http://host:port`, `https://host:port` or `host:port` (plain text).

    `exporter`: used instead, at once and without batching (tests). Neither: nothing leaves the process, and the
    exporter's packages are not even imported.
    """
    attributes: dict[str, AttributeValue] = {"service.name": service_name}
    if service_version:
        attributes["service.version"] = service_version
    if release_sha:
        attributes[span_names.STANDFAST_RELEASE_SHA] = release_sha
    attributes.update(resource_attributes or {})
    provider = TracerProvider(
        resource=Resource.create(attributes),
        span_limits=SpanLimits(max_attribute_length=4096, max_span_attributes=128, max_events=256),
        shutdown_on_exit=False,
    )
    if exporter is not None:
        provider.add_span_processor(SimpleSpanProcessor(exporter))
    elif endpoint:
        provider.add_span_processor(_otlp_processor(endpoint))
    return Tracing(provider)


def _otlp_processor(endpoint: str) -> BatchSpanProcessor:
    # 0.4 s of imports that a process without a backend is spared.
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    parts = urlsplit(endpoint if "://" in endpoint else f"http://{endpoint}")
    exporter = OTLPSpanExporter(
        endpoint=f"{parts.scheme}://{parts.netloc}", insecure=parts.scheme != "https", timeout=_EXPORT_TIMEOUT_S
    )
    return BatchSpanProcessor(
        exporter,
        schedule_delay_millis=_EXPORT_INTERVAL_MS,
        max_queue_size=8192,
        export_timeout_millis=_EXPORT_TIMEOUT_S * 1000,
    )


def known(attributes: Attributes | None) -> dict[str, AttributeValue]:
    """The attributes that have a value."""
    return {key: value for key, value in (attributes or {}).items() if value is not None}


def error_type(error: BaseException) -> str:
    """A reason where the error has one, else the class's name. Never its text."""
    reason = getattr(error, "reason", None)
    return reason if isinstance(reason, str) and reason else type(error).__qualname__


def set_error(span: Span, error: BaseException | str) -> None:
    """Marks a span as failed."""
    name = error if isinstance(error, str) else error_type(error)
    span.set_attribute(span_names.ERROR_TYPE, name)
    span.set_status(Status(StatusCode.ERROR))


def traced_methods_only(method: str, skipped: Sequence[str]) -> bool:
    """Whether calls of this method (`/pkg.Service/Method`) get a span."""
    return not any(method.startswith(f"/{service}/") for service in skipped)
