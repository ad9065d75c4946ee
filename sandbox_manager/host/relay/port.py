"""One sandbox's model port: its listener, its slots, their activations, and the connections that are open on it."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

import h11
import httpx2
from opentelemetry import trace

from sandbox_manager.host.relay.activation import ActivationLedger, RelayObservation
from sandbox_manager.host.relay.admission import Caller, Incident, IncidentKind, Refusal, Route
from sandbox_manager.host.relay.caller import Address, address_of, uid_of_caller
from sandbox_manager.host.relay.connection import ClientConnection
from sandbox_manager.host.relay.errors import ActivationError
from sandbox_manager.host.relay.exchange import Passing
from sandbox_manager.host.relay.slots import Slot, SlotTable
from sandbox_manager.host.relay.spans import ModelCallSpan
from sandbox_manager.host.relay.upstream import Upstreams
from standfast_chassis import span_names

INCIDENTS_KEPT = 256


@dataclass(frozen=True)
class RelayLimits:
    """Bounds of every model port.

    idle: between two requests. stall: a client that neither takes what is sent to it nor sends what it announced.
    """

    request_bytes_max: int = 64 * 1024 * 1024
    connections_max: int = 256
    idle_timeout_s: float = 300.0
    stall_timeout_s: float = 300.0
    close_timeout_s: float = 5.0


@dataclass(frozen=True)
class Outside:
    """What all ports share: the upstreams, their connections, the tracer, who hears of incidents, threads for look-ups."""

    upstreams: Upstreams
    transport: httpx2.AsyncHTTPTransport
    tracer: trace.Tracer
    on_incident: Callable[[Incident], None]
    threads: Executor
    lookup: Callable[[int, Address, Address], int | None] = uid_of_caller


@dataclass
class _SlotBook:
    """A slot's activations: the open one, the last observation, and what came while none was open."""

    active: ActivationLedger | None = None
    last: RelayObservation | None = None
    outside: int = 0


