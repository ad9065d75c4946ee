"""Every ending of a call, over a real connection: its status, its reason, and the spans of both sides."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from standfast_chassis import logs, rpc_status
from standfast_chassis.errors import StandfastError
from standfast_chassis.grpc_channel import cancelled_on_exit, open_channel
from standfast_chassis.grpc_server import GrpcServer
from standfast_chassis.secret_mask import SecretMask
from standfast_chassis.trace_context import current_trace_id, current_traceparent
from standfast_chassis.tracing import Tracing, configure_tracing

SECRET = "sk-test-0000-not-a-real-key"


class RefusedError(StandfastError):
    reason = "TEST_REFUSED"


class UnlistedError(StandfastError):
    reason = "TEST_UNLISTED"


CODES = {"TEST_REFUSED": grpc.StatusCode.FAILED_PRECONDITION}


@dataclass
class Facts:
    """What the handlers saw. `cancelled`: set when a handler was cancelled."""

    started: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    traceparents: list[str | None] = field(default_factory=list)
    trace_ids: list[str | None] = field(default_factory=list)


class Endings:
    """One way to end for each word that a request may be."""

    def __init__(self) -> None:
        self.facts = Facts()

    async def end(self, how: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self.facts.traceparents.append(current_traceparent())
        self.facts.trace_ids.append(current_trace_id())
        self.facts.started.set()
        match how:
            case b"ok":
                return
            case b"refused":
                raise RefusedError("The door is closed: expected open.", {"door": "front", "tries": 3})
            case b"unlisted":
                raise UnlistedError("nobody gave this a code")
            case b"crash":
                raise RuntimeError(f"inner text with {SECRET}")
            case b"abort":
                await context.abort(grpc.StatusCode.NOT_FOUND, "not here")
            case b"set_code":
                context.set_code(grpc.StatusCode.ALREADY_EXISTS)
            case b"hang":
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    self.facts.cancelled.set()
                    raise

    async def unary(self, request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        await self.end(request, context)
        return b"done"

    async def yields(self, request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[bytes]:
        yield b"1"
        await self.end(request, context)
        yield b"2"

    async def writes(self, request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await context.write(b"1")
        await self.end(request, context)
        await context.write(b"2")

    async def client_stream(self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        last = b""
        async for request in requests:
            last = request
        await self.end(last, context)
        return b"done"

    async def both(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[bytes]:
        async for request in requests:
            yield b"1"
            await self.end(request, context)
            yield b"2"


def unary(channel: grpc.aio.Channel, method: str) -> Any:
    return channel.unary_unary(method)


@dataclass
class World:
    server: GrpcServer
    channel: grpc.aio.Channel
    endings: Endings
    exporter: InMemorySpanExporter
    client_tracing: Tracing
    server_tracing: Tracing
    log: io.StringIO

    def unary(self) -> Any:
        return self.channel.unary_unary("/test.Endings/Unary")

    def stream(self, name: str = "Yields") -> Any:
        return self.channel.unary_stream(f"/test.Endings/{name}")

    async def spans(self, method: str) -> tuple[ReadableSpan, ReadableSpan]:
        """(server's, client's), once both have ended."""
        async with asyncio.timeout(10):
            while True:
                found = [span for span in self.exporter.get_finished_spans() if span.name == f"test.Endings/{method}"]
                kinds = {span.kind.name: span for span in found}
                if len(found) == 2:
                    return kinds["SERVER"], kinds["CLIENT"]
                await asyncio.sleep(0.01)

    def log_lines(self) -> list[dict[str, Any]]:
        """Ours: an exporter of another test's tracing may still be reporting its dead backend."""
        lines = [json.loads(line) for line in self.log.getvalue().splitlines()]
        return [line for line in lines if line["logger"].startswith("standfast")]


@asynccontextmanager
async def opened() -> AsyncIterator[World]:
    log = io.StringIO()
    mask = SecretMask()
    mask.register(SECRET, "PROVIDER_KEY")
    logs.configure_logs("test", mask, stream=log, pretty=False)
    exporter = InMemorySpanExporter()
    server_tracing = configure_tracing("server", exporter=exporter)
    client_tracing = configure_tracing("client", exporter=exporter)
    endings = Endings()
    server = GrpcServer(codes=CODES, tracing=server_tracing, stop_grace_s=0.2)
    server.grpc.add_generic_rpc_handlers(
        [
            grpc.method_handlers_generic_handler(
                "test.Endings",
                {
                    "Unary": grpc.unary_unary_rpc_method_handler(endings.unary),
                    "Yields": grpc.unary_stream_rpc_method_handler(endings.yields),
                    "Writes": grpc.unary_stream_rpc_method_handler(endings.writes),
                    "ClientStream": grpc.stream_unary_rpc_method_handler(endings.client_stream),
                    "Both": grpc.stream_stream_rpc_method_handler(endings.both),
                },
            )
        ]
    )
    port = server.listen("127.0.0.1:0")
    await server.start(["test.Endings"])
    channel = open_channel(f"127.0.0.1:{port}", tracing=client_tracing)
    try:
        yield World(server, channel, endings, exporter, client_tracing, server_tracing, log)
    finally:
        await channel.close()
        await server.stop(0)
        await client_tracing.shutdown()
        await server_tracing.shutdown()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with opened() as made:
        yield made


