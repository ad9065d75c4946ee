"""The whole product on real parts: the pinned CLI, real processes, a real engine. The model provider alone is the lab's."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import docker
import pytest
from docker.errors import DockerException

from standfast_lab.fleet.fleet import Parts
from standfast_lab.provider import LabProvider
from tests.conftest import CACHE


@pytest.fixture(params=["local", "docker"])
def engine_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: sockets and Claude's project slug have lengths to keep. It lies in the session's own temporary folder."""
    made = Path(tempfile.mkdtemp(prefix="f"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def parts(engine_name: str, request: pytest.FixtureRequest, test_labels: dict[str, str]) -> Parts:
    if engine_name == "docker":
        image_id = str(request.getfixturevalue("sandbox_image_id"))
        return Parts("docker", CACHE / "release-manifest.json", image=image_id, labels=test_labels)
    tools: Path = request.getfixturevalue("tool_folder")
    return Parts("local", CACHE / "local-manifest.json", tools=tools)


@pytest.fixture(autouse=True)
def _removes_its_containers(test_labels: dict[str, str]) -> Iterator[None]:
    """A fleet leaves its stopped sandboxes, as the product does: what is retained is never deleted by itself."""
    yield
    try:
        client = docker.from_env(timeout=30)
    except DockerException:
        return  # only `local` ran
    with contextlib.closing(client):
        (label,) = test_labels.items()
        for container in client.containers.list(all=True, filters={"label": "=".join(label)}):
            container.remove(force=True)


@pytest.fixture
async def lab() -> AsyncIterator[LabProvider]:
    async with LabProvider() as provider:
        yield provider
        assert provider.failures == (), "the lab provider itself failed"
