"""Every row that `scripts/recovery` prints, as a test: requests, executions, outcome, delays, and the totals of the matrix."""

from __future__ import annotations

from dataclasses import replace

import pytest

from standfast_lab.recovery.continuity import auxiliary, continuity
from standfast_lab.recovery.matrix import UNKNOWN_USAGE, Totals, matrix
from standfast_lab.recovery.story import Row, Story, judged, tell
from standfast_lab.recovery.tables import all_tables, comparison


def named(story: Story) -> str:
    return f"{story.protocol}: {story.name} ({story.model[-5:]})"


@pytest.mark.parametrize("story", matrix(), ids=named)
async def test_matrix(story: Story) -> None:
    assert judged(story, await tell(story)).problems == ()


@pytest.mark.parametrize("story", all_tables(), ids=named)
async def test_table(story: Story) -> None:
    assert judged(story, await tell(story)).problems == ()


def test_the_matrix_comes_to_the_published_totals() -> None:
    """Each story's own numbers are proved above; this says that they are the published ones."""
    stories = matrix()
    rows = [Row(each.protocol, each.name, each.requests, each.executions, each.outcome, True) for each in stories]
    assert len(rows) == 54
    assert Totals.of(rows).is_as_published
    assert sum(each.usage_unknown is True for each in stories) == UNKNOWN_USAGE


async def test_continuity_and_auxiliary_calls() -> None:
    assert [row.problems for row in [*await continuity(), *await auxiliary()] if not row.passed] == []


async def test_a_row_that_is_not_as_expected_does_not_pass() -> None:
    story = replace(comparison()[0], requests=4, gaps_s=(1, 1))
    row = judged(story, await tell(story))
    assert not row.passed
    assert len(row.problems) == 3