# What a call does: its method, and how to make it with a request and a deadline.
Call = Callable[[World, bytes, float | None], Awaitable[Any]]


async def _unary(world: World, how: bytes, timeout_s: float | None) -> Any:
    return await world.unary()(how, timeout=timeout_s)


async def _yields(world: World, how: bytes, timeout_s: float | None) -> Any:
    with cancelled_on_exit(world.stream("Yields")(how, timeout=timeout_s)) as call:
        return [message async for message in call]


async def _writes(world: World, how: bytes, timeout_s: float | None) -> Any:
    with cancelled_on_exit(world.stream("Writes")(how, timeout=timeout_s)) as call:
        return [message async for message in call]


async def _client_stream(world: World, how: bytes, timeout_s: float | None) -> Any:
    method: Any = world.channel.stream_unary("/test.Endings/ClientStream")
    with cancelled_on_exit(method(iter([b"ok", how]), timeout=timeout_s)) as call:
        return await call


async def _both(world: World, how: bytes, timeout_s: float | None) -> Any:
    made: Any = world.channel.stream_stream("/test.Endings/Both")(timeout=timeout_s)
    with cancelled_on_exit(made) as call:
        await call.write(how)
        await call.done_writing()
        return [message async for message in call]


CALLS = {
    "Unary": (_unary, b"done"),
    "Yields": (_yields, [b"1", b"2"]),
    "Writes": (_writes, [b"1", b"2"]),
    "ClientStream": (_client_stream, b"done"),
    "Both": (_both, [b"1", b"2"]),
}
every_kind = pytest.mark.parametrize("method", list(CALLS))


def status_of(span: ReadableSpan) -> tuple[object, str, object]:
    assert span.attributes is not None
    return (
        span.attributes["rpc.response.status_code"],
        span.status.status_code.name,
        span.attributes.get("error.type"),
    )


@every_kind
async def test_an_answer_gives_two_ok_spans_of_one_trace(world: World, method: str) -> None:
    make, expected = CALLS[method]
    with world.client_tracing.span("turn") as turn:
        assert await make(world, b"ok", None) == expected
    server, client = await world.spans(method)
    assert status_of(server) == status_of(client) == ("OK", "UNSET", None)
    assert client.parent is not None
    assert client.parent.span_id == turn.get_span_context().span_id
    assert server.parent is not None
    assert client.context is not None
    assert server.context is not None
    assert server.parent.span_id == client.context.span_id
    # The handler itself ran inside the server's span.
    trace_id = f"{turn.get_span_context().trace_id:032x}"
    assert set(world.endings.facts.trace_ids) == {trace_id}
    traceparent = world.endings.facts.traceparents[-1]
    assert traceparent is not None
    assert traceparent.startswith(f"00-{trace_id}-{server.context.span_id:016x}-")
    assert server.attributes is not None
    assert (server.attributes["rpc.system.name"], server.attributes["rpc.method"]) == ("grpc", f"test.Endings/{method}")


@every_kind
async def test_a_domain_error_arrives_with_code_reason_and_metadata(world: World, method: str) -> None:
    make, _ = CALLS[method]
    with pytest.raises(rpc_status.RemoteError) as caught, rpc_status.remote_errors():
        await make(world, b"refused", None)
    error = caught.value
    assert (error.code, error.reason, error.has_error_info) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "TEST_REFUSED",
        True,
    )
    assert error.metadata == {"door": "front", "tries": "3"}
    assert error.message == "The door is closed: expected open."
    server, client = await world.spans(method)
    assert status_of(server) == ("FAILED_PRECONDITION", "UNSET", "FAILED_PRECONDITION")
    assert status_of(client) == ("FAILED_PRECONDITION", "ERROR", "FAILED_PRECONDITION")
    assert world.log_lines() == []


@every_kind
@pytest.mark.parametrize("how", [b"crash", b"unlisted"])
async def test_an_unforeseen_error_is_logged_once_and_its_text_stays_inside(
    world: World, method: str, how: bytes
) -> None:
    make, _ = CALLS[method]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await make(world, how, None)
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    info = rpc_status.error_info(caught.value)
    assert info is not None
    assert (info.reason, info.domain) == ("INTERNAL", "standfast")
    text = f"{caught.value.details()} {info} {caught.value.trailing_metadata()}"
    assert "inner text" not in text
    assert "nobody gave" not in text
    server, client = await world.spans(method)
    assert status_of(server) == status_of(client) == ("INTERNAL", "ERROR", "INTERNAL")
    assert server.events == ()
    lines = [line for line in world.log_lines() if line["level"] == "error"]
    assert len(lines) == 1
    assert lines[0]["method"] == f"/test.Endings/{method}"
    assert lines[0]["trace_id"] == info.metadata["trace_id"]
    assert "Traceback" in lines[0]["exception"]
    assert SECRET not in world.log.getvalue()
    assert how != b"crash" or "[masked:PROVIDER_KEY]" in lines[0]["exception"]


