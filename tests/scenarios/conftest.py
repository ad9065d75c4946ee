"""Fixtures of the scenarios: the stub's tool folder, and stages on short paths.

A fleet takes seconds to start, so tests that only use it share one a module, each with conversations of its own.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from tests.scenarios.stage import Stage
from tests.shim_cli.tool_folder import make_shim_folder
from tests.stub_cli.tool_folder import ToolFolder, make_tool_folder

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def stub_tools(tmp_path_factory: pytest.TempPathFactory) -> ToolFolder:
    # Numbered: another folder of tests that takes this fixture over has a fixture of its own, and both run in one session.
    return make_tool_folder(tmp_path_factory.getbasetemp() / f"stub{next(_numbers)}")


@pytest.fixture(scope="session")
def shim_tools(tmp_path_factory: pytest.TempPathFactory) -> ToolFolder:
    return make_shim_folder(tmp_path_factory.getbasetemp() / f"shim{next(_numbers)}")


@pytest.fixture(scope="session")
def short_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Makes new folders whose paths leave room for the names of sockets."""

    def make() -> Path:
        folder = tmp_path_factory.getbasetemp() / f"s{next(_numbers)}"
        folder.mkdir(mode=0o700)
        return folder

    return make


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(short_folder: Callable[[], Path], stub_tools: ToolFolder) -> AsyncIterator[Stage]:
    """The product as it is, shared by a module's tests."""
    async with Stage(short_folder(), stub_tools) as made:
        yield made


@pytest.fixture
def conversation(request: pytest.FixtureRequest) -> str:
    """A conversation of the test's own."""
    return f"c{next(_numbers)}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out, and says so, what needs to mount a file system where this process may not."""
    if os.geteuid() == 0:
        return
    left_out = [item for item in items if "small_disk" in getattr(item, "fixturenames", ())]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
