"""The plain relay of one host agent: a model port per sandbox, one fixed upstream a protocol, the key added outside.

    async with Relay(Upstreams.same(upstream), on_incident=journal.incident) as relay:
        await relay.open_sandbox("sb-1", listener, container_pid=4711)
        relay.register_slot("sb-1", "slot-1", secret, uid=20001)
        relay.begin_activation("sb-1", "slot-1", activation_id, traceparent)
        ...
        observation = await relay.end_activation("sb-1", "slot-1", activation_id)

Requests and responses pass byte for byte; only hop-by-hop headers, `host` and the credential are ours. It proves no
history yet; it knows which assistant texts it delivered. A relay knows nothing of an activation that began before it
was made: after a restart of the host agent such an activation is begun anew and its observation starts there.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

import httpx2
import structlog
from opentelemetry.trace import NoOpTracer, Tracer

from sandbox_manager.host.relay.activation import RelayObservation
from sandbox_manager.host.relay.admission import Incident
from sandbox_manager.host.relay.caller import Address, uid_of_caller
from sandbox_manager.host.relay.errors import SandboxOpenError, UnknownSandboxError
from sandbox_manager.host.relay.port import ModelPort, Outside, RelayLimits
from sandbox_manager.host.relay.upstream import Upstreams

KEPT_CONNECTIONS_MAX = 64
LOOKUP_THREADS = 4
# A response's last bytes reach the CLI a moment before the relay has counted them.
DRAIN_TIMEOUT_S = 1.0

_log = structlog.get_logger("standfast.relay")


class Relay:
    """One per host agent process. An async context manager; its exit closes every port."""

    def __init__(
        self,
        upstreams: Upstreams,
        *,
        on_incident: Callable[[Incident], None] | None = None,
        limits: RelayLimits | None = None,
        tracer: Tracer | None = None,
        lookup: Callable[[int, Address, Address], int | None] = uid_of_caller,
    ) -> None:
        self._told = on_incident
        self._limits = limits or RelayLimits()
        self._ports: dict[str, ModelPort] = {}
        self._threads = ThreadPoolExecutor(LOOKUP_THREADS, thread_name_prefix="relay-lookup")
        self._outside = Outside(
            upstreams=upstreams,
            # The transport, not the client on top of it: no redirects, cookies, default headers, decoding or proxies.
            transport=httpx2.AsyncHTTPTransport(
                trust_env=False,
                http1=True,
                http2=False,
                retries=0,
                limits=httpx2.Limits(
                    max_connections=None,
                    max_keepalive_connections=KEPT_CONNECTIONS_MAX,
                    keepalive_expiry=upstreams.keepalive_s,
                ),
            ),
            tracer=tracer or NoOpTracer(),
            on_incident=self._incident,
            threads=self._threads,
            lookup=lookup,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes all ports and the upstream connections. Idempotent."""
        ports = list(self._ports.values())
        self._ports.clear()
        await asyncio.gather(*(port.close() for port in ports))
        await self._outside.transport.aclose()
        self._threads.shutdown(wait=False)

    async def open_sandbox(self, sandbox_id: str, listener: socket.socket, *, container_pid: int | None) -> None:
        """Serves a sandbox on `listener`, a listening TCP socket of its network namespace; it is the relay's then.

        container_pid: a process of the sandbox as the host sees it, whose socket table tells callers' UIDs; None where
        the engine has no UIDs (local): then a slot is told by its secret alone.
        """
        if sandbox_id in self._ports:
            raise SandboxOpenError(
                f"sandbox {sandbox_id} has a listener already: close it first", {"sandbox": sandbox_id}
            )
        port = ModelPort(sandbox_id, container_pid, self._outside, self._limits)
        self._ports[sandbox_id] = port
        try:
            await port.serve(listener)
        except BaseException:
            self._ports.pop(sandbox_id, None)
            raise

    async def close_sandbox(self, sandbox_id: str) -> None:
        """Stops serving a sandbox and forgets its slots. Idempotent."""
        port = self._ports.pop(sandbox_id, None)
        if port is not None:
            await port.close()

    def register_slot(self, sandbox_id: str, slot: str, secret: str, *, uid: int | None) -> None:
        """Lets a slot call with `secret`. Raises SlotTakenError, ValueError."""
        self._port(sandbox_id).register_slot(slot, secret, uid)

    def revoke_slot(self, sandbox_id: str, slot: str) -> None:
        """Refuses a slot from now on and breaks its open connections. Idempotent, also for a closed sandbox."""
        port = self._ports.get(sandbox_id)
        if port is not None:
            port.revoke_slot(slot)

    def begin_activation(self, sandbox_id: str, slot: str, activation_id: str, traceparent: str | None) -> None:
        """From now on the slot may call the model. Raises ActivationError when another activation is open."""
        self._port(sandbox_id).begin_activation(slot, activation_id, traceparent)

    async def end_activation(
        self, sandbox_id: str, slot: str, activation_id: str, *, drain_timeout_s: float = DRAIN_TIMEOUT_S
    ) -> RelayObservation:
        """The slot may call no more; what was seen. Raises ActivationError when this activation is not known."""
        return await self._port(sandbox_id).end_activation(slot, activation_id, drain_timeout_s)

    def incidents(self, sandbox_id: str) -> list[Incident]:
        """The newest refusals of a sandbox, oldest first, bounded."""
        return list(self._port(sandbox_id).incidents)

    def _port(self, sandbox_id: str) -> ModelPort:
        port = self._ports.get(sandbox_id)
        if port is None:
            raise UnknownSandboxError(
                f"sandbox {sandbox_id} has no model port here: open it first", {"sandbox": sandbox_id}
            )
        return port

    def _incident(self, incident: Incident) -> None:
        _log.warning(
            "model_port_incident",
            kind=incident.kind.value,
            sandbox_id=incident.sandbox_id,
            slot=incident.slot,
            expected_uid=incident.expected_uid,
            observed_uid=incident.observed_uid,
        )
        if self._told is not None:
            self._told(incident)
