"""A gRPC server of a Standfast process: sizes, health, reflection, status mapping, traces, and an orderly end.

server = GrpcServer(tracing=tracing, codes=status.CODES)
add_RunnerServiceServicer_to_server(service, server.grpc)
port = server.listen("127.0.0.1:7400")
await server.start(["standfast.runner.v1.RunnerService"])
await serve_until_signal(server)
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from standfast_chassis.error_interceptor import ErrorInterceptor
from standfast_chassis.errors import AddressInUseError
from standfast_chassis.limits import GRPC_ANSWER_MAX_BYTES, GRPC_MESSAGE_MAX_BYTES
from standfast_chassis.trace_interceptors import TraceServerInterceptor
from standfast_chassis.tracing import Tracing

_log = structlog.get_logger("standfast.server")

_HEALTH = "grpc.health.v1.Health"
# How often a client's keepalive may ping, and that it may: the channels of this package ping every 20 s.
_PING_INTERVAL_MIN_MS = 5_000


class GrpcServer:
    """Make it inside the running loop. `grpc` is the server to add servicers to.

    `codes`: reason → code of this process. `interceptors`: stand between the trace's and the errors', so they see the
    final status and run inside the span. `stop_grace_s`: how long running calls may go on when it stops.
    """

    def __init__(
        self,
        *,
        codes: Mapping[str, grpc.StatusCode],
        tracing: Tracing | None = None,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
        stop_grace_s: float = 5.0,
        concurrent_calls_max: int | None = None,
    ) -> None:
        self.stop_grace_s = stop_grace_s
        outer = [TraceServerInterceptor(tracing)] if tracing is not None else []
        self.grpc = grpc.aio.server(
            interceptors=[*outer, *interceptors, ErrorInterceptor(codes)],
            options=[
                # Two processes on one port would share its calls between them, silently.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", GRPC_MESSAGE_MAX_BYTES),
                ("grpc.max_send_message_length", GRPC_ANSWER_MAX_BYTES),
                ("grpc.keepalive_time_ms", 20_000),
                ("grpc.keepalive_timeout_ms", 10_000),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", _PING_INTERVAL_MIN_MS),
                ("grpc.http2.max_ping_strikes", 0),
            ],
            maximum_concurrent_rpcs=concurrent_calls_max,
        )
        self.health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self.grpc)
        self._services: list[str] = []
        self._is_started = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def listen(self, address: str, credentials: grpc.ServerCredentials | None = None) -> int:
        """Binds `host:port` (port 0: any) or `unix:/path`; returns the port (no meaning for unix).

        Raises AddressInUseError when it cannot.
        """
        try:
            if credentials is not None:
                return self.grpc.add_secure_port(address, credentials)
            return self.grpc.add_insecure_port(address)
        except RuntimeError as error:
            raise self._cannot_listen(address) from error

    async def start(self, services: Sequence[str], *, is_ready: bool = True) -> None:
        """`services`: full names, for reflection and health. `is_ready` false: health says NOT_SERVING for now."""
        self._services = ["", *services]
        reflection.enable_server_reflection([*services, _HEALTH, reflection.SERVICE_NAME], self.grpc)
        await self.set_ready(is_ready)
        await self.grpc.start()
        self._is_started = True

    async def set_ready(self, is_ready: bool) -> None:
        """What the health service says of this process and each of its services."""
        kinds = health_pb2.HealthCheckResponse
        for service in self._services:
            await self.health.set(service, kinds.SERVING if is_ready else kinds.NOT_SERVING)

    async def stop(self, grace_s: float | None = None) -> None:
        """Takes no new calls, lets running ones go on for the grace, then cancels them. May be called again, also
        with a shorter grace while it is stopping.
        """
        grace_s = self.stop_grace_s if grace_s is None else grace_s
        if not self._is_started:
            await self.grpc.stop(0)
            return
        await self.health.enter_graceful_shutdown()
        await self.grpc.stop(grace_s)

    def _cannot_listen(self, address: str) -> AddressInUseError:
        return AddressInUseError(
            f"Cannot listen on {address}: the port is in use, or the address is not one of this machine, or this "
            "user may not bind it. Stop the process that holds it, or choose another address.",
            {"address": address},
        )


async def serve_until_signal(
    server: GrpcServer,
    *,
    before_stop: Callable[[], Awaitable[None]] | None = None,
    until: asyncio.Event | None = None,
    hurried_grace_s: float = 0.0,
) -> None:
    """Waits for SIGTERM or SIGINT (or `until`), then runs `before_stop`, and stops the server. A second signal
    cancels `before_stop` and cuts the grace to `hurried_grace_s`. Everything is bounded by the server's grace, but for
    `before_stop`, which must bound itself.
    """
    loop = asyncio.get_running_loop()
    stopping = until or asyncio.Event()
    hurried = asyncio.Event()

    def on_signal(number: signal.Signals) -> None:
        if stopping.is_set():
            _log.warning("second signal: stopping at once", signal=number.name)
            hurried.set()
        else:
            _log.info("stopping", signal=number.name, grace_s=server.stop_grace_s)
            stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    try:
        await stopping.wait()
        await server.set_ready(False)
        orderly = loop.create_task(_stop_in_order(server, before_stop))
        hurry = loop.create_task(hurried.wait())
        try:
            await asyncio.wait({orderly, hurry}, return_when=asyncio.FIRST_COMPLETED)
            if not orderly.done():
                orderly.cancel()
                await server.stop(hurried_grace_s)
            await asyncio.wait({orderly})
            if not orderly.cancelled():
                orderly.result()
        finally:
            hurry.cancel()
            orderly.cancel()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def _stop_in_order(server: GrpcServer, before_stop: Callable[[], Awaitable[None]] | None) -> None:
    if before_stop is not None:
        await before_stop()
    await server.stop()
