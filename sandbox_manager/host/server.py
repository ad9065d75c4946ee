"""The host agent's process: settings in, a serving host agent out, an orderly end."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import structlog

from sandbox_manager.host.adapters.engine import Engine
from sandbox_manager.host.adapters.engine_choice import choose_engine
from sandbox_manager.host.adapters.engine_errors import EngineError
from sandbox_manager.host.adapters.journal import Journal
from sandbox_manager.host.conductor.activation_limits import ActivationLimits, HostPolicy
from sandbox_manager.host.conductor.agent import HostAgent
from sandbox_manager.host.conductor.evidence import measure_host, versions_by_digest
from sandbox_manager.host.conductor.registration import Registration
from sandbox_manager.host.conductor.sandboxes import Sandboxes, StopLimits
from sandbox_manager.host.errors import IsolationRequiredError
from sandbox_manager.host.providers import upstreams_of
from sandbox_manager.host.relay.relay import Relay
from sandbox_manager.host.service import SERVICE, HostAgentService
from sandbox_manager.host.settings import HostSettings
from sandbox_manager.host.status import CODES
from standfast.host.v1 import host_agent_pb2_grpc
from standfast.host.v1 import host_registry_pb2 as registry_pb
from standfast_chassis.build_info import build_info
from standfast_chassis.errors import StandfastError
from standfast_chassis.grpc_channel import open_channel
from standfast_chassis.grpc_server import GrpcServer, serve_until_signal
from standfast_chassis.keys import SigningKey
from standfast_chassis.logs import configure_logs
from standfast_chassis.secret_mask import SecretMask
from standfast_chassis.state_folder import StateFolder
from standfast_chassis.task_pool import TaskPool
from standfast_chassis.tracing import configure_tracing

_log = structlog.get_logger("standfast.host")

Settings = HostSettings


def run(settings: HostSettings, policy: HostPolicy | None = None) -> int:
    """Runs the host agent until a signal; the process's exit code."""
    mask = SecretMask()
    configure_logs("host-agent", mask, level=settings.log_level)
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    try:
        asyncio.run(serve(settings, policy or HostPolicy(), mask=mask))
    except StandfastError as error:
        print(f"standfast host-agent: {error.message}", file=sys.stderr)
        _log.error("the host agent cannot run", reason=error.reason, **error.metadata)
        return 1
    return 0


