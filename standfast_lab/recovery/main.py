"""Tells every recovery scenario and prints a row for each. Nothing leaves loopback; hours pass by a clock turned by hand."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence

from standfast_lab.recovery.continuity import auxiliary, continuity
from standfast_lab.recovery.matrix import EXECUTIONS, RECOVERIES, REQUESTS, STOPS, Totals, matrix
from standfast_lab.recovery.story import Row, judged, tell
from standfast_lab.recovery.tables import alike, comparison, different, limits, waiting

SETS = ("matrix", "comparison", "alike", "different", "waiting", "limits", "continuity", "auxiliary")
STORY_TIMEOUT_S = 60


async def rows(names: Sequence[str]) -> AsyncIterator[Row]:
    """The rows of the named sets, in the order of SETS."""
    stories = {"comparison": comparison, "alike": alike, "different": different, "waiting": waiting, "limits": limits}
    if "matrix" in names:
        told = []
        for story in matrix():
            async with asyncio.timeout(STORY_TIMEOUT_S):
                row = judged(story, await tell(story))
            told.append(row)
            yield row
        yield _totals(told)
    for name in SETS:
        if name in names and name in stories:
            for story in stories[name]():
                async with asyncio.timeout(STORY_TIMEOUT_S):
                    row = judged(story, await tell(story))
                yield row
    for name, make in (("continuity", continuity), ("auxiliary", auxiliary)):
        if name in names:
            for row in await make():
                yield row


def _totals(told: Sequence[Row]) -> Row:
    totals = Totals.of(told)
    problems = () if totals.is_as_published else (f"found {totals}",)
    name = f"matrix totals: {REQUESTS} requests, {EXECUTIONS} executions, {RECOVERIES} recoveries, {STOPS} stops"
    end = "completed" if not problems else "failed"
    return Row("all", name, totals.requests, totals.executions, end, not problems, problems, "all")


async def _report(names: Sequence[str], as_json: bool) -> int:
    failed = told = 0
    async for row in rows(names):
        told += 1
        failed += not row.passed
        if as_json:
            print(json.dumps(_fields(row)), flush=True)
        else:
            mark = "ok  " if row.passed else "FAIL"
            print(
                f"{mark} {row.protocol:16} {row.requests:>3}/{row.executions:<3} {row.outcome:10} {row.scenario}",
                flush=True,
            )
        for problem in row.problems:
            print(f"{row.protocol}, {row.scenario}: {problem}", file=sys.stderr)
    print(f"{told - failed} of {told} scenarios passed", file=sys.stderr)
    return 1 if failed else 0


def _fields(row: Row) -> dict[str, object]:
    return {
        "protocol": row.protocol,
        "scenario": row.scenario,
        "requests": row.requests,
        "executions": row.executions,
        "outcome": row.outcome,
        "passed": row.passed,
        "model": row.model,
    }


def main() -> int:
    """Entry point. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/recovery", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object a row on standard output")
    parser.add_argument("--only", nargs="+", choices=SETS, default=SETS, metavar="SET", help=", ".join(SETS))
    arguments = parser.parse_args()
    return asyncio.run(_report(arguments.only, arguments.json))
