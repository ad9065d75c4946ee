"""Each scenario of the lab with each CLI on `local`: the core set always, the others with --full."""

from __future__ import annotations

import pytest

from standfast_lab.lab import scenarios
from standfast_lab.lab.agents import AgentWords
from standfast_lab.lab.matrix import play_cell
from standfast_lab.lab.scenario import SCENARIOS, Scenario
from standfast_lab.lab.site import LabSite

pytestmark = [pytest.mark.engine("local"), pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(320)]
assert scenarios.__all__  # imported for what it puts on the list

CELLS = [
    pytest.param(one, id=one.name, marks=() if one.is_core else pytest.mark.full)
    for one in sorted(SCENARIOS.values(), key=lambda one: one.is_alone)
]


@pytest.mark.parametrize("scenario", CELLS)
async def test_the_scenario_holds(site: LabSite, agent: AgentWords, scenario: Scenario) -> None:
    cell = await play_cell(scenario, site, agent, 1)
    assert cell.passed is not False, cell.detail
