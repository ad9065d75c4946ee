"""What every test shares: which engines there are, what the image and the tool folder hold, and that nothing is left behind."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from tests.house.engines import EngineCount, add_engine_options
from tests.house.leftovers import Leftovers, add_leftover_options

REPO = Path(__file__).parent.parent
CACHE = Path(os.environ.get("STANDFAST_CACHE") or REPO / ".cache")


def pytest_addoption(parser: pytest.Parser) -> None:
    add_engine_options(parser)
    add_leftover_options(parser)


@pytest.hookimpl(tryfirst=True)  # before pytest makes its temporary folder
def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(EngineCount(config), "standfast-engines")
    config.pluginmanager.register(Leftovers(config), "standfast-leftovers")


def _manifest(name: str, script: str) -> dict[str, Any]:
    path = CACHE / name
    assert path.exists(), f"{path} is missing: run {script} first (scripts/test does)"
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.fixture(scope="session")
def release_manifest() -> dict[str, Any]:
    """The manifest of the sandbox image, as scripts/build_image wrote it."""
    return _manifest("release-manifest.json", "scripts/build_image")


@pytest.fixture(scope="session")
def local_manifest() -> dict[str, Any]:
    """The manifest of the tool folder, as scripts/local_tools wrote it."""
    return _manifest("local-manifest.json", "scripts/local_tools")


@pytest.fixture(scope="session")
def sandbox_image_id(release_manifest: dict[str, Any]) -> str:
    return str(release_manifest["image_id"])


@pytest.fixture(scope="session")
def tool_folder(local_manifest: dict[str, Any]) -> Path:
    """The folder with the CLIs of the `local` engine, laid out as `AGENT/EXECUTABLE`."""
    return CACHE / "tools"


@pytest.fixture(scope="session")
def docker_client() -> Iterator[docker.DockerClient]:
    client = docker.from_env(timeout=60)
    yield client
    client.close()


@pytest.fixture(scope="session")
def test_labels() -> dict[str, str]:
    """Labels for every container a test makes: what still has them when the session ends fails it."""
    return {"standfast.test": os.environ["STANDFAST_TEST_SESSION"]}
