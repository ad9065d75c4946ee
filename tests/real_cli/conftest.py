"""The whole product on real parts: the pinned CLI, real processes, a real engine. The model provider alone is the lab's."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import docker
import pytest
import pytest_asyncio
from docker.errors import DockerException

from standfast_lab.fleet.fleet import Parts
from standfast_lab.provider import LabProvider
from tests.conftest import CACHE
from tests.real_cli.site import Site

_numbers = itertools.count(1)


@pytest.fixture(params=["local", "docker"])
def engine_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def short_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Makes new folders with short paths: sockets and Claude's project slug have lengths to keep."""

    def make() -> Path:
        made = tmp_path_factory.getbasetemp() / f"f{next(_numbers)}"
        made.mkdir(mode=0o700)
        return made

    return make


@pytest.fixture
def folder(short_folder: Callable[[], Path]) -> Iterator[Path]:
    """It lies in the session's own temporary folder, by which what a test leaves running is known."""
    made = short_folder()
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="session")
def own_labels(test_labels: dict[str, str]) -> dict[str, str]:
    """The session's label, and one of this worker: another worker's sandboxes are in the middle of its tests."""
    return {**test_labels, "standfast.test.worker": os.environ.get("PYTEST_XDIST_WORKER", "main")}


@pytest.fixture(scope="session")
def docker_parts(sandbox_image_id: str, own_labels: dict[str, str]) -> Parts:
    return Parts("docker", CACHE / "release-manifest.json", image=sandbox_image_id, labels=own_labels)


@pytest.fixture(scope="session")
def local_parts(tool_folder: Path) -> Parts:
    return Parts("local", CACHE / "local-manifest.json", tools=tool_folder)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def docker_site(
    short_folder: Callable[[], Path], docker_parts: Parts, _removes_its_containers: None
) -> AsyncIterator[Site]:
    """The product on Docker, shared by a module's tests."""
    async with Site(short_folder(), docker_parts) as site:
        yield site


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def local_site(short_folder: Callable[[], Path], local_parts: Parts) -> AsyncIterator[Site]:
    """The product on `local`, shared by a module's tests."""
    async with Site(short_folder(), local_parts) as site:
        yield site


@pytest.fixture
def parts(engine_name: str, request: pytest.FixtureRequest) -> Parts:
    parts: Parts = request.getfixturevalue(f"{engine_name}_parts")
    return parts


@pytest.fixture(scope="module", autouse=True)
def _removes_its_containers(own_labels: dict[str, str]) -> Iterator[None]:
    """A fleet leaves its stopped sandboxes, as the product does: what is retained is never deleted by itself."""
    yield
    try:
        client = docker.from_env(timeout=30)
    except DockerException:
        return  # only `local` ran
    with contextlib.closing(client):
        labels = [f"{name}={value}" for name, value in own_labels.items()]
        for container in client.containers.list(all=True, filters={"label": labels}):
            container.remove(force=True)


@pytest.fixture
async def lab() -> AsyncIterator[LabProvider]:
    async with LabProvider() as provider:
        yield provider
        assert provider.failures == (), "the lab provider itself failed"
