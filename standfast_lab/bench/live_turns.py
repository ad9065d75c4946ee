"""LIVE turns against the same CLI driven directly over its stdio, message by message in turn; the provider has no latency.

Both CLIs run the same program with the same flags, each with a session of its own that grows alike. The bare one runs on the machine
itself: whatever a container costs is ours.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from standfast_lab.bare_claude import BareClaude, bare_environment
from standfast_lab.bench.bare_turns import FLAGS, BareTurn, bare_turn
from standfast_lab.bench.figures import Figure, median, p99, summed_up
from standfast_lab.bench.site import Site
from standfast_lab.bench.turns import TimedTurn, timed_turn

_WARM_UP = 4


@dataclass(frozen=True, slots=True)
class Pairs:
    """Turns of both, in the order they were taken."""

    ours: list[TimedTurn]
    bare: list[BareTurn]


@asynccontextmanager
async def bare_cli(executable: Path, folder: Path, base_url: str) -> AsyncIterator[tuple[BareClaude, Path, str]]:
    """A bare CLI with a home and a workspace of its own, the home, and the session's id."""
    home, workspace = folder / "bare-home", folder / "bare-workspace"
    for path in (home, workspace):
        path.mkdir(exist_ok=True)
    session_id = str(uuid.uuid4())
    cli = BareClaude(
        executable,
        workspace=workspace,
        environment=bare_environment(home, base_url),
        session_id=session_id,
        flags=FLAGS,
    )
    async with cli:
        yield cli, home, session_id


async def live_pairs(site: Site, executable: Path, rounds: int, progress: Callable[[int], None]) -> Pairs:
    """Takes pairs of LIVE turns. The order within a pair changes every time."""
    ours: list[TimedTurn] = []
    bare: list[BareTurn] = []
    async with bare_cli(executable, site.folder, site.lab.base_url) as (cli, home, session_id):
        for number in range(-_WARM_UP, rounds):
            message = f"message {number + _WARM_UP} of a talk that goes on"

            async def one_of_ours(message: str = message, number: int = number) -> TimedTurn:
                state = "NEW" if number == -_WARM_UP else "LIVE"
                return await timed_turn(site.client, "bench-live", message, state)

            if number % 2:
                our_turn = await one_of_ours()
                bare_one = await bare_turn(cli, message, home, session_id)
            else:
                bare_one = await bare_turn(cli, message, home, session_id)
                our_turn = await one_of_ours()
            if number >= 0:
                ours.append(our_turn)
                bare.append(bare_one)
                progress(number + 1)
    return Pairs(ours, bare)


def live_figures(pairs: Pairs) -> list[Figure]:
    """First and last content event: the difference of the medians, and of the 99th percentiles."""
    figures = []
    for what, ours, bare in (
        ("first content event", [t.first_ms for t in pairs.ours], [t.first_ms for t in pairs.bare]),
        ("last content event", [t.last_ms for t in pairs.ours], [t.last_ms for t in pairs.bare]),
    ):
        detail = summed_up("ours", ours) | summed_up("bare", bare)
        more = f"{what}, more than the bare CLI"
        figures.append(Figure("live-turn", f"{more}, median", median(ours) - median(bare), "ms", 10.0, detail=detail))
        figures.append(Figure("live-turn", f"{more}, p99", p99(ours) - p99(bare), "ms", 25.0, detail=detail))
    return figures


def settled_figures(pairs: Pairs) -> list[Figure]:
    """Settled against the bare CLI's end event plus the time until its history is on disk."""
    ours, bare = [t.settled_ms for t in pairs.ours], [t.on_disk_ms for t in pairs.bare]
    after = [t.settled_ms - t.ended_ms for t in pairs.ours]
    bare_after = [t.on_disk_ms - t.ended_ms for t in pairs.bare]
    detail = summed_up("ours", ours) | summed_up("bare_on_disk", bare)
    return [
        Figure(
            "settled",
            "settled, more than end event + history on disk, median",
            median(ours) - median(bare),
            "ms",
            15.0,
            detail=detail,
        ),
        Figure(
            "settled",
            "the same counted from each one's end event",
            median(after) - median(bare_after),
            "ms",
            None,
            detail=summed_up("ours", after) | summed_up("bare", bare_after),
        ),
    ]
