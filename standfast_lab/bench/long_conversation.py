"""Whether our share of a turn grows with its conversation: turn 1,000 against turn 2, the store's digest apart; and what that digest costs.

The conversation is really held, on `local` with the ticking CLI, whose own cost does not grow; the same CLI is driven barely, too, and its
time subtracted. The digest's cost is measured on stores of two sizes, so that what a reading costs without its bytes does not count.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from standfast.host.v1 import host_agent_pb2 as host_pb
from standfast.host.v1 import host_agent_pb2_grpc
from standfast.runner.v1 import runner_pb2
from standfast_chassis.grpc_channel import open_channel
from standfast_lab.bare_claude import BareClaude, bare_environment
from standfast_lab.bench.bare_turns import BareTurn, bare_turn
from standfast_lab.bench.figures import Figure, median, summed_up
from standfast_lab.bench.site import Site
from standfast_lab.bench.turns import TimedTurn, timed_turn

_CONVERSATION = "bench-long"
_SMALL_BYTES, _LARGE_BYTES = 1 << 20, 33 << 20
_READINGS = 15
_READ_TIMEOUT_S = 60.0
# Before the first text of a LIVE turn the store is read twice: by the manager's Prepare, and by the host agent before its report.
_READINGS_BEFORE_TEXT = 2
_READINGS_IN_ALL = 3


@dataclass(frozen=True, slots=True)
class Window:
    """Turns of one age."""

    ours: list[TimedTurn]
    bare: list[BareTurn]

    def share_of_text_ms(self) -> float:
        """Our part of the time to the last text: ours less the bare CLI's."""
        return median([t.last_ms for t in self.ours]) - median([t.last_ms for t in self.bare])

    def share_settled_ms(self) -> float:
        """Our part of the whole turn."""
        return median([t.settled_ms for t in self.ours]) - median([t.ended_ms for t in self.bare])


async def long_figures(
    site: Site, executable: Path, turns: int, window: int, progress: Callable[[int], None]
) -> list[Figure]:
    """Holds a conversation of `turns`. The first and the last `window` of them (turn 1 apart) are compared."""
    home, workspace = site.folder / "bare-home", site.folder / "bare-workspace"
    for folder in (home, workspace):
        folder.mkdir()
    session_id = str(uuid.uuid4())
    young, old = Window([], []), Window([], [])
    cli = BareClaude(
        executable,
        workspace=workspace,
        environment=bare_environment(home, site.lab.base_url),
        session_id=session_id,
        flags=(),
    )
    last = None
    async with cli:
        for number in range(1, turns + 1):
            message = f"message {number} " + "of a talk that goes on and on " * 8
            our_turn = await timed_turn(site.client, _CONVERSATION, message, "NEW" if number == 1 else "LIVE")
            bare_one = await bare_turn(cli, message, None, session_id)
            last = our_turn.turn
            where = young if 1 < number <= window + 1 else old if number > turns - window else None
            if where is not None:
                where.ours.append(our_turn)
                where.bare.append(bare_one)
            progress(number)
    assert last is not None
    transcript = _transcript(site, last)
    megabytes = transcript.stat().st_size / 1e6
    digest_ms_per_mb, digest_detail = await _digest(site, last, transcript)
    return [
        *_shares(young, old, turns, megabytes, digest_ms_per_mb),
        Figure("long", "digest of a native store, per MB", digest_ms_per_mb, "ms/MB", 1.5, detail=digest_detail),
    ]


def _shares(young: Window, old: Window, turns: int, megabytes: float, digest_ms_per_mb: float) -> list[Figure]:
    figures = []
    for what, early_ms, late_ms, readings in (
        ("to the last content event", young.share_of_text_ms(), old.share_of_text_ms(), _READINGS_BEFORE_TEXT),
        ("of the whole turn, to settled", young.share_settled_ms(), old.share_settled_ms(), _READINGS_IN_ALL),
    ):
        digest_ms = digest_ms_per_mb * megabytes * readings
        detail: dict[str, float | int | str] = {
            "turn_2_share_ms": round(early_ms, 3),
            f"turn_{turns}_share_ms": round(late_ms, 3),
            "of_that_digest_ms": round(digest_ms, 3),
            "store_mb": round(megabytes, 3),
            "window_turns": len(young.ours),
        }
        detail |= summed_up("turn_2_ours", [t.last_ms for t in young.ours])
        detail |= summed_up("turn_2_bare", [t.last_ms for t in young.bare])
        detail |= summed_up("late_ours", [t.last_ms for t in old.ours])
        detail |= summed_up("late_bare", [t.last_ms for t in old.bare])
        ratio = (late_ms - digest_ms) / early_ms
        what = f"our share {what}, turn {turns:,} over turn 2"
        figures.append(Figure("long", what, ratio, "x", 1.1, detail=detail))
    return figures


async def _digest(site: Site, turn: runner_pb2.Turn, transcript: Path) -> tuple[float, dict[str, float | int | str]]:
    """Reads the store through the host agent at two sizes, in turn; the file is the bench's to spoil by now."""
    group_id = _group_of(site, transcript)
    small, large = transcript.with_name("small.jsonl"), transcript.with_name("large.jsonl")
    line = b'{"type":"mode","mode":"normal","padding":"' + b"x" * 900 + b'"}\n'
    for path, size in ((small, _SMALL_BYTES), (large, _LARGE_BYTES)):
        path.write_bytes(line * (size // len(line)))
    taken: dict[str, list[float]] = {"small": [], "large": []}
    async with open_channel(site.fleet.host_agent.address) as channel:
        stub: host_agent_pb2_grpc.HostAgentServiceAsyncStub = host_agent_pb2_grpc.HostAgentServiceStub(channel)
        for number in range(-1, _READINGS):
            for name, path in (("small", small), ("large", large)):
                request = host_pb.ReadStoreRequest(
                    group_id=group_id,
                    container_generation=turn.generations.container,
                    slot=1,
                    locator=turn.locator,
                    prefix_length=path.stat().st_size,
                )
                request.locator.native_session_id = name
                request.locator.store = str(Path(turn.locator.store).with_name(path.name))
                begun = time.perf_counter()
                await stub.ReadStore(request, timeout=_READ_TIMEOUT_S)
                if number >= 0:
                    taken[name].append((time.perf_counter() - begun) * 1000)
    megabytes = (large.stat().st_size - small.stat().st_size) / 1e6
    return (median(taken["large"]) - median(taken["small"])) / megabytes, {
        **summed_up("reading_1_MB", taken["small"]),
        **summed_up("reading_35_MB", taken["large"]),
    }


def _transcript(site: Site, turn: runner_pb2.Turn) -> Path:
    return next(site.folder.glob(f"h/g/**/{turn.locator.native_session_id}.jsonl"))


def _group_of(site: Site, transcript: Path) -> str:
    """The group whose retained folder the file lies in: `standfast-GROUP-GENERATION`."""
    folder = next(part for part in transcript.relative_to(site.folder).parts if part.startswith("standfast-"))
    return folder.removeprefix("standfast-").rpartition("-")[0]
