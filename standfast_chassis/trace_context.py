"""The W3C trace context: read and written where a trace crosses a boundary (gRPC metadata, guest frames, the relay).

Only `traceparent` and `tracestate` are carried, whatever the OTEL_PROPAGATORS variable says: baggage could hold text.
"""

from __future__ import annotations

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

PROPAGATOR = TraceContextTextMapPropagator()


def current_traceparent() -> str | None:
    """`00-<trace id>-<span id>-<flags>` of the current span; None outside any."""
    carrier: dict[str, str] = {}
    PROPAGATOR.inject(carrier)
    return carrier.get("traceparent")


def current_trace_id() -> str | None:
    """32 hex digits; None outside any span."""
    span_context = trace.get_current_span().get_span_context()
    return trace.format_trace_id(span_context.trace_id) if span_context.is_valid else None


def context_from_traceparent(traceparent: str | None) -> Context:
    """A context whose current span is the remote one; an empty context when it is missing or malformed."""
    return PROPAGATOR.extract({"traceparent": traceparent} if traceparent else {}, context=otel_context.Context())
