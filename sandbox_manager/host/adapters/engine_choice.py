"""Which engine a host agent uses: the one that was asked for, or Docker where an engine answers, else `local`, and it is said."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sandbox_manager.host.adapters.docker_engine import DockerEngine
from sandbox_manager.host.adapters.engine import Engine
from sandbox_manager.host.adapters.engine_errors import EngineUnavailableError
from sandbox_manager.host.adapters.local_engine import LocalEngine


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The engine, and one sentence for people about how it was chosen."""

    engine: Engine
    notice: str


async def choose_engine(wanted: str, *, groups: Path, agents: Path, docker_url: str | None = None) -> EngineChoice:
    """`wanted` is docker, local or auto. Raises EngineUnavailableError if docker was asked for and does not answer."""
    if wanted == "local":
        return EngineChoice(LocalEngine(groups, agents), "engine local: plain processes, no isolation")
    engine = DockerEngine(docker_url)
    try:
        found = await engine.version()
    except EngineUnavailableError as error:
        await engine.close()
        if wanted == "docker":
            raise
        notice = (
            f"no Docker engine answers ({error.metadata['why']}); falling back to local: plain processes, no isolation"
        )
        return EngineChoice(LocalEngine(groups, agents), notice)
    return EngineChoice(engine, f"engine docker {found.version}")
