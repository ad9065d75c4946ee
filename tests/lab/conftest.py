"""The lab's matrix as tests: one site an agent, shared by its scenarios."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from runner.drivers.registry import agent_names
from standfast_lab.fleet.fleet import Parts
from standfast_lab.lab.agents import AGENTS, AgentWords
from standfast_lab.lab.site import LabSite
from tests.conftest import CACHE


@pytest.fixture(scope="module", params=[name for name in AGENTS if name in agent_names()])
def agent(request: pytest.FixtureRequest) -> AgentWords:
    return AGENTS[request.param]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, agent: AgentWords) -> Iterator[Path]:
    """A short path in the session's own folder: sockets and project slugs have lengths to keep."""
    made = tmp_path_factory.getbasetemp() / f"lab-{agent.name}"
    made.mkdir(mode=0o700)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(folder: Path, agent: AgentWords, tool_folder: Path) -> AsyncIterator[LabSite]:
    async with LabSite(folder, Parts("local", CACHE / "local-manifest.json", tools=tool_folder), agent) as site:
        yield site
