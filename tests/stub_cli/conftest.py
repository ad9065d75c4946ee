"""The stub and the pinned CLI, side by side: what a test here says of one it says of the other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from standfast_lab.provider import LabProvider
from tests.pinned_cli.desk import Desk
from tests.stub_cli.tool_folder import ToolFolder, make_tool_folder


@pytest.fixture(scope="session")
def stub_tools(tmp_path_factory: pytest.TempPathFactory) -> ToolFolder:
    return make_tool_folder(tmp_path_factory.mktemp("stub"))


@pytest.fixture
async def lab() -> AsyncIterator[LabProvider]:
    async with LabProvider() as provider:
        yield provider
        assert provider.failures == ()


@pytest.fixture(params=["stub", "pinned"])
def desk(request: pytest.FixtureRequest, lab: LabProvider, tmp_path: Path) -> Desk:
    """A conversation with either."""
    if request.param == "stub":
        return Desk(request.getfixturevalue("stub_tools").executable, lab, tmp_path)
    return Desk(request.getfixturevalue("tool_folder") / "claude-code" / "claude", lab, tmp_path)


@pytest.fixture
def stub_desk(stub_tools: ToolFolder, lab: LabProvider, tmp_path: Path) -> Desk:
    """A conversation with the stub."""
    return Desk(stub_tools.executable, lab, tmp_path)
