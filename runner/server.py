"""The runner's process: settings in, a serving runner out, an orderly end.

state folder ▶ key ▶ store ▶ server listens ▶ unresolved turns are taken up ▶ serves ▶ signal: stops in order
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AsyncExitStack

import structlog

from runner.adapters.event_store import EventStore
from runner.adapters.host_client import HostClients
from runner.adapters.manager_client import ManagerClient, ManagerDeadlines
from runner.adapters.turn_schema import migrations
from runner.adapters.turn_store import TurnStore
from runner.conductor.conductor import Conductor
from runner.conductor.parts import Limits, Parts
from runner.policy import RunnerPolicy
from runner.service import RunnerService
from runner.settings import RunnerSettings
from runner.status import CODES
from standfast.runner.v1.runner_pb2_grpc import add_RunnerServiceServicer_to_server
from standfast.types.v1 import types_pb2
from standfast_chassis.build_info import BuildInfo, build_info
from standfast_chassis.database import Database
from standfast_chassis.errors import SettingsError, StandfastError
from standfast_chassis.grpc_channel import open_channel
from standfast_chassis.grpc_server import GrpcServer, serve_until_signal
from standfast_chassis.keys import SigningKey
from standfast_chassis.logs import configure_logs
from standfast_chassis.secret_mask import SecretMask
from standfast_chassis.state_folder import StateFolder
from standfast_chassis.tracing import Tracing, configure_tracing

_log = structlog.get_logger("standfast.runner")

SERVICES = ("standfast.runner.v1.RunnerService",)
STORE_NAME = "runner.sqlite"
EVENTS_NAME = "events.sqlite"
Settings = RunnerSettings


def run(settings: RunnerSettings, policy: RunnerPolicy | None = None) -> int:
    """Runs the runner until a signal; the process's exit code."""
    configure_logs("runner", SecretMask(), level=settings.log_level)
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    try:
        asyncio.run(serve(settings, policy))
    except StandfastError as error:
        print(f"standfast runner: {error.message}", file=sys.stderr)
        _log.error("the runner cannot run", reason=error.reason, **error.metadata)
        return 1
    return 0


async def serve(
    settings: RunnerSettings, policy: RunnerPolicy | None = None, *, until: asyncio.Event | None = None
) -> None:
    """Serves until SIGTERM, SIGINT, or `until`."""
    async with Runner(settings, policy or RunnerPolicy()) as runner:
        print(f"standfast runner: serving at {runner.address}", file=sys.stderr, flush=True)
        await serve_until_signal(runner.server, before_stop=runner.conductor.close, until=until)


class Runner:
    """A running runner: `async with Runner(settings, policy) as runner: ... runner.address ...`."""

    def __init__(self, settings: RunnerSettings, policy: RunnerPolicy, *, tracing: Tracing | None = None) -> None:
        self._settings = settings
        self._policy = policy
        self._given_tracing = tracing
        self._stack = AsyncExitStack()
        self.server: GrpcServer
        self.conductor: Conductor
        self.parts: Parts
        self.address = ""

    async def __aenter__(self) -> Runner:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _start(self) -> None:
        settings, stack = self._settings, self._stack
        folder = stack.enter_context(StateFolder(settings.state, free_min_bytes=settings.free_min_bytes))
        key = SigningKey.load_or_create(folder.path)
        build = build_info()
        tracing = self._given_tracing
        if tracing is None:
            tracing = configure_tracing(
                "standfast-runner",
                settings.otlp_endpoint,
                service_version=build.version,
                release_sha=build.release_sha,
            )
            stack.push_async_callback(tracing.shutdown)
        self.server = GrpcServer(codes=CODES, tracing=tracing, stop_grace_s=settings.stop_grace_s)
        # Before anything of the store is touched: a second runner on this address ends here.
        port = self.server.listen(settings.listen)
        self.address = f"{settings.listen.rpartition(':')[0]}:{port}"
        store = TurnStore(await stack.enter_async_context(Database(folder.file(STORE_NAME), migrations)))
        events = EventStore(await stack.enter_async_context(EventStore.database(folder.file(EVENTS_NAME))))
        manager_channel = await stack.enter_async_context(open_channel(settings.manager, tracing=tracing))
        hosts = HostClients(tracing)
        stack.push_async_callback(hosts.close)
        self.parts = Parts(
            runner_id=await store.runner_id(),
            runner_address=settings.advertise or self.address,
            store=store,
            events=events,
            manager=ManagerClient(manager_channel, settings.manager, _deadlines(settings)),
            hosts=hosts,
            tracing=tracing,
            limits=_limits(settings),
            policy=self._policy,
        )
        self.conductor = await stack.enter_async_context(Conductor(self.parts, turns_max=settings.turns_max))
        service = RunnerService(self.conductor, self.parts, _build_to_wire(build, key))
        add_RunnerServiceServicer_to_server(service, self.server.grpc)
        taken_up = await self.conductor.recover()
        stack.push_async_callback(self.server.stop)
        await self.server.start(SERVICES)
        _log.info("serving", address=self.address, runner_id=self.parts.runner_id, unresolved_turns=taken_up)


def _limits(settings: RunnerSettings) -> Limits:
    return Limits(
        turn_limit_s=settings.turn_limit_s,
        silence_limit_s=settings.silence_limit_s,
        handshake_timeout_s=settings.handshake_timeout_s,
        interrupt_wait_s=settings.interrupt_wait_s,
        quiesce_timeout_s=settings.quiesce_timeout_s,
        request_expiry_s=settings.request_expiry_s,
        queue_max=settings.queue_max,
        manager_wait_s=settings.manager_wait_s,
        admit_wait_s=settings.admit_wait_s,
        former_wait_s=settings.former_wait_s,
    )


def _deadlines(settings: RunnerSettings) -> ManagerDeadlines:
    return ManagerDeadlines(
        prepare_s=settings.prepare_timeout_s, settle_s=settings.settle_timeout_s, stop_s=settings.stop_timeout_s
    )


def _build_to_wire(build: BuildInfo, key: SigningKey) -> types_pb2.BuildInfo:
    return types_pb2.BuildInfo(
        component="runner",
        version=build.version,
        release_sha=build.release_sha or "",
        protocol_version=build.protocol_version,
        key_id=key.public.thumbprint,
    )


def main() -> int:
    """`python -m runner` runs the runner with settings from the environment."""
    try:
        settings = RunnerSettings.load()
    except SettingsError as error:
        print(f"standfast runner: {error.message}", file=sys.stderr)
        return 2
    return run(settings)
