"""A real OTLP/gRPC receiver on a loopback port: keeps the spans and metrics that an exporter really sends.

async with OtlpReceiver() as receiver:
    tracing = configure_tracing("runner", receiver.endpoint)
    ...
    span = await receiver.wait_for_span("prepare")
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


@dataclass(frozen=True)
class ReceivedSpan:
    """`status`: "UNSET", "OK" or "ERROR". `kind`: "INTERNAL", "SERVER", "CLIENT". Ids in hex, "" for no parent."""

    name: str
    kind: str
    status: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]
    resource: dict[str, Any]
    start_ns: int
    end_ns: int


class OtlpReceiver:
    """`spans` grows as they arrive; `metric_names` too."""

    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        self.metric_names: set[str] = set()
        self._arrived = asyncio.Condition()
        self._server: grpc.aio.Server | None = None
        self.endpoint = ""

    async def __aenter__(self) -> Self:
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        # Any: the stubs of opentelemetry-proto come without types.
        traces: Any = trace_service_pb2_grpc
        metrics: Any = metrics_service_pb2_grpc
        traces.add_TraceServiceServicer_to_server(_Traces(self), self._server)
        metrics.add_MetricsServiceServicer_to_server(_Metrics(self), self._server)
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        await self._server.stop(0)

    def named(self, name: str) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.name == name]

    async def wait_for_span(self, name: str, *, timeout_s: float = 15.0) -> ReceivedSpan:
        """The first span of this name, once it has arrived."""
        try:
            async with asyncio.timeout(timeout_s), self._arrived:
                await self._arrived.wait_for(lambda: self.named(name))
        except TimeoutError:
            found = sorted({span.name for span in self.spans})
            raise AssertionError(f"no span {name!r} within {timeout_s} s; found {found}") from None
        return self.named(name)[0]

    async def _add(self, spans: list[ReceivedSpan], metric_names: set[str]) -> None:
        async with self._arrived:
            self.spans.extend(spans)
            self.metric_names |= metric_names
            self._arrived.notify_all()


class _Traces(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    async def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the name of the RPC
        spans = []
        for resource_spans in request.resource_spans:
            resource = _attributes(resource_spans.resource.attributes)
            for scope_spans in resource_spans.scope_spans:
                spans += [_span(span, resource) for span in scope_spans.spans]
        await self._receiver._add(spans, set())
        return trace_service_pb2.ExportTraceServiceResponse()


class _Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
    def __init__(self, receiver: OtlpReceiver) -> None:
        self._receiver = receiver

    async def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the name of the RPC
        names = {
            metric.name
            for resource_metrics in request.resource_metrics
            for scope_metrics in resource_metrics.scope_metrics
            for metric in scope_metrics.metrics
        }
        await self._receiver._add([], names)
        return metrics_service_pb2.ExportMetricsServiceResponse()


_KINDS = {1: "INTERNAL", 2: "SERVER", 3: "CLIENT", 4: "PRODUCER", 5: "CONSUMER"}
_STATUSES = {0: "UNSET", 1: "OK", 2: "ERROR"}


def _span(span: Any, resource: dict[str, Any]) -> ReceivedSpan:
    return ReceivedSpan(
        name=span.name,
        kind=_KINDS[span.kind],
        status=_STATUSES[span.status.code],
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        attributes=_attributes(span.attributes),
        resource=resource,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(inner) for inner in value.array_value.values]
    return None if kind is None else getattr(value, kind)
