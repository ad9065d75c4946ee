"""The runner's witness gives the verdict of every shared vector."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runner.core.identity import IdentityJudge
from runner.core.verdict import Verdict
from runner.drivers.claude_code.driver import ClaudeCodeDriver

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parents[2] / "vectors" / "identity.json").read_text())


def verdict_on(vector: dict[str, Any]) -> Verdict:
    driver = ClaudeCodeDriver()
    message_id = vector["message_id"] or "99999999-0000-4000-8000-000000000009"
    driver.expect(process_is_new=vector["process_is_new"], message_id=message_id)
    judge = IdentityJudge(vector["session"], naming=frozenset({"system/init"}))
    events = driver.feed("".join(line + "\n" for line in vector["lines"]).encode())
    for event in [*events, *driver.end_of_stream()]:
        judge.observe(event.body)
    if vector["gap"]:
        judge.observe_gap()
    return judge.verdict().verdict


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"].replace(" ", "-") for vector in VECTORS])
def test_the_runners_verdict_is_the_vectors(vector: dict[str, Any]) -> None:
    found = verdict_on(vector)
    if vector["expect"] == "NOT_CONFIRMED":
        assert found is not Verdict.CONFIRMED
    else:
        assert found is Verdict[vector["expect"]]
