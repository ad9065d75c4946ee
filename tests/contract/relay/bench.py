"""A relay in front of an upstream of the tests, ready to be called."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sandbox_manager.host.relay import Incident, ProviderKey, Relay, RelayLimits, Upstream, Upstreams
from standfast_chassis.tracing import configure_tracing
from tests.contract.relay.raw_upstream import Answer, RawUpstream

KEY = "provider-key-0123456789-abcdefgh"
SECRET = "slot-secret-one-0123456789"
SANDBOX = "sandbox-1"
SLOT = "slot-1"
ACTIVATION = "activation-1"
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def listener() -> tuple[socket.socket, int]:
    sock = socket.create_server(("127.0.0.1", 0))
    return sock, sock.getsockname()[1]


@dataclass
class Bench:
    """A relay with one sandbox, one slot and an open activation, in front of an upstream."""

    relay: Relay
    port: int
    upstream: RawUpstream
    spans: InMemorySpanExporter
    incidents: list[Incident] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        return {"x-api-key": SECRET, "content-type": "application/json"}


@asynccontextmanager
async def bench(
    answer: Answer,
    *,
    limits: RelayLimits | None = None,
    key: str | None = KEY,
    prefix: str = "",
    upstream_url: str | None = None,
    read_timeout_s: float = 30.0,
) -> AsyncIterator[Bench]:
    spans = InMemorySpanExporter()
    tracing = configure_tracing("test", exporter=spans)
    incidents: list[Incident] = []
    async with RawUpstream(answer) as upstream:
        where = Upstream(
            (upstream_url or upstream.base_url) + prefix,
            ProviderKey(key) if key is not None else None,
            read_timeout_s=read_timeout_s,
        )
        async with Relay(
            Upstreams.same(where), on_incident=incidents.append, limits=limits, tracer=tracing.tracer
        ) as relay:
            sock, port = listener()
            await relay.open_sandbox(SANDBOX, sock, container_pid=None)
            relay.register_slot(SANDBOX, SLOT, SECRET, uid=None)
            relay.begin_activation(SANDBOX, SLOT, ACTIVATION, TRACEPARENT)
            yield Bench(relay, port, upstream, spans, incidents)
