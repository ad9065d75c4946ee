"""The server and the channel: readiness, ports, sizes, the orderly end, and child processes beside a channel."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from standfast_chassis.errors import AddressInUseError
from standfast_chassis.grpc_channel import open_channel
from standfast_chassis.grpc_server import GrpcServer
from standfast_chassis.limits import CHUNK_MAX_BYTES, GRPC_MESSAGE_MAX_BYTES, MESSAGE_MAX_BYTES

REPOSITORY = Path(__file__).parents[2]


async def _echo(request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
    return request


def _add_echo(server: GrpcServer) -> None:
    handler: Any = grpc.unary_unary_rpc_method_handler(_echo)
    server.grpc.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Echo", {"Call": handler})])


def unary(channel: grpc.aio.Channel, method: str) -> Any:
    return channel.unary_unary(method)


@asynccontextmanager
async def served() -> AsyncIterator[tuple[GrpcServer, grpc.aio.Channel, int]]:
    async with GrpcServer(codes={}, stop_grace_s=0.2) as server:
        _add_echo(server)
        port = server.listen("127.0.0.1:0")
        await server.start(["test.Echo"], is_ready=False)
        async with open_channel(f"127.0.0.1:{port}") as channel:
            yield server, channel, port


async def _health(channel: grpc.aio.Channel, service: str) -> str:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


async def test_health_follows_readiness() -> None:
    async with served() as (server, channel, _):
        assert await _health(channel, "") == "NOT_SERVING"
        await server.set_ready(True)
        assert [await _health(channel, name) for name in ("", "test.Echo")] == ["SERVING", "SERVING"]
        await server.set_ready(False)
        assert await _health(channel, "test.Echo") == "NOT_SERVING"


async def test_reflection_lists_the_services() -> None:
    async with served() as (_, channel, _port):
        make_stub: Any = reflection_pb2_grpc.ServerReflectionStub
        call = make_stub(channel).ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="*")])
        )
        answer = await call.read()
        call.cancel()
        names = {service.name for service in answer.list_services_response.service}
        assert {"test.Echo", "grpc.health.v1.Health"} <= names


async def test_a_port_in_use_is_refused_and_not_shared() -> None:
    async with served() as (_, _channel, port), GrpcServer(codes={}) as second:
        with pytest.raises(AddressInUseError) as caught:
            second.listen(f"127.0.0.1:{port}")
        assert caught.value.metadata == {"address": f"127.0.0.1:{port}"}


async def test_a_unix_socket_serves(tmp_path: Path) -> None:
    async with GrpcServer(codes={}) as server:
        _add_echo(server)
        server.listen(f"unix:{tmp_path}/s")
        await server.start([])
        async with open_channel(f"unix:{tmp_path}/s") as channel:
            assert await unary(channel, "/test.Echo/Call")(b"x", timeout=5) == b"x"


async def test_a_message_of_the_full_size_passes_and_a_larger_one_is_refused() -> None:
    assert CHUNK_MAX_BYTES < MESSAGE_MAX_BYTES < GRPC_MESSAGE_MAX_BYTES
    async with served() as (_, channel, _port):
        echo: Any = channel.unary_unary("/test.Echo/Call")
        assert len(await echo(b"x" * (MESSAGE_MAX_BYTES + 1000), timeout=20)) == MESSAGE_MAX_BYTES + 1000
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await echo(b"x" * (GRPC_MESSAGE_MAX_BYTES + 1), timeout=20)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_an_answer_may_be_as_long_as_what_a_cli_may_print_in_a_turn() -> None:
    async with GrpcServer(codes={}) as server:

        async def lengthen(request: bytes, context: object) -> bytes:
            return b"x" * int(request)

        handler = grpc.unary_unary_rpc_method_handler(lengthen)
        server.grpc.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Long", {"Call": handler}),))
        port = server.listen("127.0.0.1:0")
        await server.start([])
        async with open_channel(f"127.0.0.1:{port}") as channel:
            call: Any = channel.unary_unary("/test.Long/Call")
            assert len(await call(b"%d" % (64 * 1024 * 1024), timeout=60)) == 64 * 1024 * 1024


async def test_a_restarted_server_is_found_again_soon() -> None:
    async with GrpcServer(codes={}) as first:
        _add_echo(first)
        port = first.listen("127.0.0.1:0")
        await first.start([])
        async with open_channel(f"127.0.0.1:{port}") as channel:
            echo: Any = channel.unary_unary("/test.Echo/Call")
            assert await echo(b"1", timeout=5) == b"1"
            await first.stop(0)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await echo(b"2", timeout=5)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            async with GrpcServer(codes={}) as second:
                _add_echo(second)
                assert second.listen(f"127.0.0.1:{port}") == port
                await second.start([])
                assert await echo(b"3", timeout=10, wait_for_ready=True) == b"3"


async def test_stop_may_be_called_again_and_before_start() -> None:
    never_started = GrpcServer(codes={})
    await never_started.stop()
    async with served() as (server, _, _port):
        async with asyncio.timeout(10):
            await asyncio.gather(server.stop(), server.stop(0))
            await server.stop()


_PROCESS = """
import asyncio, sys, grpc
from standfast_chassis.logs import configure_logs
from standfast_chassis.secret_mask import SecretMask
from standfast_chassis.grpc_server import GrpcServer, serve_until_signal