@every_kind
async def test_an_abort_by_the_handler_passes_through(world: World, method: str) -> None:
    make, _ = CALLS[method]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await make(world, b"abort", None)
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.NOT_FOUND, "not here")
    assert rpc_status.error_info(caught.value) is None
    assert rpc_status.remote_error(caught.value).reason == "NOT_FOUND"
    server, client = await world.spans(method)
    assert status_of(server)[0] == status_of(client)[0] == "NOT_FOUND"


@every_kind
async def test_a_code_that_the_handler_set_is_the_spans_code(world: World, method: str) -> None:
    make, _ = CALLS[method]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await make(world, b"set_code", None)
    assert caught.value.code() is grpc.StatusCode.ALREADY_EXISTS
    server, client = await world.spans(method)
    assert status_of(server)[0] == status_of(client)[0] == "ALREADY_EXISTS"


@every_kind
async def test_a_passed_deadline_is_not_a_cancel(world: World, method: str) -> None:
    make, _ = CALLS[method]
    async with asyncio.timeout(10):
        await world.channel.channel_ready()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await make(world, b"hang", 0.3)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    server, client = await world.spans(method)
    assert status_of(server) == status_of(client) == ("DEADLINE_EXCEEDED", "ERROR", "DEADLINE_EXCEEDED")
    async with asyncio.timeout(5):
        await world.endings.facts.cancelled.wait()


@every_kind
async def test_a_clients_cancel_ends_the_handler_and_both_spans(world: World, method: str) -> None:
    make, _ = CALLS[method]
    task = asyncio.ensure_future(make(world, b"hang", None))
    async with asyncio.timeout(5):
        await world.endings.facts.started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(5):
        await world.endings.facts.cancelled.wait()
    server, client = await world.spans(method)
    assert status_of(server)[0] == status_of(client)[0] == "CANCELLED"
    assert status_of(server)[1] == "UNSET"


@pytest.mark.parametrize("name", ["Yields", "Writes"])
async def test_leaving_the_loop_early_ends_the_handler_and_both_spans(world: World, name: str) -> None:
    with cancelled_on_exit(world.stream(name)(b"hang")) as call:
        async for message in call:
            assert message == b"1"
            async with asyncio.timeout(5):
                await world.endings.facts.started.wait()
            break
    async with asyncio.timeout(5):
        await world.endings.facts.cancelled.wait()
    server, client = await world.spans(name)
    assert status_of(server)[0] == status_of(client)[0] == "CANCELLED"


async def test_a_server_that_stops_ends_what_hangs_and_its_span(world: World) -> None:
    call = world.unary()(b"hang")
    await world.endings.facts.started.wait()
    async with asyncio.timeout(5):
        await world.server.stop(0.1)
        code = await call.code()
    assert code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
    server, client = await world.spans("Unary")
    assert status_of(server)[0] == "CANCELLED"
    assert status_of(client)[0] == code.name


async def test_a_server_that_is_not_there_is_unavailable_and_has_no_reason_of_ours() -> None:
    exporter = InMemorySpanExporter()
    tracing = configure_tracing("client", exporter=exporter)
    async with open_channel("127.0.0.1:1", tracing=tracing) as channel:
        with pytest.raises(rpc_status.RemoteError) as caught, rpc_status.remote_errors():
            await unary(channel, "/test.Endings/Unary")(b"ok", timeout=5)
    assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE")
    assert not caught.value.has_error_info
    await tracing.shutdown()
    (span,) = exporter.get_finished_spans()
    assert status_of(span) == ("UNAVAILABLE", "ERROR", "UNAVAILABLE")


async def test_a_long_error_text_is_cut_and_still_arrives(world: World) -> None:
    """gRPC drops a status whose metadata is too large; non-ASCII text grows threefold on the wire."""

    async def verbose(request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        raise RefusedError("ж" * 100_000, {f"key_{n}": "ü" * 5000 for n in range(50)})

    async with GrpcServer(codes=CODES) as server:
        handler: Any = grpc.unary_unary_rpc_method_handler(verbose)
        server.grpc.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Long", {"Call": handler})])
        port = server.listen("127.0.0.1:0")
        await server.start([])
        async with open_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(rpc_status.RemoteError) as caught, rpc_status.remote_errors():
                await unary(channel, "/test.Long/Call")(b"", timeout=5)
    assert caught.value.reason == "TEST_REFUSED"
    assert caught.value.message.startswith("жжж")
    assert caught.value.message.endswith("...")
    assert "key_0" in caught.value.metadata


async def test_many_messages_both_ways_pass_the_interceptors_in_order(world: World) -> None:
    call: Any = world.channel.stream_stream("/test.Endings/Both")()

    async def send() -> None:
        for _ in range(500):
            await call.write(b"ok")
        await call.done_writing()

    async with asyncio.TaskGroup() as group:
        group.create_task(send())
        received = [message async for message in call]
    assert received == [b"1", b"2"] * 500
