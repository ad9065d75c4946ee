"""Calls to host agents: the stream that carries one activation's work, and the reading of a journalled tap."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import TypeAlias

import grpc
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind

from runner.adapters.peer_errors import errors_of_host
from runner.core.errors import HostUnavailableError
from standfast.host.v1 import host_agent_pb2 as host_pb
from standfast.host.v1.host_agent_pb2_grpc import HostAgentServiceStub
from standfast_chassis import span_names
from standfast_chassis.grpc_channel import open_channel
from standfast_chassis.limits import CHUNK_MAX_BYTES
from standfast_chassis.trace_context import current_traceparent
from standfast_chassis.tracing import Tracing

CHANNELS_MAX = 64
_ATTACH = "standfast.host.v1.HostAgentService/Attach"

AttachCall: TypeAlias = "grpc.aio.StreamStreamCall[host_pb.AttachRequest, host_pb.AttachResponse]"


class AttachSession:
    """One activation's stream. It is the work: when it is closed, the host agent interrupts and frees the slot."""

    def __init__(self, call: AttachCall, address: str, span: Span | None, *, write_timeout_s: float) -> None:
        self.address = address
        self._call = call
        self._span = span
        self._write_timeout_s = write_timeout_s
        self._write_lock = asyncio.Lock()

    async def messages(self) -> AsyncIterator[host_pb.AttachResponse]:
        """What the host agent says, to the stream's end. Raises the runner's errors."""
        try:
            with errors_of_host(self.address):
                async for message in self._call:
                    yield message
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Not we were cancelled but the call, by `close`: for the reader that is an end of the stream.
            raise HostUnavailableError(
                f"The stream to the host agent at {self.address} was closed on this side.", {"address": self.address}
            ) from None

    async def open(self, activation_token: str) -> None:
        await self._write(host_pb.AttachRequest(open=host_pb.AttachOpen(activation_token=activation_token)))

    async def send_admission(self, admission_jws: str) -> None:
        await self._write(host_pb.AttachRequest(admission_jws=admission_jws))

    async def send_frame(self, frame: bytes) -> None:
        """One line with its line end, a long one in pieces: the host agent joins them up to the line end."""
        async with self._write_lock:
            for start in range(0, len(frame), CHUNK_MAX_BYTES):
                await self._write_now(host_pb.AttachRequest(frame=frame[start : start + CHUNK_MAX_BYTES]))

    async def interrupt(self, cause: str, frame: bytes) -> None:
        """`cause`: CANCEL, TIMEOUT or UNANSWERED_QUESTION."""
        await self._write(host_pb.AttachRequest(interrupt=host_pb.AttachInterrupt(cause=cause, frame=frame)))

    def close(self) -> None:
        """Ends the stream at once. May be called again."""
        self._call.cancel()
        if self._span is not None:
            self._span.end()
            self._span = None

    async def _write(self, request: host_pb.AttachRequest) -> None:
        async with self._write_lock:
            await self._write_now(request)

    async def _write_now(self, request: host_pb.AttachRequest) -> None:
        try:
            with errors_of_host(self.address):
                async with asyncio.timeout(self._write_timeout_s):
                    await self._call.write(request)
        except (TimeoutError, asyncio.InvalidStateError, grpc.aio.UsageError) as error:
            # Nothing more can be said on it, so it is over; the stream's reader learns how.
            self._call.cancel()
            raise HostUnavailableError(
                f"The stream to the host agent at {self.address} takes nothing more ({type(error).__name__}).",
                {"address": self.address},
            ) from error


class HostClients:
    """Channels to the host agents, made when they are needed and closed when too many are open."""

    def __init__(self, tracing: Tracing | None, *, write_timeout_s: float = 30.0) -> None:
        self._tracing = tracing
        self._write_timeout_s = write_timeout_s
        self._channels: OrderedDict[str, grpc.aio.Channel] = OrderedDict()
        self._in_use: dict[str, int] = {}

    async def close(self) -> None:
        channels = list(self._channels.values())
        self._channels.clear()
        for channel in channels:
            await channel.close(None)

    async def attach(self, address: str) -> AttachSession:
        """Opens the stream; nothing is said on it yet. Call `release` when it is over."""
        channel = await self._channel(address)
        self._in_use[address] = self._in_use.get(address, 0) + 1
        span = None
        metadata: tuple[tuple[str, str], ...] = ()
        if self._tracing is not None:
            attributes = {span_names.RPC_SYSTEM_NAME: "grpc", span_names.RPC_METHOD: _ATTACH}
            span = self._tracing.start_span(_ATTACH, attributes, kind=SpanKind.CLIENT)
            with trace.use_span(span):
                metadata = _trace_metadata()
        call = HostAgentServiceStub(channel).Attach(metadata=metadata)
        return AttachSession(call, address, span, write_timeout_s=self._write_timeout_s)

    def release(self, address: str) -> None:
        self._in_use[address] = max(0, self._in_use.get(address, 0) - 1)

    async def read_tap(self, address: str, activation_id: str, *, timeout_s: float) -> AsyncIterator[tuple[int, bytes]]:
        """Offset and bytes, in order, from the activation's own first byte."""
        channel = await self._channel(address)
        self._in_use[address] = self._in_use.get(address, 0) + 1
        try:
            with errors_of_host(address):
                request = host_pb.ReadTapRequest(activation_id=activation_id)
                call = HostAgentServiceStub(channel).ReadTap(request, timeout=timeout_s, metadata=_trace_metadata())
                try:
                    async for piece in call:
                        yield piece.offset, piece.data
                finally:
                    call.cancel()
        finally:
            self.release(address)

    async def _channel(self, address: str) -> grpc.aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            # Without interceptors: grpc's own of a call that both sides write break its cancel, and a cancel is how
            # the end of the work is told. The trace goes along by hand.
            channel = open_channel(address)
            self._channels[address] = channel
        self._channels.move_to_end(address)
        idle = [other for other in self._channels if not self._in_use.get(other) and other != address]
        if len(self._channels) > CHANNELS_MAX and idle:
            await self._channels.pop(idle[0]).close(None)
        return channel


def _trace_metadata() -> tuple[tuple[str, str], ...]:
    traceparent = current_traceparent()
    return (("traceparent", traceparent),) if traceparent is not None else ()