async def slow(request, context):
    print("call", flush=True)
    await asyncio.sleep(float(request))
    return b"finished"

async def before_stop():
    print("before_stop", flush=True)
    await asyncio.sleep(float(sys.argv[1]))
    print("before_stop done", flush=True)

async def main():
    configure_logs("slow", SecretMask())
    async with GrpcServer(codes={}, stop_grace_s=30) as server:
        handler = grpc.unary_unary_rpc_method_handler(slow)
        server.grpc.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Slow", {"Call": handler})])
        print(server.listen("127.0.0.1:0"), flush=True)
        await server.start(["test.Slow"])
        await serve_until_signal(server, before_stop=before_stop)
    print("end", flush=True)

asyncio.run(main())
"""


@asynccontextmanager
async def a_process(before_stop_s: float) -> AsyncIterator[tuple[asyncio.subprocess.Process, Any, int]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _PROCESS,
        str(before_stop_s),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=REPOSITORY,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            port = int(await process.stdout.readline())
            yield process, process.stdout, port
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_running_calls_finish(number: signal.Signals) -> None:
    async with a_process(0) as (process, out, port), open_channel(f"127.0.0.1:{port}") as channel:
        call: Any = unary(channel, "/test.Slow/Call")(b"0.5", timeout=20)
        assert await out.readline() == b"call\n"
        process.send_signal(number)
        assert await call == b"finished"
        rest = (await out.read()).decode().split("\n")
        assert rest == ["before_stop", "before_stop done", "end", ""]
        assert await process.wait() == 0
        assert process.stderr is not None
        assert "Event loop is closed" not in (await process.stderr.read()).decode()


async def test_a_second_signal_stops_at_once() -> None:
    async with a_process(60) as (process, out, port), open_channel(f"127.0.0.1:{port}") as channel:
        call: Any = unary(channel, "/test.Slow/Call")(b"60", timeout=70)
        assert await out.readline() == b"call\n"
        process.send_signal(signal.SIGTERM)
        assert await out.readline() == b"before_stop\n"
        process.send_signal(signal.SIGTERM)
        assert (await out.read()).decode() == "end\n"
        assert await process.wait() == 0
        assert await call.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


@pytest.mark.timeout(120)
async def test_children_started_beside_a_channel_all_return_and_no_call_fails() -> None:
    """Case rpc-child-process-after-channel, in a process of its own, as in the runner and the manager."""
    steps = json.loads((REPOSITORY / "tests/cases/inputs/rpc-child-process-after-channel.json").read_text())["steps"]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.wire.chassis_children",
        json.dumps(steps),
        stdout=asyncio.subprocess.PIPE,
        cwd=REPOSITORY,
    )
    try:
        async with asyncio.timeout(100):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    found = json.loads(out)
    assert process.returncode == 0
    assert found["children"] == found["children_with_code_0"] == 200
    assert found["children_took_s"] < 60
    assert found["calls_failed"] == 0
    assert found["calls_answered"] > 50
    assert found["pool_start_method"] == "spawn"
    assert found["pool_answers"] == 8
    assert found["forks_without_exec"] == 0
    assert found["fork_support"] == "false"
