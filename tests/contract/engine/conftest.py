"""One suite, two engines: every test here runs on both unless it says why not."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sandbox_manager.host.adapters.docker_engine import DockerEngine
from sandbox_manager.host.adapters.engine import Engine
from sandbox_manager.host.adapters.local_engine import LocalEngine
from tests.contract.engine.sandbox import Sandbox, sandbox_on


@pytest.fixture(scope="session", params=["local", "docker"])
def engine_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def engine(engine_name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """One for all tests: an engine keeps no state of its own about sandboxes, and `local` measures its tools only once."""
    made: Engine
    if engine_name == "docker":
        made = DockerEngine()
    else:
        folder = tmp_path_factory.mktemp("local")
        agents = folder / "tools" / "stub"
        agents.mkdir(parents=True)
        executable = agents / "stub"
        executable.write_text("#!/bin/sh\necho 1.2.3\n")
        executable.chmod(0o755)
        made = LocalEngine(folder / "groups", agents.parent)
    yield made
    asyncio.run(made.close())


@pytest.fixture
async def image_id(engine: Engine, request: pytest.FixtureRequest) -> str:
    if engine.name == "docker":
        return str(request.getfixturevalue("sandbox_image_id"))
    return await engine.image_id("local")


@pytest.fixture
async def created(engine: Engine, image_id: str, tmp_path: Path, test_labels: dict[str, str]) -> AsyncIterator[Sandbox]:
    """A sandbox that has not been started yet."""
    name = f"contract-{secrets.token_hex(4)}"
    async with sandbox_on(engine, image_id, name, tmp_path, test_labels) as sandbox:
        yield sandbox


@pytest.fixture
async def sandbox(created: Sandbox) -> Sandbox:
    """A running sandbox, linked."""
    await created.start()
    return created
