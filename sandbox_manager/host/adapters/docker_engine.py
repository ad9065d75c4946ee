"""The `docker` engine: any Docker-compatible API. Every parameter of a sandbox is set here.

All durable state is in the container's writable layer; the one bind mount is the socket folder. Three capabilities are enough for the
supervisor: SETUID and SETGID to become a slot (also to read a slot's files), KILL to signal it. DAC_READ_SEARCH must never be added: it
opens open_by_handle_at, and with the bind mount the host's own root.
docker-py is synchronous: it runs in a small pool.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import docker
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.types import Mount

from sandbox_manager.host.adapters.engine import (
    ContainerState,
    EngineVersion,
    Inspect,
    Network,
    SandboxSpec,
    absent,
)
from sandbox_manager.host.adapters.engine_errors import (
    EngineRefusedError,
    EngineUnavailableError,
    ImageMissingError,
    NameTakenError,
    SandboxAbsentError,
    SupervisorMissingError,
)
from sandbox_manager.host.adapters.guest_connection import ExpectedPeer

LABEL_MEASURE = "standfast.measure"
FIRST_UID = 20000
_POOL_THREADS = 8
_API_TIMEOUT_S = 30
_MEASURE_TIMEOUT_S = 120
_CONFLICT = 409
_SERVER_ERROR = 500
_NEVER = "0001-01-01T00:00:00Z"
_STATES = {"created": ContainerState.CREATED, "exited": ContainerState.EXITED, "dead": ContainerState.EXITED}

Result = TypeVar("Result")


class DockerEngine:
    """One engine, at `url` (`unix://...`) or where the environment points to."""

    name = "docker"
    is_isolated = True

    def __init__(self, url: str | None = None) -> None:
        self._url = url
        self._client: docker.DockerClient | None = None
        self._pool = ThreadPoolExecutor(max_workers=_POOL_THREADS, thread_name_prefix="docker-engine")

    async def version(self) -> EngineVersion:
        """Asks the engine."""
        found = await self._ask(lambda client: client.version())
        return EngineVersion("docker", str(found.get("Version")), f"API {found.get('ApiVersion')}")

    async def image_id(self, reference: str) -> str:
        """The image's own id."""

        def inspect(client: docker.DockerClient) -> str:
            return str(client.images.get(reference).id)

        try:
            return await self._ask(inspect)
        except _MissingError:
            raise _no_image(reference) from None

    async def create(self, spec: SandboxSpec) -> str:
        """Makes the container with exactly the tried parameters."""

        def create(client: docker.DockerClient) -> str:
            return str(client.containers.create(**create_parameters(spec)).id)

        try:
            return await self._ask(create)
        except _MissingError:
            raise _no_image(spec.image_id) from None
        except _ConflictError:
            raise NameTakenError("docker", spec.name) from None

    async def start(self, container_id: str) -> None:
        """Starts it."""
        await self._on_container(container_id, lambda client: client.api.start(container_id))

    async def stop(self, container_id: str, timeout_s: float) -> None:
        """SIGTERM, then SIGKILL after the timeout (whole seconds)."""
        seconds = max(1, round(timeout_s))
        await self._on_container(container_id, lambda client: client.api.stop(container_id, timeout=seconds))

    async def kill(self, container_id: str) -> None:
        """SIGKILL to process 1, and with it to all of the container."""
        try:
            await self._on_container(container_id, lambda client: client.api.kill(container_id))
        except _ConflictError:
            return
        # The answer comes before the container has ended.
        await self._on_container(container_id, lambda client: client.api.wait(container_id, timeout=_API_TIMEOUT_S))

    async def inspect(self, container: str) -> Inspect:
        """By container id or name."""

        def inspect(client: docker.DockerClient) -> Inspect:
            return _inspected(client.api.inspect_container(container))

        try:
            return await self._ask(inspect)
        except _MissingError:
            return absent(container)

    async def remove(self, container_id: str) -> None:
        """Removes it and its writable layer."""
        try:
            await self._ask(lambda client: client.api.remove_container(container_id, v=True, force=True))
        except _MissingError:
            return
        except _ConflictError:
            # Another removal of the same container is under way.
            return

    async def list_sandboxes(self, labels: Mapping[str, str]) -> list[Inspect]:
        """All containers with these labels."""
        wanted = [f"{name}={value}" for name, value in labels.items()]

        def search(client: docker.DockerClient) -> list[str]:
            return [str(row["Id"]) for row in client.api.containers(all=True, filters={"label": wanted})]

        found = [await self.inspect(container_id) for container_id in await self._ask(search)]
        return [row for row in found if row.state is not ContainerState.ABSENT]

    async def run_measure(self, image_id: str) -> dict[str, object]:
        """Runs the exact image with `measure` as its command."""

        def measure(client: docker.DockerClient) -> bytes:
            container = client.containers.create(image_id, ["measure"], labels={LABEL_MEASURE: "1"}, **_confinement())
            try:
                container.start()
                ended = container.wait(timeout=_MEASURE_TIMEOUT_S)
                printed = container.logs(stdout=True, stderr=False)
                return printed if ended["StatusCode"] == 0 else b""
            finally:
                container.remove(v=True, force=True)

        try:
            measured = json.loads(await self._ask(measure))
            if isinstance(measured, dict) and isinstance(measured.get("supervisor"), dict):
                return measured
        except _MissingError:
            raise _no_image(image_id) from None
        except (ValueError, EngineRefusedError):
            pass
        raise SupervisorMissingError(
            f"docker: expected the image {image_id} to measure itself, it printed no measurement; build it with scripts/build_image",
            {"image": image_id},
        )

    async def size_bytes(self, container_id: str) -> int:
        """The size of the writable layer."""

        def size(client: docker.DockerClient) -> int | None:
            rows = client.api.containers(all=True, size=True, filters={"id": container_id})
            return int(rows[0].get("SizeRw") or 0) if rows else None

        found = await self._ask(size)
        if found is None:
            raise SandboxAbsentError("docker", container_id)
        return found

    def expected_peer(self, found: Inspect) -> ExpectedPeer:
        """Process 1 of the container, by its number on the host: nobody else has it."""
        return ExpectedPeer(found.pid, 0)

    async def close(self) -> None:
        """Closes the client."""
        client, self._client = self._client, None
        if client is not None:
            await asyncio.get_running_loop().run_in_executor(self._pool, client.close)
        self._pool.shutdown(wait=False)

    async def _on_container(self, container_id: str, call: Callable[[docker.DockerClient], object]) -> None:
        try:
            await self._ask(call)
        except _MissingError:
            raise SandboxAbsentError("docker", container_id) from None

    async def _ask(self, call: Callable[[docker.DockerClient], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._call, call)

    def _call(self, call: Callable[[docker.DockerClient], Result]) -> Result:
        try:
            if self._client is None:
                self._client = (
                    docker.DockerClient(base_url=self._url, timeout=_API_TIMEOUT_S, max_pool_size=_POOL_THREADS)
                    if self._url
                    else docker.from_env(timeout=_API_TIMEOUT_S, max_pool_size=_POOL_THREADS)
                )
            return call(self._client)
        except (NotFound, ImageNotFound) as error:
            raise _MissingError(_explained(error)) from error
        except APIError as error:
            if error.status_code == _CONFLICT:
                raise _ConflictError(f"docker: {_explained(error)}") from error
            raise EngineRefusedError(f"docker: {_explained(error)}", {"status": error.status_code}) from error
        except (DockerException, OSError) as error:
            # requests' own errors are OSErrors: no answer, whatever was or was not done.
            raise EngineUnavailableError("docker", type(error).__name__) from error


class _MissingError(Exception):
    """The engine answered 404."""


class _ConflictError(EngineRefusedError):
    """The engine answered 409."""


def _explained(error: APIError) -> str:
    return str(error.explanation or error)[:500]


def _no_image(reference: str) -> ImageMissingError:
    return ImageMissingError(
        f"docker: expected the image {reference}, the engine has none; build it with scripts/build_image",
        {"expected": reference},
    )


def _confinement() -> dict[str, Any]:
    return {
        "network_mode": "none",
        "cap_drop": ["ALL"],
        "cap_add": ["SETUID", "SETGID", "KILL"],
        "security_opt": ["no-new-privileges:true"],  # the default seccomp profile stays on
        "pids_limit": 512,
    }


def create_parameters(spec: SandboxSpec) -> dict[str, Any]:
    """No init (the supervisor is process 1), no user, no published port, no volume."""
    parameters = {
        **_confinement(),
        "image": spec.image_id,
        "name": spec.name,
        "hostname": "sandbox",
        "detach": True,
        "network_mode": "none" if spec.network is Network.MODEL_ONLY else "bridge",
        "pids_limit": spec.pids_max,
        "mem_limit": spec.memory_bytes,
        "memswap_limit": spec.memory_bytes,
        "stop_signal": "SIGTERM",
        "labels": dict(spec.labels),
        # A mount, not `volumes`: that one would leave an anonymous volume in a committed image.
        "mounts": [Mount("/sf/host", str(spec.socket_dir.resolve()), type="bind")],
        "tmpfs": {
            f"/run/slots/{slot}": f"size={spec.private_bytes},mode=0700,uid={FIRST_UID + slot},gid={FIRST_UID + slot},exec"
            for slot in range(1, spec.slots + 1)
        },
    }
    if spec.cpus is not None:
        parameters["nano_cpus"] = round(spec.cpus * 1_000_000_000)
    return parameters


def _inspected(found: Mapping[str, Any]) -> Inspect:
    state = found["State"]
    kind = _STATES.get(state["Status"], ContainerState.RUNNING)
    has_run = state["StartedAt"] != _NEVER
    return Inspect(
        container_id=found["Id"],
        name=found["Name"].removeprefix("/"),
        image_id=found["Image"],
        state=kind,
        pid=state["Pid"] or None,
        started_at=state["StartedAt"] if has_run else None,
        finished_at=state["FinishedAt"] if state["FinishedAt"] != _NEVER else None,
        exit_code=state["ExitCode"] if has_run and kind is ContainerState.EXITED else None,
        oom_killed=state["OOMKilled"],
        is_paused=state["Paused"],
        labels=found["Config"]["Labels"] or {},
        mounts=tuple(mount["Source"] for mount in found["Mounts"]),
    )
