"""Fifty turns at once end right, within bounds of time and memory."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.scenarios.stage import Stage

pytestmark = [pytest.mark.engine("local"), pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

TURNS = 50
_TIME_MAX_S = 180.0
# Of manager, host agent and runner together, for all fifty. The goal of the design (1 MiB a turn) is measured by scripts/bench.
_GROWTH_MAX_BYTES = 150 * 1024 * 1024


def resident_bytes(pids: list[int]) -> int:
    total = 0
    for pid in pids:
        for line in (Path("/proc") / str(pid) / "status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                total += int(line.split()[1]) * 1024
    return total


async def test_fifty_turns_at_once_end_right(stage: Stage) -> None:
    await stage.begin("warm")
    pids = [member.pid for member in stage.fleet.members]
    before = resident_bytes(pids)
    began = time.monotonic()
    names = [f"many-{number}" for number in range(TURNS)]
    first = await asyncio.gather(
        *(stage.begin(name, f"remember: the colour is {name}") for name in names), return_exceptions=False
    )
    assert [told.text for told in first] == [f"noted: {name}" for name in names]
    second = await asyncio.gather(*(stage.ask(name, "what is the colour?") for name in names))
    took_s = time.monotonic() - began
    grown = resident_bytes(pids) - before
    assert [told.text for told in second] == [f"the colour is {name}" for name in names]
    assert {(told.state, told.outcome, told.verdicts) for told in second} == {
        ("LIVE", "COMPLETED", ("CONFIRMED", "CONFIRMED"))
    }
    assert len({told.session for told in second}) == TURNS
    assert took_s < _TIME_MAX_S
    assert grown < _GROWTH_MAX_BYTES
    await asyncio.gather(*(stage.client.stop_conversation(name) for name in names))