async def serve(settings: HostSettings, policy: HostPolicy, *, mask: SecretMask) -> None:
    """Serves until SIGTERM or SIGINT."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(StateFolder(settings.state))
        key = SigningKey.load_or_create(folder.path)
        build = build_info()
        tracing = configure_tracing(
            "standfast-host-agent",
            settings.otlp_endpoint,
            service_version=build.version,
            release_sha=build.release_sha,
        )
        stack.push_async_callback(tracing.shutdown)
        journal = Journal(await stack.enter_async_context(Journal.open(folder.file("journal.sqlite"))))
        choice = await choose_engine(
            settings.engine, groups=folder.folder("g"), agents=_tools(settings), docker_url=settings.docker_host
        )
        engine: Engine = choice.engine
        image = settings.image if engine.is_isolated else "local"
        _log.info(choice.notice, engine=engine.name)
        stack.push_async_callback(engine.close)
        tasks = await stack.enter_async_context(TaskPool("host", close_timeout_s=15.0))
        relay = await stack.enter_async_context(
            Relay(upstreams_of(settings, mask), tracer=tracing.tracer, on_incident=_log_incident)
        )
        image_id = ""
        printed: dict[str, str] = {}

        def require_space() -> None:
            folder.require_free(settings.disk_free_min_bytes)

        sandboxes = Sandboxes(
            engine=engine,
            relay=relay,
            journal=journal,
            tasks=tasks,
            sockets=folder.folder("s"),
            state_id=key.public.thumbprint,
            image_id=lambda: image_id,
            printed_versions=lambda: printed,
            require_space=require_space,
            stop_limits=StopLimits(settings.exit_wait_s, settings.quiesce_timeout_s, settings.stop_timeout_s),
            extra_labels=settings.extra_labels,
        )

        async def evidence() -> dict[str, object]:
            nonlocal image_id
            found = await measure_host(engine, image, key.public.thumbprint, key.public.jwk_text())
            image_id = str(found["image_id"])
            printed.update(versions_by_digest(found))
            return found

        async def heartbeat() -> registry_pb.HeartbeatRequest:
            return await _heartbeat(sandboxes, folder.free_bytes())

        server = GrpcServer(codes=CODES, tracing=tracing)
        port = server.listen(settings.listen)
        address = f"{settings.listen.rpartition(':')[0]}:{port}"
        channel = await stack.enter_async_context(open_channel(settings.manager, tracing=None))
        registration = Registration(
            channel=channel,
            manager=settings.manager,
            host_id=key.public.thumbprint,
            key=key,
            address=address,
            engine=engine.name,
            evidence=evidence,
            heartbeat=heartbeat,
        )
        agent = HostAgent(
            key=key,
            journal=journal,
            sandboxes=sandboxes,
            tasks=tasks,
            tracing=tracing,
            taps=folder.folder("taps"),
            limits=ActivationLimits(
                handshake_timeout_s=settings.handshake_timeout_s,
                quiesce_timeout_s=settings.quiesce_timeout_s,
                store_wait_s=settings.store_wait_s,
                exit_wait_s=settings.exit_wait_s,
                interrupt_wait_s=settings.interrupt_wait_s,
                tap_limit_bytes=settings.tap_limit_bytes,
            ),
            policy=policy,
            evidence=evidence,
            manager_key=lambda: registration.manager_key,
            lease_left_s=lambda: registration.lease_left_s,
            require_isolation=lambda mode: _require_isolation(settings, engine, mode),
        )
        host_agent_pb2_grpc.add_HostAgentServiceServicer_to_server(HostAgentService(agent), server.grpc)
        await sandboxes.adopt_running()
        await agent.reconcile()
        await server.start([SERVICE], is_ready=False)
        print(f"host-agent listening on {address}", flush=True)
        beating = tasks.start(lambda: registration.run(server.set_ready), name="registration")

        async def before_stop() -> None:
            beating.cancel()
            await sandboxes.close(stop=settings.on_exit == "stop")

        await serve_until_signal(server, before_stop=before_stop)


def _tools(settings: HostSettings) -> Path:
    """The tool folder of `local`; without one there is nothing to run, and the measuring says so."""
    return (settings.tools if settings.tools is not None else settings.state / "no-tools").absolute()


def _require_isolation(settings: HostSettings, engine: Engine, permission_mode: str) -> None:
    if engine.is_isolated or settings.provider_is_loopback or settings.allow_unisolated:
        return
    raise IsolationRequiredError(
        f"the `local` engine isolates nothing, and permission mode {permission_mode} runs the CLI without its own checks "
        "against a provider that is not on loopback. Use the docker engine, or --allow-unisolated.",
        {"engine": engine.name, "permission_mode": permission_mode},
    )


async def _heartbeat(sandboxes: Sandboxes, free_bytes: int) -> registry_pb.HeartbeatRequest:
    request = registry_pb.HeartbeatRequest(disk_free_bytes=free_bytes)
    try:
        found = await sandboxes.truth()
    except EngineError as error:
        _log.warning("the engine did not answer for the heartbeat", reason=error.reason)
        return request
    request.engine_answers = True
    for one in found:
        labels = one.labels
        request.containers.append(
            registry_pb.ContainerSummary(
                container_id=one.container_id,
                group_id=labels.get("standfast.group", ""),
                container_generation=int(labels.get("standfast.generation", "0")),
                state=one.state.value,
                conversation=f"{labels.get('standfast.tenant', '')}/"
                f"{labels.get('standfast.conversations', '').partition(',')[0]}",
            )
        )
    return request


def _log_incident(incident: object) -> None:
    _log.warning("the relay refused a request", incident=repr(incident))


__all__ = ["Settings", "run", "serve"]
