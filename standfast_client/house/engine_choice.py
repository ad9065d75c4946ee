"""Which engine a house uses, and the manifest and tool folder that belong to it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from standfast_client.house.errors import HouseError

ENGINE_TIMEOUT_S = 5


@dataclass(frozen=True)
class EngineChoice:
    """`note`: what to tell the user of the choice; None when it was theirs."""

    engine: str
    manifest: Path
    tools: Path | None
    note: str | None


def build_cache() -> Path:
    """Where scripts/build_image and scripts/local_tools leave what they make."""
    given = os.environ.get("STANDFAST_CACHE")
    return Path(given) if given else Path(__file__).resolve().parents[2] / ".cache"


def engine_answers() -> bool:
    """True when a Docker-compatible engine answers (DOCKER_HOST, else the usual socket)."""
    # 0.24 s of imports that only this question needs.
    import docker

    try:
        client = docker.from_env(timeout=ENGINE_TIMEOUT_S)
    except (docker.errors.DockerException, ValueError):
        return False
    try:
        return bool(client.ping())
    except (docker.errors.DockerException, OSError):
        # OSError: what the HTTP library under docker-py raises is one.
        return False
    finally:
        client.close()


def chosen_engine(asked: str, manifest: Path | None, tools: Path | None, *, answers: bool | None) -> EngineChoice:
    """Decides. `answers`: whether an engine answers; None when it was not asked. Raises HouseError."""
    note = None
    engine = asked
    if asked == "auto":
        engine = "docker" if answers else "local"
        note = (
            "engine: docker answers and is used"
            if answers
            else "engine: no Docker engine answers; falling back to `local`: plain processes in a retained folder, NO ISOLATION"
        )
    elif asked == "docker" and answers is False:
        raise HouseError(
            "expected a Docker engine, found none that answers. Start one (scripts/engine start), set DOCKER_HOST, or use --engine "
            "local.",
            {"engine": asked},
        )
    is_local = engine == "local"
    found_manifest = manifest or build_cache() / ("local-manifest.json" if is_local else "release-manifest.json")
    maker = "scripts/local_tools" if is_local else "scripts/build_image --agents claude-code"
    if not found_manifest.is_file():
        raise HouseError(
            f"expected a release manifest at {found_manifest}, found none. Make it with {maker}, or name one with --manifest.",
            {"manifest": str(found_manifest)},
        )
    found_tools = (tools or build_cache() / "tools") if is_local else None
    if found_tools is not None and not found_tools.is_dir():
        raise HouseError(
            f"expected the agents' programs below {found_tools}, found no such folder. Make it with {maker}, or name one with --tools.",
            {"tools": str(found_tools)},
        )
    return EngineChoice(engine, found_manifest, found_tools, note)
