"""`python -m standfast_lab.bench`: measures. `scripts/bench` sets up what it needs and calls it."""

from __future__ import annotations

import argparse
import asyncio
import functools
import os
import platform
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from standfast_chassis.errors import StandfastError
from standfast_client.errors import ClientError
from standfast_lab.bench.commits import commit_figures
from standfast_lab.bench.figures import Figure
from standfast_lab.bench.live_turns import live_figures, live_pairs, settled_figures
from standfast_lab.bench.long_conversation import long_figures
from standfast_lab.bench.relay import relay_figures
from standfast_lab.bench.restored_turns import restored_figures
from standfast_lab.bench.screen import Screen
from standfast_lab.bench.site import BENCH_LABEL, open_site
from standfast_lab.bench.streams import STEPS, stream_figures
from standfast_lab.bench.ticking_tools import executable_of, stop_file_of, ticking_parts
from standfast_lab.bench.turns import UnfitTurnError
from standfast_lab.fleet.fleet import Parts
from standfast_lab.fleet.member_process import ProcessNotReadyError

_LONG_TURNS = 1000
_LONG_SAMPLES = 60


@dataclass(frozen=True, slots=True)
class Ask:
    """What was asked for. `executable`: the CLI on this machine, for the bare runs. `rounds` None: each measurement's own number."""

    parts: Parts
    executable: Path
    rounds: int | None

    def rounds_or(self, usual: int) -> int:
        """How often to measure."""
        return self.rounds or usual


async def _live(ask: Ask, screen: Screen) -> list[Figure]:
    rounds = ask.rounds_or(100)
    async with open_site(ask.parts) as site:
        told = functools.partial(screen.progress, "live-turn, settled", whole=rounds)
        pairs = await live_pairs(site, ask.executable, rounds, told)
    return [*live_figures(pairs), *settled_figures(pairs)]


async def _restored(ask: Ask, screen: Screen) -> list[Figure]:
    rounds = ask.rounds_or(15)
    async with open_site(ask.parts) as site:
        told = functools.partial(screen.progress, "restored", whole=rounds)
        return await restored_figures(site, ask.executable, ask.parts.image, rounds, told)


async def _long(ask: Ask, screen: Screen) -> list[Figure]:
    samples, turns = min(ask.rounds_or(_LONG_SAMPLES), _LONG_TURNS - 1), _LONG_TURNS
    with tempfile.TemporaryDirectory(prefix="sf-bench-") as folder:
        parts = ticking_parts(Path(folder))
        async with open_site(parts) as site:
            told = functools.partial(screen.progress, "long", whole=turns)
            return await long_figures(site, executable_of(parts), turns, samples, told)


async def _streams(ask: Ask, screen: Screen) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="sf-bench-") as folder:
        parts = ticking_parts(Path(folder))
        async with open_site(parts) as site:
            told = functools.partial(screen.progress, "streams", whole=STEPS[-1])
            return await stream_figures(site, stop_file_of(parts), STEPS, screen.note, told)


async def _commit(ask: Ask, screen: Screen) -> list[Figure]:
    rounds = ask.rounds_or(500)
    return await commit_figures(rounds, functools.partial(screen.progress, "commit", whole=rounds))


async def _relay(ask: Ask, screen: Screen) -> list[Figure]:
    rounds = ask.rounds_or(200)
    return await relay_figures(rounds, functools.partial(screen.progress, "relay", whole=rounds))


# `live-turn` and `settled` are two readings of the same turns.
_MEASUREMENTS: tuple[tuple[frozenset[str], Callable[[Ask, Screen], Awaitable[list[Figure]]]], ...] = (
    (frozenset({"live-turn", "settled"}), _live),
    (frozenset({"restored"}), _restored),
    (frozenset({"long"}), _long),
    (frozenset({"streams"}), _streams),
    (frozenset({"commit"}), _commit),
    (frozenset({"relay"}), _relay),
)
NAMES = ("live-turn", "settled", "restored", "long", "streams", "commit", "relay")
_FAILURES = (StandfastError, ClientError, ProcessNotReadyError, UnfitTurnError, TimeoutError, EOFError, OSError)


def main() -> int:
    """Exit codes: 0 measured, 2 wrong usage, 3 something could not be measured."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measures the product against the bare thing that does the same work, in turn, on this machine.",
        epilog="Exit codes: 0 measured (a missed goal is no failure), 2 wrong usage, 3 something could not be measured.",
    )
    parser.add_argument("--engine", choices=["docker", "local"], required=True, help="what runs the sandboxes")
    parser.add_argument("--manifest", type=Path, required=True, help="release manifest of the image or the tool folder")
    parser.add_argument("--image", help="docker: the sandbox image")
    parser.add_argument("--tools", type=Path, required=True, help="the tool folder: `local` runs it, the bare runs too")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="NAME", help=" ".join(NAMES))
    parser.add_argument("--rounds", type=int, help="how often to measure; each measurement has a number of its own")
    parser.add_argument("--json", action="store_true", help="one JSON object a figure")
    given = parser.parse_args()
    if given.rounds is not None and given.rounds < 1:
        parser.error("--rounds is at least 1")
    if given.engine == "docker":
        parts = Parts("docker", given.manifest, image=given.image, labels=BENCH_LABEL)
    else:
        parts = Parts("local", given.manifest, tools=given.tools)
    ask = Ask(parts, given.tools / "claude-code" / "claude", given.rounds)
    return asyncio.run(_run(ask, frozenset(given.only), Screen(as_json=given.json)))


async def _run(ask: Ask, names: frozenset[str], screen: Screen) -> int:
    screen.note(
        f"engine {ask.parts.engine}; {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}; "
        f"Python {platform.python_version()}; long and streams run on local with a ticking CLI"
    )
    figures: list[Figure] = []
    failed: list[str] = []
    for belongs, measure in _MEASUREMENTS:
        wanted = names & belongs
        if not wanted:
            continue
        label = ", ".join(sorted(wanted))
        screen.note(f"measuring {label}")
        try:
            found = [figure for figure in await measure(ask, screen) if figure.name in wanted]
        except (*_FAILURES, ExceptionGroup) as error:
            if isinstance(error, ExceptionGroup) and error.split(_FAILURES)[1] is not None:
                raise
            failed.append(label)
            screen.note(f"{label} could not be measured: {_first(error)}")
            continue
        for figure in found:
            screen.figure(figure)
        figures += found
    screen.note(f"load at the end {os.getloadavg()[0]:.1f}")
    screen.summary(figures, failed)
    return 3 if failed else 0


def _first(error: BaseException) -> str:
    """What went wrong; of a group of reasons the first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main())
