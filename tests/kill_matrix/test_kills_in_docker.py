"""The matrix once whole with the pinned Claude Code in real sandboxes, the engine's own death included: with --full."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import docker
import pytest
import pytest_asyncio

from standfast_lab.fleet.fleet import Parts
from tests.conftest import CACHE
from tests.kill_matrix.arena import Arena
from tests.kill_matrix.docker_ground import DockerGround, DockerStage
from tests.kill_matrix.ground import Ground
from tests.kill_matrix.own_engine import OwnEngine
from tests.kill_matrix.table import IN_DOCKER, ON_OWN_ENGINE, Cell

pytestmark = [
    pytest.mark.engine("docker"),
    pytest.mark.full,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest.fixture(scope="module")
def parts(sandbox_image_id: str, test_labels: dict[str, str]) -> Parts:
    return Parts("docker", CACHE / "release-manifest.json", image=sandbox_image_id, labels=test_labels)


@pytest.fixture(scope="module")
def own_engine(
    short_folder: Callable[[], Path], docker_client: docker.DockerClient, sandbox_image_id: str
) -> Iterator[OwnEngine]:
    """With the sandbox image in it."""
    engine = OwnEngine(short_folder())
    try:
        engine.open()
        engine.load(docker_client, sandbox_image_id)
        yield engine
    finally:
        engine.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def arena(
    short_folder: Callable[[], Path], parts: Parts, docker_client: docker.DockerClient
) -> AsyncIterator[Arena]:
    made = _arena(short_folder, parts, docker_client, None)
    yield made
    await made.drop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine_arena(short_folder: Callable[[], Path], parts: Parts, own_engine: OwnEngine) -> AsyncIterator[Arena]:
    client = own_engine.client()
    made = _arena(short_folder, parts, client, own_engine)
    yield made
    await made.drop()
    client.close()


def _arena(
    short_folder: Callable[[], Path], parts: Parts, client: docker.DockerClient, engine: OwnEngine | None
) -> Arena:
    async def make(folder: Path, pauses: Path) -> Ground:
        stage = DockerStage(folder, parts, pauses, engine.url if engine is not None else None)
        await stage.__aenter__()
        return DockerGround(stage, pauses, client, engine)

    def leave(ground: Ground) -> None:
        assert isinstance(ground, DockerGround)
        ground.remove_containers()

    return Arena(short_folder, make, leave)


@pytest.mark.parametrize("cell", IN_DOCKER, ids=str)
async def test_a_kill_around_the_real_cli_sends_nothing_twice_and_reports_no_false_state(
    arena: Arena, cell: Cell
) -> None:
    await arena.play(cell)


@pytest.mark.parametrize("cell", ON_OWN_ENGINE, ids=str)
async def test_an_engine_that_dies_costs_no_settled_turn_and_sends_nothing_twice(
    engine_arena: Arena, cell: Cell
) -> None:
    await engine_arena.play(cell)
