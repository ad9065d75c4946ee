"""The manager's process: settings in, a serving manager out, an orderly end.

state folder ▶ key ▶ manifest ▶ store ▶ server listens ▶ open turns get their lease ▶ serves, reconciles ▶ signal: stops in order
"""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from contextlib import AsyncExitStack

import structlog

from sandbox_manager.adapters.host_client import GrpcHostCalls, HostTimeouts
from sandbox_manager.adapters.manager_store import SqliteManagerStore
from sandbox_manager.adapters.release_manifest import load_manifest
from sandbox_manager.adapters.store_port import Insert
from sandbox_manager.conductor.abandoning import Abandoning
from sandbox_manager.conductor.admitting import Admitting
from sandbox_manager.conductor.host_book import HostBook
from sandbox_manager.conductor.leases import Leases
from sandbox_manager.conductor.locks import KeyedLocks
from sandbox_manager.conductor.parts import Parts, TurnKey
from sandbox_manager.conductor.preparing import Preparing
from sandbox_manager.conductor.registering import Registering
from sandbox_manager.conductor.removing import Removing
from sandbox_manager.conductor.sandboxes import Sandboxes
from sandbox_manager.conductor.stopping import Stopping
from sandbox_manager.core.records import KeyRecord
from sandbox_manager.policy import ManagerPolicy
from sandbox_manager.reconciler import Reconciler
from sandbox_manager.services.host_registry import HostRegistry
from sandbox_manager.services.sandbox_manager import SandboxManager
from sandbox_manager.settings import ManagerSettings
from sandbox_manager.status import CODES
from standfast.host.v1 import host_registry_pb2_grpc
from standfast.sandbox.v1 import sandbox_manager_pb2_grpc
from standfast_chassis.build_info import build_info
from standfast_chassis.errors import StandfastError
from standfast_chassis.grpc_server import GrpcServer, serve_until_signal
from standfast_chassis.keys import SigningKey
from standfast_chassis.logs import configure_logs
from standfast_chassis.secret_mask import SecretMask
from standfast_chassis.state_folder import StateFolder
from standfast_chassis.task_pool import TaskPool
from standfast_chassis.tracing import Tracing, configure_tracing

_log = structlog.get_logger("standfast.manager")

SERVICES = ("standfast.sandbox.v1.SandboxManagerService", "standfast.host.v1.HostRegistryService")
STORE_NAME = "manager.sqlite"
Settings = ManagerSettings


def run(settings: ManagerSettings, policy: ManagerPolicy | None = None) -> int:
    """Runs the manager until a signal; the process's exit code."""
    configure_logs("manager", SecretMask(), level=settings.log_level)
    try:
        asyncio.run(serve(settings, policy))
    except StandfastError as error:
        print(f"standfast manager: {error.message}", file=sys.stderr)
        _log.error("the manager cannot run", reason=error.reason, **error.metadata)
        return 1
    return 0


async def serve(
    settings: ManagerSettings, policy: ManagerPolicy | None = None, *, until: asyncio.Event | None = None
) -> None:
    """Serves until SIGTERM, SIGINT, or `until`."""
    async with AsyncExitStack() as stack:
        manager = await stack.enter_async_context(Manager(settings, policy or ManagerPolicy()))
        print(f"standfast manager: serving at {manager.address}", file=sys.stderr, flush=True)
        await serve_until_signal(manager.server, until=until)


