"""`python -m standfast_lab.demo`: plays the story. `scripts/demo` sets up what it needs and calls it."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sandbox_manager.host.adapters.docker_engine import DockerEngine
from sandbox_manager.host.adapters.engine import Engine
from sandbox_manager.host.adapters.local_engine import LocalEngine
from standfast_chassis.errors import StandfastError
from standfast_lab.demo.play import containers_folder, play
from standfast_lab.demo.screen import JsonScreen, Screen, TableScreen
from standfast_lab.demo.story import STORY, Line, Step, differences
from standfast_lab.fleet.fleet import Fleet, Parts
from standfast_lab.fleet.member_process import ProcessNotReadyError
from standfast_lab.fleet.switches import Switches
from standfast_lab.provider import LabProvider

DEMO_LABEL = {"standfast.demo": "1"}


def main() -> int:
    """Exit codes: 0 every line is as it must be, 1 one is not, 2 wrong usage, 3 it could not be played."""
    parser = argparse.ArgumentParser(
        prog="scripts/demo",
        description="Plays ten turns with the real Claude Code CLI against the lab's own provider (no key, no network) and "
        "checks each line.",
        epilog="Exit codes: 0 every line is as it must be, 1 one is not, 2 wrong usage, 3 the story could not be played.",
    )
    parser.add_argument("--engine", choices=["docker", "local"], required=True, help="what runs the sandbox")
    parser.add_argument("--manifest", type=Path, required=True, help="release manifest of the image or the tool folder")
    parser.add_argument("--image", help="docker: the sandbox image")
    parser.add_argument("--tools", type=Path, help="local: the tool folder")
    parser.add_argument("--json", action="store_true", help="one JSON object a step")
    parser.add_argument("--keep", action="store_true", help="leave it running for `standfast chat` until Ctrl-C")
    given = parser.parse_args()
    parts = Parts(given.engine, given.manifest, image=given.image, tools=given.tools, labels=DEMO_LABEL)
    screen: Screen = JsonScreen() if given.json else TableScreen()
    try:
        return asyncio.run(_run(parts, screen, keep=given.keep))
    except (ProcessNotReadyError, StandfastError, TimeoutError) as error:
        print(f"the story could not be played: {error or type(error).__name__}", file=sys.stderr)
        return 3


async def _run(parts: Parts, screen: Screen, *, keep: bool) -> int:
    with tempfile.TemporaryDirectory(prefix="sf-demo-", ignore_cleanup_errors=True) as folder:
        async with (
            LabProvider() as lab,
            Fleet(Path(folder), parts, lab.base_url, switches=Switches(let_slash_through=True)) as fleet,
        ):
            screen.note(
                f"engine {parts.engine}; manager, host agent and runner are processes of their own; "
                "the provider is the lab's"
            )
            wrong_in_all = 0
            told: list[Line] = []

            def tell(step: Step, line: Line) -> None:
                nonlocal wrong_in_all
                wrong = differences(step, line, tuple(told))
                wrong_in_all += len(wrong)
                told.append(line)
                screen.line(step, line, wrong)

            try:
                await play(STORY, fleet, lab, _remover(parts, fleet), tell)
            except BaseException:
                for member in fleet.members:
                    print(f"--- {member.kind}\n{member.log_tail()}", file=sys.stderr)
                raise
            screen.end(wrong_in_all == 0 and len(told) == len(STORY))
            if keep:
                await _stay(fleet, screen)
            else:
                await _clean(parts, fleet)
            return 0 if wrong_in_all == 0 and len(told) == len(STORY) else 1


def _engine(parts: Parts, fleet: Fleet) -> Engine:
    if parts.engine == "docker":
        return DockerEngine()
    return LocalEngine(containers_folder(fleet.folder), parts.tools or Path())


def _remover(parts: Parts, fleet: Fleet) -> Callable[[str], Any]:
    async def remove(container_id: str) -> None:
        # By the engine itself, behind everybody's back: that is the fault to be shown.
        engine = _engine(parts, fleet)
        try:
            await engine.remove(container_id)
        finally:
            await engine.close()

    return remove


async def _clean(parts: Parts, fleet: Fleet) -> None:
    """Removes what the story left in the engine; the retained folders of `local` go with the demo's own folder."""
    await fleet.stop()
    if parts.engine == "docker":
        engine = DockerEngine()
        try:
            for left in await engine.list_sandboxes(DEMO_LABEL):
                await engine.remove(left.container_id)
        finally:
            await engine.close()


async def _stay(fleet: Fleet, screen: Screen) -> None:
    endpoints = fleet.folder / "endpoints.json"
    endpoints.write_text(json.dumps({"runner": fleet.runner.address, "manager": fleet.manager.address}))
    screen.note(f"running until Ctrl-C: standfast chat --runner {fleet.runner.address}")
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, over.set)
    try:
        await over.wait()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


if __name__ == "__main__":
    sys.exit(main())
