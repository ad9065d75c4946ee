"""Claude Code 2.1.220 itself, driven over its stdio against the lab, with nothing of Standfast between."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from standfast_lab.provider import LabProvider
from tests.pinned_cli.desk import Desk


@pytest.fixture(scope="session")
def claude_executable(tool_folder: Path) -> Path:
    path = tool_folder / "claude-code" / "claude"
    assert path.exists(), f"{path} is missing: run scripts/local_tools first (scripts/test does)"
    return path


@pytest.fixture
async def lab() -> AsyncIterator[LabProvider]:
    async with LabProvider() as provider:
        yield provider
        assert provider.failures == ()


@pytest.fixture
def desk(claude_executable: Path, lab: LabProvider, tmp_path: Path) -> Desk:
    return Desk(claude_executable, lab, tmp_path)
