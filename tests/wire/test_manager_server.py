"""The manager's process: how it starts, what it refuses to start on, what it says of itself; and what survives `kill -9`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sandbox_manager.core.refusals import ManifestError
from sandbox_manager.policy import ManagerPolicy
from sandbox_manager.server import Manager, run
from sandbox_manager.settings import ManagerSettings
from standfast.sandbox.v1 import sandbox_manager_pb2 as pb
from standfast.types.v1 import types_pb2 as types
from standfast_chassis.errors import AddressInUseError, SettingsError, StateFolderInUseError, StorageFullError
from standfast_chassis.rpc_status import RemoteError, remote_error
from standfast_chassis.tracing import configure_tracing
from tests.fake_host import FakeHost, manifest
from tests.manager_runs import (
    RunnerCalls,
    manager_settings,
    release,
    running_manager,
    until,
    write_manifest,
)

REPO = Path(__file__).parent.parent.parent


class ManagerProcess:
    """`python -m sandbox_manager` in a process of its own, on a fixed port."""

    def __init__(self, folder: Path) -> None:
        write_manifest(folder)
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{found.getsockname()[1]}"
        self._env = {name: value for name, value in os.environ.items() if not name.startswith("STANDFAST_")} | {
            "STANDFAST_STATE": str(folder / "manager"),
            "STANDFAST_MANIFEST": str(folder / "manifest.json"),
            "STANDFAST_LISTEN": self.address,
            "STANDFAST_RECONCILE_S": "0.1",
            "STANDFAST_RELEASE_SHA": release(),
            "PYTHONPATH": f"{REPO}{os.pathsep}{REPO / 'proto'}",
        }
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "sandbox_manager",
            env=self._env,
            cwd=REPO,
            stderr=asyncio.subprocess.PIPE,
        )
        assert self._process.stderr is not None
        async with asyncio.timeout(30):
            while b"serving at" not in (line := await self._process.stderr.readline()):
                assert line, f"the manager ended with {await self._process.wait()}"

    def kill_now(self) -> None:
        """Kills it, without waiting."""
        assert self._process is not None
        self._process.kill()

    async def kill(self) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def end(self) -> int:
        """Stops it in order; its exit code."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            return await self._process.wait()


@asynccontextmanager
async def manager_process(folder: Path) -> AsyncIterator[ManagerProcess]:
    process = ManagerProcess(folder)
    await process.start()
    try:
        yield process
    finally:
        await process.end()


async def test_it_says_that_it_serves_and_what_it_is(tmp_path: Path) -> None:
    async with running_manager(tmp_path) as manager, grpc.aio.insecure_channel(manager.address) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        for service in ("", "standfast.sandbox.v1.SandboxManagerService", "standfast.host.v1.HostRegistryService"):
            answer = await check(health_pb2.HealthCheckRequest(service=service), timeout=5)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reflect = channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        call = reflect(timeout=5)
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        await call.done_writing()
        async for listed in call:
            names = {one.name for one in listed.list_services_response.service}
            assert "standfast.sandbox.v1.SandboxManagerService" in names
            assert "standfast.host.v1.HostRegistryService" in names
        async with RunnerCalls(manager.address) as runner:
            build = (await runner.stub.GetBuildInfo(pb.GetBuildInfoRequest(), timeout=5)).build
            assert (build.component, build.release_sha) == ("manager", release())
            assert build.key_id == manager.parts.key.public.thumbprint


@pytest.mark.parametrize("rpc", ["ForkConversation", "SetAgreements"])
async def test_what_comes_later_says_so(tmp_path: Path, rpc: str) -> None:
    async with running_manager(tmp_path) as manager, RunnerCalls(manager.address) as runner:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await getattr(runner.stub, rpc)(getattr(pb, f"{rpc}Request")(), timeout=5)
        assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert remote_error(error.value).reason == "CAPABILITY_NOT_BUILT"


async def test_a_port_in_use_is_an_error_and_leaves_the_state_folder_free(tmp_path: Path) -> None:
    async with running_manager(tmp_path) as manager:
        other = tmp_path / "other"
        other.mkdir()
        with pytest.raises(AddressInUseError, match=manager.address):
            async with running_manager(other, listen=manager.address):
                pytest.fail("a second manager on one address")
        assert not (other / "manager" / "manager.sqlite").exists()
        async with running_manager(other) as second:
            assert second.address != manager.address


async def test_a_second_manager_on_one_state_folder_is_refused(tmp_path: Path) -> None:
    async with running_manager(tmp_path):
        with pytest.raises(StateFolderInUseError) as error:
            async with running_manager(tmp_path):
                pytest.fail("a second manager on one state folder")
        assert error.value.metadata["holder_pid"] == str(os.getpid())


@pytest.mark.parametrize(
    ("content", "found"),
    [(None, "no such file"), ("{", "not JSON"), ("{}", "supervisor"), (json.dumps(manifest(image_id=7)), "a text")],
)
async def test_a_missing_or_wrong_manifest_is_named_with_what_to_do(
    tmp_path: Path, content: str | None, found: str
) -> None:
    settings = manager_settings(tmp_path)
    settings.manifest.unlink()
    if content is not None:
        settings.manifest.write_text(content)
    with pytest.raises(ManifestError) as error:
        async with running_manager_of(settings):
            pytest.fail("started without a manifest")
    assert found in error.value.message
    assert "scripts/build_image" in error.value.message
    assert not (tmp_path / "manager").exists()


