"""Measures this host for its registration: what the exact image says of itself when it is run, not what a label says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sandbox_manager.agents.registry import AGENTS
from sandbox_manager.core.values import LaunchSettings
from sandbox_manager.host.adapters.engine import Engine
from standfast_chassis.build_info import build_info

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


async def measure_host(engine: Engine, image: str, host_id: str, host_key: str) -> dict[str, Any]:
    """The evidence without its nonce. Raises EngineError: no engine, no image, or an image without our supervisor."""
    version = await engine.version()
    image_id = await engine.image_id(image)
    measured = await engine.run_measure(image_id)
    build = build_info()
    return {
        "host_id": host_id,
        "host_key": host_key,
        "engine": engine.name,
        "engine_version": version.version,
        "is_isolated": engine.is_isolated,
        "image_id": image_id,
        "supervisor": _part(measured.get("supervisor")),
        "agents": _agents(measured.get("agents")),
        "probes": measured.get("probes"),
        "updater": updaters(),
        "release_sha": build.release_sha,
        "protocol_version": build.protocol_version,
        "boot_id": _boot_id(),
        "helper": measured.get("helper"),
    }


def versions_by_digest(evidence: Mapping[str, Any]) -> dict[str, str]:
    """What each CLI printed, by the digest of its executable, as `measure_host` found it."""
    parts = [one for one in (evidence.get("agents") or {}).values() if one]
    return {one["digest"]: one["version"] for one in parts if one.get("digest") and one.get("version")}


def updaters() -> dict[str, str]:
    """For each agent: "off" when its launch spec switches the CLI's own updater off, else "on"."""
    found: dict[str, str] = {}
    for name, agent in AGENTS.items():
        spec = agent.launch(
            LaunchSettings(
                agent=name,
                native_session_id="00000000-0000-4000-8000-000000000000",
                resume=False,
                home="/home",
                tmp="/tmp",
                workspace="/workspace",
                executable=agent.executable,
                model_base_url="http://127.0.0.1",
                slot_secret="none",
                model="any",
            )
        )
        found[name] = "off" if agent.keeps_pinned(spec) else "on"
    return found


def _part(found: object) -> dict[str, Any] | None:
    if not isinstance(found, Mapping):
        return None
    return {"version": found.get("version"), "digest": found.get("digest")}


def _agents(found: object) -> dict[str, Any]:
    if not isinstance(found, Mapping):
        return {}
    return {str(name): _part(one) for name, one in found.items()}


def _boot_id() -> str | None:
    """The kernel's id of this boot; None where it is not told."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return None
