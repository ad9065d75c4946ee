"""Whether our share of a turn grows with its conversation: turn 1,000 against turn 2, the store's digest apart; and what that digest costs.

An old conversation is really held, on `local` with the ticking CLI, whose own cost does not grow. Then its next turns, turns of a young
conversation and turns of the bare CLI are taken in turn, so that all meet the same machine. The digest's cost is measured on stores of two
sizes, so that what a reading costs without its bytes does not count, beside the bare hashing of the same bytes.
"""

from __future__ import annotations

import hashlib
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

_OLD, _YOUNG = "bench-old", "bench-young"
_SMALL_BYTES, _LARGE_BYTES = 1 << 20, 33 << 20
_READINGS = 15
_READ_TIMEOUT_S = 60.0
# Before the first text of a LIVE turn the store is read twice: by the manager's Prepare, and by the host agent before its report.
_READINGS_BEFORE_TEXT = 2
_READINGS_IN_ALL = 3


@dataclass(frozen=True, slots=True)
class Samples:
    """Turns of the same minutes."""

    old: list[TimedTurn]
    young: list[TimedTurn]
    bare: list[BareTurn]


async def long_figures(
    site: Site, executable: Path, turns: int, samples: int, progress: Callable[[int], None]
) -> list[Figure]:
    """Holds a conversation of `turns`, the last `samples` of them in turn with as many of a young one."""
    home, workspace = site.folder / "bare-home", site.folder / "bare-workspace"
    for folder in (home, workspace):
        folder.mkdir()
    session_id = str(uuid.uuid4())
    cli = BareClaude(
        executable,
        workspace=workspace,
        environment=bare_environment(home, site.lab.base_url),
        session_id=session_id,
        flags=(),
    )
    taken = Samples([], [], [])
    async with cli:
        for number in range(1, turns - samples + 1):
            await timed_turn(site.client, _OLD, _message(number), "NEW" if number == 1 else "LIVE")
            progress(number)
        await timed_turn(site.client, _YOUNG, _message(1), "NEW")
        for number in range(turns - samples + 1, turns + 1):
            taken.old.append(await timed_turn(site.client, _OLD, _message(number), "LIVE"))
            taken.young.append(await timed_turn(site.client, _YOUNG, _message(number), "LIVE"))
            taken.bare.append(await bare_turn(cli, _message(number), None, session_id))
            progress(number)
    last = taken.old[-1].turn
    transcript = _transcript(site, last)
    megabytes = transcript.stat().st_size / 1e6
    digest_ms_per_mb, digest_detail = await _digest(site, last, transcript)
    return [
        *_shares(taken, turns, megabytes, digest_ms_per_mb),
        Figure("long", "digest of a native store, per MB", digest_ms_per_mb, "ms/MB", 1.5, detail=digest_detail),
    ]


def _message(number: int) -> str:
    return f"message {number} " + "of a talk that goes on and on " * 8


def _shares(taken: Samples, turns: int, megabytes: float, digest_ms_per_mb: float) -> list[Figure]:
    figures = []
    for what, old, young, bare, readings in (
        (
            "to the last content event",
            [t.last_ms for t in taken.old],
            [t.last_ms for t in taken.young],
            [t.last_ms for t in taken.bare],
            _READINGS_BEFORE_TEXT,
        ),
        (
            "of the whole turn, to settled",
            [t.settled_ms for t in taken.old],
            [t.settled_ms for t in taken.young],
            [t.ended_ms for t in taken.bare],
            _READINGS_IN_ALL,
        ),
    ):
        digest_ms = digest_ms_per_mb * megabytes * readings
        young_ms, old_ms = median(young) - median(bare), median(old) - median(bare)
        detail: dict[str, float | int | str] = {
            "young_share_ms": round(young_ms, 3),
            "old_share_ms": round(old_ms, 3),
            "of_that_digest_ms": round(digest_ms, 3),
            "store_mb": round(megabytes, 3),
        }
        detail |= summed_up("old", old) | summed_up("young", young) | summed_up("bare", bare)
        what = f"our share {what}, turn {turns:,} over turn 2"
        figures.append(Figure("long", what, (old_ms - digest_ms) / young_ms, "x", 1.1, detail=detail))
    return figures


async def _digest(site: Site, turn: runner_pb2.Turn, transcript: Path) -> tuple[float, dict[str, float | int | str]]:
    """Reads the store through the host agent at two sizes, in turn; the file is the bench's to spoil by now."""
    group_id = _group_of(site, transcript)
    small, large = transcript.with_name("small.jsonl"), transcript.with_name("large.jsonl")
    line = b'{"type":"mode","mode":"normal","padding":"' + b"x" * 900 + b'"}\n'
    for path, size in ((small, _SMALL_BYTES), (large, _LARGE_BYTES)):
        path.write_bytes(line * (size // len(line)))
    taken: dict[str, list[float]] = {"small": [], "large": []}
    bare: dict[str, list[float]] = {"small": [], "large": []}
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
                read = time.perf_counter()
                hashlib.sha256(path.read_bytes()).hexdigest()
                if number >= 0:
                    taken[name].append((read - begun) * 1000)
                    bare[name].append((time.perf_counter() - read) * 1000)
    megabytes = (large.stat().st_size - small.stat().st_size) / 1e6
    return (median(taken["large"]) - median(taken["small"])) / megabytes, {
        **summed_up("reading_1_MB", taken["small"]),
        **summed_up("reading_35_MB", taken["large"]),
        "bare_sha256_ms_per_mb": round((median(bare["large"]) - median(bare["small"])) / megabytes, 3),
    }


def _transcript(site: Site, turn: runner_pb2.Turn) -> Path:
    return next(site.folder.glob(f"h/g/**/{turn.locator.native_session_id}.jsonl"))


def _group_of(site: Site, transcript: Path) -> str:
    """The group whose retained folder the file lies in: `standfast-GROUP-GENERATION`."""
    folder = next(part for part in transcript.relative_to(site.folder).parts if part.startswith("standfast-"))
    return folder.removeprefix("standfast-").rpartition("-")[0]
