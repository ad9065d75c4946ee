"""Every row that `scripts/recovery` prints, as a test: requests, executions, outcome, delays, and the totals of the matrix."""

from __future__ import annotations

from dataclasses import replace

import pytest

from standfast_lab.recovery.continuity import auxiliary, continuity
from standfast_lab.recovery.matrix import UNKNOWN_USAGE, Totals, matrix
from standfast_lab.recovery.story import Story, judged, tell
from standfast_lab.recovery.tables import all_tables, comparison


def named(story: Story) -> str:
    return f"{story.protocol}: {story.name} ({story.model[-5:]})"


@pytest.mark.parametrize("story", matrix(), ids=named)
async def test_matrix(story: Story) -> None:
    assert judged(story, await tell(story)).problems == ()


@pytest.mark.parametrize("story", all_tables(), ids=named)
async def test_table(story: Story) -> None:
    assert judged(story, await tell(story)).problems == ()


async def test_the_matrix_comes_to_the_published_totals() -> None:
    rows, unknown = [], 0
    for story in matrix():
        told = await tell(story)
        rows.append(judged(story, told))
        unknown += told.conversation.usage.is_unknown
    assert len(rows) == 54
    assert Totals.of(rows).is_as_published
    assert unknown == UNKNOWN_USAGE


async def test_continuity_and_auxiliary_calls() -> None:
    assert [row.problems for row in [*await continuity(), *await auxiliary()] if not row.passed] == []


async def test_a_row_that_is_not_as_expected_does_not_pass() -> None:
    story = replace(comparison()[0], requests=4, gaps_s=(1, 1))
    row = judged(story, await tell(story))
    assert not row.passed
    assert len(row.problems) == 3
