"""The bench judges right, and its parts still measure: the figures themselves are never a test."""

from __future__ import annotations

import math
import uuid
from pathlib import Path

import pytest

from standfast_lab.bare_claude import BareClaude, bare_environment, transcript_records
from standfast_lab.bench.bare_turns import bare_turn
from standfast_lab.bench.commits import commit_figures
from standfast_lab.bench.figures import Figure, median, p99, summed_up
from standfast_lab.bench.relay import relay_figures
from standfast_lab.bench.ticking_tools import executable_of, stop_file_of, ticking_parts
from standfast_lab.provider import LabProvider


@pytest.mark.parametrize(
    ("values", "expected"),
    [([3.0], 3.0), (list(range(1, 101)), 99), (list(range(1, 100)), 99), (list(range(1, 1001)), 990)],
)
def test_the_99th_percentile_is_what_99_of_100_do_not_exceed(values: list[float], expected: float) -> None:
    assert p99(values) == expected


@pytest.mark.parametrize(
    ("value", "goal", "bound", "is_met"),
    [
        (1.0, 1.0, "at most", True),
        (1.1, 1.0, "at most", False),
        (500.0, 500.0, "at least", True),
        (499.0, 500.0, "at least", False),
        (math.nan, 1.0, "at most", False),
        (math.nan, 1.0, "at least", False),
        (9.0, None, "at most", None),
    ],
)
def test_a_goal_is_met_only_by_a_number_within_it(value: float, goal: float | None, bound: str, is_met: bool) -> None:
    figure = Figure("x", "what", value, "ms", goal, "at most" if bound == "at most" else "at least")
    assert figure.is_met is is_met
    assert figure.as_json()["is_met"] is is_met


def test_nothing_measured_meets_nothing() -> None:
    assert math.isnan(median([]))
    assert math.isnan(p99([]))
    assert summed_up("ours", [])["ours_n"] == 0


async def test_commits_and_relay_are_measured() -> None:
    done: list[int] = []
    figures = await commit_figures(3, done.append) + await relay_figures(2, done.append)
    assert [figure.name for figure in figures] == ["commit"] * 2 + ["relay"] * 3
    assert all(figure.value > 0 for figure in figures)
    assert done


async def test_the_ticking_cli_ticks_until_it_is_stopped_and_keeps_a_chain(tmp_path: Path) -> None:
    parts = ticking_parts(tmp_path / "tools")
    home, workspace = tmp_path / "home", tmp_path / "workspace"
    for folder in (home, workspace):
        folder.mkdir()
    session_id = str(uuid.uuid4())
    async with LabProvider() as lab:
        for is_resume in (False, True):
            cli = BareClaude(
                executable_of(parts),
                workspace=workspace,
                environment=bare_environment(home, lab.base_url),
                session_id=session_id,
                is_resume=is_resume,
                flags=(),
            )
            async with cli:
                await cli.control("initialize")
                await bare_turn(cli, "hello", home, session_id)
                stop_file_of(parts).unlink(missing_ok=True)
                sent = await cli.send("ticks: 100 100000")
                await cli.until(lambda event: event["type"] == "stream_event", sent)
                stop_file_of(parts).touch()
                await cli.until(lambda event: event["type"] == "result", sent)
                assert await cli.close() == 0
    records = transcript_records(home, session_id)
    assert [record["type"] for record in records] == ["user", "assistant"] * 4
    assert [record["parentUuid"] for record in records] == [None, *(record["uuid"] for record in records[:-1])]
