"""What a measurement runs on: a fleet of real processes, the lab's provider behind it, a client in front."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from sandbox_manager.host.adapters.docker_engine import DockerEngine
from sandbox_manager.host.adapters.engine import Engine
from sandbox_manager.host.adapters.local_engine import LocalEngine
from standfast_client.sdk import StandfastClient
from standfast_lab.demo.play import containers_folder
from standfast_lab.fleet.fleet import Fleet, Parts
from standfast_lab.provider import LabProvider

BENCH_LABEL = {"standfast.bench": "1"}


@dataclass(frozen=True, slots=True)
class Site:
    """`folder` is the fleet's and is gone afterwards."""

    folder: Path
    fleet: Fleet
    client: StandfastClient
    lab: LabProvider


@asynccontextmanager
async def open_site(parts: Parts) -> AsyncIterator[Site]:
    """Starts all, and ends and removes all at the end, containers too."""
    with tempfile.TemporaryDirectory(prefix="sf-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        async with LabProvider() as lab:
            fleet = Fleet(folder, parts, lab.base_url)
            try:
                async with fleet, StandfastClient(fleet.runner.address) as client:
                    yield Site(folder, fleet, client, lab)
            finally:
                await _remove_what_is_left(parts, folder)


async def _remove_what_is_left(parts: Parts, folder: Path) -> None:
    """Removes the bench's containers, those made by hand too; on `local` what a host agent that was killed left running."""
    engine: Engine
    if parts.engine == "docker":
        engine, labels = DockerEngine(), BENCH_LABEL
    else:
        engine, labels = LocalEngine(containers_folder(folder), parts.tools or Path()), {}
    try:
        for left in await engine.list_sandboxes(labels):
            await engine.remove(left.container_id)
    finally:
        await engine.close()
