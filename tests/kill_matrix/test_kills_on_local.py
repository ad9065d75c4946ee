"""Every process that can be killed without an engine, at every step, in a first and in a third turn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from tests.kill_matrix.arena import Arena
from tests.kill_matrix.ground import SETTINGS, Ground, LocalGround, switches
from tests.kill_matrix.table import ON_LOCAL, Cell, is_in_the_default_tier
from tests.scenarios.stage import Stage
from tests.stub_cli.tool_folder import ToolFolder, remove_gates

pytestmark = [pytest.mark.engine("local"), pytest.mark.asyncio(loop_scope="module")]

PARAMETERS = [
    pytest.param(cell, id=str(cell), marks=() if is_in_the_default_tier(cell) else pytest.mark.full)
    for cell in ON_LOCAL
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def arena(short_folder: Callable[[], Path], stub_tools: ToolFolder) -> AsyncIterator[Arena]:
    async def make(folder: Path, pauses: Path) -> Ground:
        stage = Stage(folder, stub_tools, switches=switches(pauses), settings=SETTINGS)
        return LocalGround(await stage.__aenter__(), pauses)

    made = Arena(short_folder, make, lambda _: remove_gates(stub_tools))
    yield made
    await made.drop()


@pytest.mark.parametrize("cell", PARAMETERS)
async def test_a_kill_sends_nothing_twice_and_reports_no_false_state(arena: Arena, cell: Cell) -> None:
    await arena.play(cell)
