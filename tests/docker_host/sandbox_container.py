"""Containers of the sandbox image for looking into it: no supervisor, but the owners, capabilities and tmpfs of a real sandbox."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import docker
from docker.models.containers import Container

SLOTS = (1, 2, 3, 4)
CLAUDE = "/opt/standfast/agents/claude-code/claude"


@dataclass(frozen=True, slots=True)
class Ran:
    code: int
    output: str


@dataclass(frozen=True, slots=True)
class SandboxContainer:
    """A running container; commands run by `sh -c` as root of the sandbox or as a slot's user."""

    container: Container

    def as_root(self, script: str) -> Ran:
        return self._run(script, user="0:0", environment={})

    def as_slot(self, slot: int, script: str, environment: dict[str, str] | None = None) -> Ran:
        env = {"HOME": f"/members/{slot}/home", "TMPDIR": f"/run/slots/{slot}", **(environment or {})}
        # By name: the engine then takes the supplementary groups from the image, as the supervisor sets them.
        return self._run(script, user=f"slot{slot}", environment=env)

    def _run(self, script: str, user: str, environment: dict[str, str]) -> Ran:
        code, output = self.container.exec_run(["sh", "-c", script], user=user, environment=environment)
        assert isinstance(code, int)
        assert isinstance(output, bytes)
        return Ran(code, output.decode(errors="replace"))

    def put(self, folder: str, name: str, content: bytes) -> None:
        """Writes a file that everybody in the container can read."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
        self.container.put_archive(folder, packed.getvalue())


@contextmanager
def sandbox_container(
    client: docker.DockerClient, image_id: str, labels: dict[str, str], *, is_confined: bool = True
) -> Iterator[SandboxContainer]:
    """A container that sleeps. `is_confined`: no network, and root with no more than a sandbox's capabilities."""
    container = client.containers.create(
        image_id,
        entrypoint=["sleep", "600"],
        command=[],
        network_mode="none",
        cap_drop=["ALL"] if is_confined else [],
        cap_add=["SETUID", "SETGID", "KILL"] if is_confined else [],
        security_opt=["no-new-privileges:true"],
        tmpfs={
            f"/run/slots/{slot}": f"size=64m,mode=0700,uid={20000 + slot},gid={20000 + slot},exec" for slot in SLOTS
        },
        labels=labels,
    )
    try:
        container.start()
        yield SandboxContainer(container)
    finally:
        container.remove(force=True)
