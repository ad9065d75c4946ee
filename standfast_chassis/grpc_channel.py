"""Channels to other Standfast processes: sizes, keepalive, quick reconnects, traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import grpc

from standfast_chassis.limits import GRPC_ANSWER_MAX_BYTES, GRPC_MESSAGE_MAX_BYTES
from standfast_chassis.trace_interceptors import client_interceptors
from standfast_chassis.tracing import Tracing

C = TypeVar("C", bound=grpc.aio.RpcContext)

KEEPALIVE_INTERVAL_S = 20
KEEPALIVE_TIMEOUT_S = 10


def open_channel(
    address: str,
    *,
    tracing: Tracing | None = None,
    credentials: grpc.ChannelCredentials | None = None,
    interceptors: Sequence[grpc.aio.ClientInterceptor] = (),
    keepalive_interval_s: float = KEEPALIVE_INTERVAL_S,
    keepalive_timeout_s: float = KEEPALIVE_TIMEOUT_S,
) -> grpc.aio.Channel:
    """A channel to `host:port` or `unix:/path`; make it inside the running loop, close it with `await
    channel.close()` (it is an async context manager). Without `credentials`: plain text, for loopback and unix sockets.

    Use every streaming call inside cancelled_on_exit().
    """
    options: list[tuple[str, str | int]] = [
        ("grpc.max_receive_message_length", GRPC_ANSWER_MAX_BYTES),
        ("grpc.max_send_message_length", GRPC_MESSAGE_MAX_BYTES),
        ("grpc.keepalive_time_ms", int(keepalive_interval_s * 1000)),
        ("grpc.keepalive_timeout_ms", int(keepalive_timeout_s * 1000)),
        ("grpc.keepalive_permit_without_calls", 0),
        ("grpc.http2.max_pings_without_data", 0),
        # A restarted neighbour is found again at once, not after gRPC's default of up to two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2000),
        # Nothing is sent twice behind our back; retries are ours, and by request id.
        ("grpc.enable_retries", 0),
        # Neighbours are dialled directly; a proxy variable meant for the provider must not catch them.
        ("grpc.enable_http_proxy", 0),
        # Two channels of one process (a test, the reverse probe) must not share a connection.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    all_interceptors = [*(client_interceptors(tracing) if tracing is not None else ()), *interceptors]
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=options, interceptors=all_interceptors)
    return grpc.aio.secure_channel(address, credentials, options=options, interceptors=all_interceptors)


@contextmanager
def cancelled_on_exit(call: C) -> Iterator[C]:
    """`with cancelled_on_exit(stub.WatchTurn(request)) as call: async for event in call: ...`

    However the block ends, the call is over on both sides. Without it a call object that is merely dropped goes on
    (its handler runs until the server stops), and so does one whose task is cancelled just when its request has been
    sent: grpc 1.85 forwards a task's cancellation only from some of its awaits.
    """
    try:
        yield call
    finally:
        call.cancel()
