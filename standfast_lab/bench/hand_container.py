"""A container made and used by hand, with the parameters that the product gives its own: what a RESTORED turn is held against.

Its process 1 only sleeps. The CLI is started with `docker exec`, as the first slot's user and with the slot's environment. The model is
reached at the same loopback port: a listener made in the container's network namespace from outside, its bytes passed on to the provider.
Needs root, as the host agent does.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import docker

from sandbox_manager.host.adapters.docker_engine import FIRST_UID, create_parameters
from sandbox_manager.host.adapters.engine import SandboxSpec
from standfast_lab.bench.site import BENCH_LABEL

MODEL_PORT = 8377
HOME = "/members/1/home"
WORKSPACE = "/workspace"
EXECUTABLE = "/opt/standfast/agents/claude-code/claude"
_USER = f"{FIRST_UID + 1}:{FIRST_UID + 1}"
_CLONE_NEWNET = 0x40000000
_READ_BYTES = 256 * 1024


class HandContainer:
    """Use as an async context manager; `docker` runs as a command, as it does by hand."""

    def __init__(self, image: str, folder: Path, provider_port: int) -> None:
        self._image = image
        self._folder = folder
        self._provider_port = provider_port
        self._client = docker.from_env()
        self._server: asyncio.Server | None = None
        self.id = ""

    async def __aenter__(self) -> HandContainer:
        self._folder.mkdir(exist_ok=True)
        spec = SandboxSpec(
            name=f"sf-bench-by-hand-{os.getpid()}",
            image_id=self._image,
            socket_dir=self._folder,
            labels=BENCH_LABEL,
        )
        parameters: dict[str, Any] = create_parameters(spec) | {"entrypoint": ["/bin/sleep", "infinity"], "command": []}
        made = await asyncio.to_thread(self._client.containers.create, **parameters)
        self.id = str(made.id)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close_port()
        await asyncio.to_thread(lambda: self._client.api.remove_container(self.id, v=True, force=True))
        self._client.close()

    async def start(self) -> None:
        """`docker start`."""
        await _run("docker", "start", self.id)

    async def kill(self) -> None:
        """Stops it at once: a sleeping process 1 would let a stop run into its time limit."""
        await self._close_port()
        await _run("docker", "kill", self.id)
        await _run("docker", "wait", self.id)

    async def open_model_port(self) -> None:
        """Listens on the container's loopback and passes all on."""
        found = await asyncio.to_thread(self._client.api.inspect_container, self.id)
        listener = await asyncio.to_thread(listener_inside, int(found["State"]["Pid"]), MODEL_PORT)
        self._server = await asyncio.start_server(self._pass_on, sock=listener)

    def exec_argv(self, environment: Mapping[str, str], argv: list[str]) -> list[str]:
        """`docker exec -i` with a whole environment."""
        variables = [word for name, value in environment.items() for word in ("-e", f"{name}={value}")]
        return ["docker", "exec", "-i", "-u", _USER, "-w", WORKSPACE, *variables, self.id, *argv]

    async def _close_port(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._provider_port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, upstream_writer), _copy(upstream_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(_READ_BYTES):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # one side has left; the other is closed below
    finally:
        writer.close()


def listener_inside(pid: int, port: int) -> socket.socket:
    """A listening socket in the network namespace of that process. A thread goes in, and ends there: nobody else does."""
    made: list[socket.socket] = []
    failed: list[OSError] = []

    def make() -> None:
        try:
            namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
            try:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(namespace, _CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
            finally:
                os.close(namespace)
            # With the protocol spelled out, or asyncio leaves Nagle's delay on.
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            listener.listen(128)
            listener.setblocking(False)
            made.append(listener)
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]


async def _run(*argv: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    if process.returncode != 0:
        raise OSError(f"{' '.join(argv[:2])} ended with {process.returncode}: {said.decode(errors='replace').strip()}")
