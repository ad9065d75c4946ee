"""`python -m standfast_lab.lab`: plays the matrix. `scripts/lab` sets up what it needs and calls it."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from runner.drivers.registry import agent_names
from sandbox_manager.host.adapters.docker_engine import DockerEngine
from standfast_chassis.errors import StandfastError
from standfast_lab.fleet.fleet import Parts
from standfast_lab.fleet.member_process import ProcessNotReadyError
from standfast_lab.lab import scenarios as _all_scenarios
from standfast_lab.lab.agents import AGENTS
from standfast_lab.lab.matrix import Cell, run_agent
from standfast_lab.lab.scenario import SCENARIOS, Scenario
from standfast_lab.lab.screen import JsonScreen, Screen, TableScreen

LAB_LABEL = {"standfast.lab": "1"}
CORE = "core"
assert _all_scenarios.__all__  # imported for what it puts on the list


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 all passed, 1 one did not, 2 wrong usage, 3 it could not be played."""
    can = [name for name in agent_names() if name in AGENTS]
    parser = argparse.ArgumentParser(
        prog="scripts/lab",
        description="Plays the real pinned CLIs against the lab's own provider, agent by scenario, through the whole product.",
        epilog="Exit codes: 0 all passed, 1 one did not, 2 wrong usage, 3 it could not be played.",
    )
    parser.add_argument("--engine", choices=["docker", "local"], help="what runs the sandboxes")
    parser.add_argument("--manifest", type=Path, help="release manifest of the image or the tool folder")
    parser.add_argument("--image", help="docker: the sandbox image")
    parser.add_argument("--tools", type=Path, help="local: the tool folder")
    parser.add_argument("--agents", nargs="+", default=can, choices=can, metavar="AGENT", help=", ".join(can))
    parser.add_argument(
        "--scenarios",
        nargs="+",
        default=list(SCENARIOS),
        choices=[*SCENARIOS, CORE],
        metavar="SCENARIO",
        help="names, or `core` for the short set; --list shows them",
    )
    parser.add_argument("--repeat", type=_at_least_one, default=1, metavar="N", help="play everything so often")
    parser.add_argument("--jobs", type=_at_least_one, default=1, metavar="N", help="so many scenarios at once")
    parser.add_argument("--json", action="store_true", help="one JSON object a cell")
    parser.add_argument("--list", action="store_true", help="the scenarios and what each shows")
    parser.add_argument("--check", action="store_true", help="only says whether the arguments are right")
    given = parser.parse_args(argv)
    if given.list:
        for one in SCENARIOS.values():
            print(f"{one.name:<34}{'core  ' if one.is_core else '      '}{one.shows}")
    if given.list or given.check:
        return 0
    if given.engine is None or given.manifest is None:
        parser.error("--engine and --manifest are needed to play")
    parts = Parts(given.engine, given.manifest, image=given.image, tools=given.tools, labels=LAB_LABEL)
    wanted = [
        one for one in SCENARIOS.values() if one.name in given.scenarios or (CORE in given.scenarios and one.is_core)
    ]
    screen: Screen = JsonScreen() if given.json else TableScreen()
    try:
        return asyncio.run(_run(given.agents, wanted, parts, screen, rounds=given.repeat, jobs=given.jobs))
    except asyncio.CancelledError:
        print("ended before all was played", file=sys.stderr)
        return 3
    except (ProcessNotReadyError, StandfastError) as error:
        print(f"the matrix could not be played: {type(error).__name__}: {error}", file=sys.stderr)
        return 3


async def _run(
    agents: Sequence[str], wanted: Sequence[Scenario], parts: Parts, screen: Screen, *, rounds: int, jobs: int
) -> int:
    cells: list[Cell] = []
    in_all = len(agents) * len(wanted) * rounds
    screen.note(f"engine {parts.engine}; {len(agents)} agents, {len(wanted)} scenarios, {rounds} rounds")

    def told(cell: Cell) -> None:
        cells.append(cell)
        screen.cell(cell, len(cells), in_all)

    # Asked to end, it stops its fleet in order and leaves nothing running.
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()

    def end() -> None:
        # Once: a second cancel would break off the stopping itself and leave processes behind.
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lambda: None)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    for name in agents:
        # The path is short: sockets and project slugs have lengths to keep.
        with tempfile.TemporaryDirectory(prefix="sf-lab-", ignore_cleanup_errors=True) as folder:
            try:
                await run_agent(AGENTS[name], wanted, Path(folder), parts, rounds=rounds, jobs=jobs, told=told)
            finally:
                await _clean(parts)
    screen.end(cells)
    return 0 if all(cell.passed is not False for cell in cells) and len(cells) == in_all else 1


async def _clean(parts: Parts) -> None:
    """Removes what was left in the engine; the retained folders of `local` go with the lab's own folder."""
    if parts.engine != "docker":
        return
    engine = DockerEngine()
    try:
        for left in await engine.list_sandboxes(LAB_LABEL):
            await engine.remove(left.container_id)
    finally:
        await engine.close()


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