class Manager:
    """A running manager: `async with Manager(settings, policy) as manager: ... manager.address ...`. `serve` is this until a signal."""

    def __init__(self, settings: ManagerSettings, policy: ManagerPolicy, *, tracing: Tracing | None = None) -> None:
        self._settings = settings
        self._policy = policy
        self._given_tracing = tracing
        self._stack = AsyncExitStack()
        self.server: GrpcServer
        self.parts: Parts
        self.reconciler: Reconciler
        self.registering: Registering
        self.address = ""

    async def __aenter__(self) -> Manager:
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
        manifest = load_manifest(settings.manifest)
        folder = stack.enter_context(StateFolder(settings.state, free_min_bytes=settings.free_min_bytes))
        key = SigningKey.load_or_create(folder.path)
        build = build_info()
        tracing = self._given_tracing
        if tracing is None:
            tracing = configure_tracing(
                "standfast-manager",
                settings.otlp_endpoint,
                service_version=build.version,
                release_sha=build.release_sha,
            )
            stack.push_async_callback(tracing.shutdown)
        self.server = GrpcServer(codes=CODES, tracing=tracing, stop_grace_s=settings.stop_grace_s)
        # Before anything of the store is touched: a second manager on this address ends here.
        port = self.server.listen(settings.listen)
        self.address = f"{settings.listen.rpartition(':')[0]}:{port}"
        store = SqliteManagerStore(
            await stack.enter_async_context(SqliteManagerStore.database(folder.file(STORE_NAME)))
        )
        hosts = GrpcHostCalls(
            tracing,
            HostTimeouts(
                ensure_s=settings.ensure_timeout_s,
                stop_s=settings.stop_timeout_s,
                remove_s=settings.stop_timeout_s,
                read_store_s=settings.read_store_timeout_s,
                answer_s=settings.host_answer_timeout_s,
            ),
        )
        stack.push_async_callback(hosts.close)
        turn_leases: Leases[TurnKey] = Leases(settings.activation_lease_s, time.monotonic)
        self.parts = Parts(
            store=store,
            hosts=hosts,
            book=HostBook(settings.host_lease_s, time.monotonic),
            leases=turn_leases,
            locks=KeyedLocks(),
            key=key,
            manifest=manifest,
            policy=self._policy,
            tracing=tracing,
            build=build,
            new_id=lambda: str(uuid.uuid4()),
            first_beat_wait_s=min(settings.heartbeat_s, settings.host_lease_s),
            heartbeat_ms=int(settings.heartbeat_s * 1000),
        )
        await self._keep_key(key)
        self._add_services()
        await self.registering.expire_old_attestations()
        await self.reconciler.adopt()
        tasks = await stack.enter_async_context(TaskPool("manager", close_timeout_s=5.0))
        stack.push_async_callback(self.server.stop)
        await self.server.start(SERVICES)
        tasks.start(self.reconciler.run, name="reconciler")
        _log.info("serving", address=self.address, key_id=key.public.thumbprint, release_sha=build.release_sha)

    def _add_services(self) -> None:
        parts, settings = self.parts, self._settings
        stopping = Stopping(parts)
        abandoning = Abandoning(parts)
        removing = Removing(parts, stopping)
        self.reconciler = Reconciler(
            parts,
            abandoning=abandoning,
            stopping=stopping,
            removing=removing,
            clock=time.monotonic,
            every_s=settings.reconcile_s,
            idle_stop_s=settings.idle_stop_s,
        )
        sandboxes = Sandboxes(parts)
        service = SandboxManager(
            parts,
            preparing=Preparing(parts, sandboxes, stopping),
            admitting=Admitting(parts, sandboxes),
            abandoning=abandoning,
            stopping=stopping,
            removing=removing,
        )
        sandbox_manager_pb2_grpc.add_SandboxManagerServiceServicer_to_server(service, self.server.grpc)
        self.registering = Registering(parts)
        registry = HostRegistry(parts, self.registering)
        host_registry_pb2_grpc.add_HostRegistryServiceServicer_to_server(registry, self.server.grpc)

    async def _keep_key(self, key: SigningKey) -> None:
        known = {one.key_id for one in await self.parts.store.keys()}
        if key.public.thumbprint not in known:
            record = KeyRecord(key.public.thumbprint, "manager", key.public.jwk_text())
            await self.parts.store.commit([Insert(record)])
