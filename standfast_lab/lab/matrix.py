"""Runs cells: each agent's scenarios on one site, those that disturb the whole product last and one by one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from standfast_lab.fleet.fleet import Parts
from standfast_lab.lab.agents import AgentWords
from standfast_lab.lab.checks import LabCheckError
from standfast_lab.lab.play import Play
from standfast_lab.lab.scenario import Scenario
from standfast_lab.lab.site import LabSite

SCENARIO_TIMEOUT_S = 300.0
_DETAIL_CHARS = 4000


@dataclass(frozen=True)
class Cell:
    """One result. `passed` None: this CLI cannot show the scenario, and the detail says why."""

    agent: str
    scenario: str
    passed: bool | None
    detail: str
    seconds: float
    round: int

    def as_json(self) -> dict[str, Any]:
        """For one line of output."""
        return asdict(self)


Told = Callable[[Cell], None]


async def run_agent(
    agent: AgentWords, scenarios: Sequence[Scenario], folder: Path, parts: Parts, *, rounds: int, jobs: int, told: Told
) -> None:
    """Plays every scenario `rounds` times on one site; `told` hears each result as it comes."""
    async with LabSite(folder, parts, agent) as site:
        for number in range(1, rounds + 1):
            limit = asyncio.Semaphore(jobs)

            async def beside(one: Scenario, number: int = number, limit: asyncio.Semaphore = limit) -> None:
                async with limit:
                    told(await play_cell(one, site, agent, number))

            async with asyncio.TaskGroup() as group:
                for one in scenarios:
                    if not one.is_alone:
                        group.create_task(beside(one))
            for one in scenarios:
                if one.is_alone:
                    told(await play_cell(one, site, agent, number))


async def play_cell(scenario: Scenario, site: LabSite, agent: AgentWords, number: int) -> Cell:
    """Plays one scenario and judges it."""
    begun = time.monotonic()

    def cell(passed: bool | None, detail: str) -> Cell:
        return Cell(
            agent.name, scenario.name, passed, detail[:_DETAIL_CHARS], round(time.monotonic() - begun, 1), number
        )

    if (reason := agent.cannot.get(scenario.name)) is not None:
        return cell(None, f"cannot: {reason}")
    play = Play(scenario.name, site, agent)
    try:
        async with asyncio.timeout(SCENARIO_TIMEOUT_S):
            await scenario.act(play)
    except LabCheckError as error:
        return cell(False, f"after {play.summary}: {error}")
    except Exception as error:  # noqa: BLE001 outermost of the cell: whatever breaks in one must not end the matrix
        return cell(False, f"after {play.summary}: {type(error).__name__}: {error}")
    return cell(True, play.summary)
