"""The vectors that both sides must pass, on the manager's side: raw lines, the tap reader, the verdict."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandbox_manager.core.values import RelayFindings, Verdict
from sandbox_manager.core.verdict import judge
from tests.unit.sandbox_manager.settled_turn import AGENT, SESSION, digest, whole_turn

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "identity.json").read_text())


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_the_managers_verdict_on_a_vector(vector: dict[str, Any]) -> None:
    assert vector["session"] == SESSION
    reader = AGENT.tap_reader(message_id=vector["message_id"], start_offset=0)
    reader.feed("".join(f"{line}\n" for line in vector["lines"]).encode())
    turn = whole_turn(first=vector["is_first_turn"])
    found = reader.findings()
    observation = replace(
        turn.observation,
        tap=found,
        tap_gap=vector["gap"],
        process_was_new=vector["process_is_new"],
        relay=RelayFindings(1, tuple(text.text_digest for text in found.assistant), unread=False, statuses=(200,)),
    )
    verdict = judge(turn.expected, observation)
    if vector["expect"] == "NOT_CONFIRMED":
        assert verdict.identity is not Verdict.CONFIRMED
    else:
        assert verdict.identity is Verdict(vector["expect"])
    if verdict.identity is not Verdict.CONFIRMED:
        assert not verdict.is_settled
        assert (verdict.locator, verdict.store_record) == (None, None)


def test_the_vectors_hold_every_verdict_and_each_name_once() -> None:
    assert {vector["expect"] for vector in VECTORS} == {"CONFIRMED", "CONTRADICTED", "UNPROVEN", "NOT_CONFIRMED"}
    assert len({vector["name"] for vector in VECTORS}) == len(VECTORS)
    assert digest("plum")