class ModelPort:
    """Serves one sandbox. Made by the relay; `serve` it, `close` it."""

    def __init__(self, sandbox_id: str, container_pid: int | None, outside: Outside, limits: RelayLimits) -> None:
        self.sandbox_id = sandbox_id
        self.container_pid = container_pid
        self.slots = SlotTable()
        self.incidents: deque[Incident] = deque(maxlen=INCIDENTS_KEPT)
        self._outside = outside
        self._limits = limits
        self._books: dict[str, _SlotBook] = {}
        self._connections: dict[asyncio.Task[None], ClientConnection] = {}
        self._server: asyncio.Server | None = None

    # Life

    async def serve(self, listener: socket.socket) -> None:
        """Begins to accept on `listener`, which listens already and belongs to the port from now on."""
        listener.setblocking(False)
        self._server = await asyncio.start_server(self._connected, sock=listener)

    async def close(self) -> None:
        """Accepts no more and breaks what is open. Idempotent; bounded by the close time-out."""
        if self._server is not None:
            self._server.close()
            self._server = None
        tasks = list(self._connections)
        for task, connection in list(self._connections.items()):
            connection.abort()
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=self._limits.close_timeout_s)

    # Slots and activations

    def register_slot(self, name: str, secret: str, uid: int | None) -> None:
        """Lets a slot call. With a container every slot needs its UID; without one there is none to check."""
        if (uid is None) != (self.container_pid is None):
            expected = "no UID (this sandbox has no container)" if self.container_pid is None else "the slot's UID"
            raise ValueError(f"slot {name} of sandbox {self.sandbox_id} must be registered with {expected}")
        self.slots.register(name, secret, uid)
        self._books.setdefault(name, _SlotBook())

    def revoke_slot(self, name: str) -> None:
        """Refuses the slot from now on and breaks what it has open. Idempotent."""
        self.slots.revoke(name)
        self._books.pop(name, None)
        for connection in list(self._connections.values()):
            if connection.slot is not None and connection.slot.name == name:
                connection.abort()

    def begin_activation(self, slot: str, activation_id: str, traceparent: str | None) -> None:
        """Opens the window in which the slot may call the model. The same again is fine; another is refused."""
        book = self._book(slot)
        if book.active is not None:
            if book.active.activation_id == activation_id:
                return
            raise ActivationError(
                f"slot {slot} is in activation {book.active.activation_id}: {activation_id} can begin when that has ended",
                {"slot": slot, "active": book.active.activation_id, "asked": activation_id},
            )
        book.active = ActivationLedger(activation_id, traceparent, outside=book.outside)
        book.outside = 0
        book.last = None

    async def end_activation(self, slot: str, activation_id: str, drain_timeout_s: float) -> RelayObservation:
        """Closes the window and says what was seen. The same again gives the same observation.

        New requests are refused at once; running ones get `drain_timeout_s` to end, and run on after it uncounted.
        """
        book = self._book(slot)
        if book.active is None and book.last is not None and book.last.activation_id == activation_id:
            return book.last
        ledger = book.active
        if ledger is None or ledger.activation_id != activation_id:
            raise ActivationError(
                f"slot {slot} has no activation {activation_id} to end"
                + (f"; {ledger.activation_id} is open" if ledger is not None else ""),
                {"slot": slot, "asked": activation_id},
            )
        book.active = None
        try:
            async with asyncio.timeout(drain_timeout_s):
                await ledger.idle.wait()
        except TimeoutError:
            pass
        finally:
            # Also when cancelled: the observation is not lost to a caller who asks again.
            book.last = ledger.observe()
        return book.last

    # What a connection asks

    def active_slots(self) -> set[str]:
        """Names of slots with an open activation."""
        return {name for name, book in self._books.items() if book.active is not None}

    def refused(self, refusal: Refusal, caller: Caller) -> None:
        """Records a refused request."""
        slot = refusal.slot
        book = self._books.get(slot.name) if slot is not None else None
        if book is not None and book.active is not None:
            book.active.refused += 1
        elif book is not None and refusal.kind is IncidentKind.NO_ACTIVATION:
            book.outside += 1
        self._record(refusal.kind, slot, caller)

    def begin_passing(self, route: Route, slot: Slot | None, request: h11.Request) -> Passing:
        """Counts a request that may pass and says where it goes."""
        book = self._books.get(slot.name) if slot is not None else None
        ledger = book.active if book is not None else None
        upstream = self._outside.upstreams.of(route.protocol)
        span: ModelCallSpan | None = None
        if ledger is not None and route.calls_a_model:
            ledger.requests += 1
            ledger.in_flight += 1
            ledger.idle.clear()
            attributes = {
                "standfast.sandbox.id": self.sandbox_id,
                span_names.STANDFAST_SLOT: slot.name if slot is not None else "",
                "standfast.activation.id": ledger.activation_id,
            }
            span = ModelCallSpan(
                self._outside.tracer,
                ledger.traceparent,
                route.protocol.provider_name,
                upstream.address,
                attributes,
            )
        elif ledger is not None:
            ledger.other_requests += 1
        return Passing(
            protocol=route.protocol,
            upstream=upstream,
            transport=self._outside.transport,
            method=request.method,
            target=request.target,
            headers=request.headers.raw_items(),
            with_key=route is not Route.HELLO,
            ledger=ledger if route.calls_a_model else None,
            span=span,
        )

    def end_passing(self, passing: Passing, client_gone: bool) -> None:
        """The request is over, one way or another."""
        ledger = passing.ledger
        if ledger is None:
            return
        ledger.in_flight -= 1
        if client_gone:
            ledger.client_cuts += 1
        if ledger.in_flight == 0:
            ledger.idle.set()

    def key_seen(self, slot: Slot | None) -> None:
        """The upstream echoed the provider's key; its response was cut."""
        self._record(IncidentKind.KEY_IN_RESPONSE, slot, Caller(is_checked=False))

    # Connections

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= self._limits.connections_max:
            writer.transport.abort()
            return
        connection = ClientConnection(reader, writer, self, self._caller_of(writer), self._limits)
        self._connections[task] = connection
        try:
            await connection.serve()
        except asyncio.CancelledError:
            # Only `close` cancels it, and waits for it. The callback that asyncio puts on this task (3.11) would
            # report a cancelled one as a fault.
            pass
        finally:
            del self._connections[task]

    def _caller_of(self, writer: asyncio.StreamWriter) -> asyncio.Future[Caller]:
        """Starts the look-up as the connection is accepted, so that it runs beside the reading of the request."""
        loop = asyncio.get_running_loop()
        client = address_of(writer.get_extra_info("peername"))
        ours = address_of(writer.get_extra_info("sockname"))
        if self.container_pid is None or client is None or ours is None:
            known: asyncio.Future[Caller] = loop.create_future()
            known.set_result(Caller(is_checked=self.container_pid is not None))
            return known
        pid, lookup = self.container_pid, self._outside.lookup
        return loop.run_in_executor(
            self._outside.threads, lambda: Caller(is_checked=True, uid=lookup(pid, client, ours))
        )

    def _book(self, slot: str) -> _SlotBook:
        self.slots.get(slot)
        return self._books[slot]

    def _record(self, kind: IncidentKind, slot: Slot | None, caller: Caller) -> None:
        book = self._books.get(slot.name) if slot is not None else None
        incident = Incident(
            sandbox_id=self.sandbox_id,
            kind=kind,
            slot=slot.name if slot is not None else None,
            activation_id=book.active.activation_id if book is not None and book.active is not None else None,
            expected_uid=slot.uid if slot is not None else None,
            observed_uid=caller.uid,
        )
        self.incidents.append(incident)
        self._outside.on_incident(incident)