@asynccontextmanager
async def running_manager_of(settings: ManagerSettings) -> AsyncIterator[None]:
    async with Manager(settings, ManagerPolicy()):
        yield


def test_run_ends_with_one_and_a_clear_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = manager_settings(tmp_path)
    settings.manifest.unlink()
    assert run(settings) == 1
    assert "release manifest" in capsys.readouterr().err


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(SettingsError, match="check_identity"):
        ManagerSettings.load({"state": "/x", "manifest": "/y", "check_identity": False})


async def test_the_process_serves_and_stops_in_order(tmp_path: Path) -> None:
    async with manager_process(tmp_path) as process:
        async with RunnerCalls(process.address) as runner:
            assert await runner.list_hosts() == []
        assert await process.end() == 0


async def test_a_manager_killed_between_observation_and_settlement_settles_once_when_it_is_back(tmp_path: Path) -> None:
    async with (
        manager_process(tmp_path) as process,
        FakeHost(process.address, release_sha=release()) as host,
        RunnerCalls(process.address, host) as runner,
    ):
        await host.register()
        prepared = await runner.admitted("c", "t1")
        runner.play(prepared)
        killed = asyncio.Event()

        def kill_it(name: str) -> None:
            # The journal is asked: the observation goes out, and the settlement is not written yet.
            if name == "ListJournal" and not killed.is_set():
                process.kill_now()
                killed.set()

        host.on_call = kill_it
        with pytest.raises(RemoteError, match="UNAVAILABLE"):
            await runner.settle(prepared)
        assert killed.is_set()
        await process.kill()
        await process.start()
        await host.beat()
        assert (await runner.turn("c", "t1")).state == "ADMITTED"
        settlement = await runner.settle(prepared)
        assert settlement.saved
        assert await runner.settle(prepared) == settlement
        assert (await runner.conversation("c")).settled_turns == 1


async def test_an_admission_whose_answer_was_lost_is_the_same_when_the_manager_is_back(tmp_path: Path) -> None:
    async with (
        manager_process(tmp_path) as process,
        FakeHost(process.address, release_sha=release()) as host,
        RunnerCalls(process.address, host) as runner,
    ):
        await host.register()
        prepared = await runner.admitted("c", "t1")
        first = prepared.admitted
        await process.kill()
        await process.start()
        await host.beat()
        assert await runner.admit(prepared, "not looked at any more") == first


async def test_killed_at_any_time_no_settled_turn_is_lost_and_none_is_invented(tmp_path: Path) -> None:
    async with (
        manager_process(tmp_path) as process,
        FakeHost(process.address, release_sha=release()) as host,
        RunnerCalls(process.address, host) as runner,
    ):
        await host.register()
        saved: list[str] = []
        for round_ in range(3):

            async def turns(prefix: str = f"r{round_}") -> None:
                for number in range(50):
                    await runner.settled(f"{prefix}-{number}", "t1")
                    saved.append(f"{prefix}-{number}")

            task = asyncio.create_task(turns())
            started = len(saved)

            async def some_more(started: int = started) -> bool:
                return len(saved) >= started + 3

            await until(some_more)
            await process.kill()
            with pytest.raises(RemoteError, match="UNAVAILABLE"):
                await task
            await process.start()
            await host.beat()
        for conversation_id in saved:
            conversation = await runner.conversation(conversation_id)
            assert (conversation.settled_turns, conversation.last_settled_turn) == (1, "t1")
        listed = await runner.stub.ListConversations(pb.ListConversationsRequest(page_size=1000), timeout=10)
        for conversation in listed.conversations:
            if conversation.settled_turns:
                turn = await runner.turn(conversation.conversation.conversation_id, "t1")
                assert turn.settlement.saved
                assert turn.outcome == types.OUTCOME_COMPLETED


async def test_the_managers_part_of_a_turn_is_one_trace_under_the_runners(tmp_path: Path) -> None:
    exporter = InMemorySpanExporter()
    tracing = configure_tracing("manager", exporter=exporter)
    client = configure_tracing("runner", exporter=InMemorySpanExporter())
    async with (
        running_manager(tmp_path, tracing=tracing) as manager,
        FakeHost(manager.address, release_sha=release(), tracing=tracing) as host,
        RunnerCalls(manager.address, host, tracing=client) as runner,
    ):
        await host.register()
        with client.span("invoke_agent claude-code") as turn:
            prepared = await runner.admitted("c", "t1")
            runner.play(prepared)
            await runner.settle(prepared)
        trace_id = turn.get_span_context().trace_id
    await tracing.shutdown()
    await client.shutdown()
    spans = {span.name: span for span in exporter.get_finished_spans() if span.context.trace_id == trace_id}
    for name in ("prepare", "admit", "settle", "verify manager"):
        assert name in spans, sorted(spans)
    assert spans["verify manager"].parent is not None
    assert spans["verify manager"].parent.span_id == spans["settle"].context.span_id
    assert "standfast.host.v1.HostAgentService/EnsureSandbox" in spans
    assert spans["admit"].attributes is not None
    assert spans["admit"].attributes["standfast.context.state"] == "NEW"


async def test_a_full_store_folder_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(StorageFullError):
        async with running_manager(tmp_path, free_min_bytes=1 << 62):
            pytest.fail("started without room")
