"""What a host signed is read strictly; what it measured is compared item by item."""

from __future__ import annotations

from typing import Any

import pytest

from sandbox_manager.core.codec import CodecError, to_json
from sandbox_manager.core.evidence import evidence_items
from sandbox_manager.core.host_statements import sandbox_statement, store_statement
from sandbox_manager.core.values import StoreReading

SANDBOX: dict[str, Any] = {
    "state": "running",
    "container_id": "k",
    "image_id": "i",
    "nonce": "n",
    "started_at": "s",
    "finished_at": None,
    "exit_code": 0,
    "oom_killed": False,
    "orderly": None,
    "created_now": True,
    "started_now": False,
    "workspace": "/workspace",
    "measured": {"supervisor": {}},
}


def test_a_sandbox_statement_is_read_whole() -> None:
    found = sandbox_statement(SANDBOX)
    assert (found.state, found.container_id, found.nonce, found.created_now) == ("running", "k", "n", True)
    assert (found.orderly, found.exit_code) == (None, 0)


def test_what_a_statement_does_not_say_is_none() -> None:
    found = sandbox_statement({"state": "absent"})
    assert (found.container_id, found.nonce, found.orderly, found.exit_code, found.measured) == (None,) * 5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("state", "gone"),
        ("state", None),
        ("container_id", 7),
        ("nonce", ["n"]),
        ("exit_code", True),
        ("exit_code", "0"),
        ("orderly", 1),
        ("created_now", "yes"),
        ("measured", "all"),
    ],
)
def test_a_value_of_another_kind_is_refused_by_its_place(name: str, value: object) -> None:
    with pytest.raises(CodecError) as error:
        sandbox_statement(SANDBOX | {name: value})
    assert error.value.metadata["at"] == f"$.{name}"


def test_a_store_statement_names_its_container() -> None:
    reading = StoreReading("ABSENT", None, None, 0, None, None)
    assert store_statement({"container_id": "k", "reading": to_json(reading)}).reading == reading
    for wrong in ({"reading": to_json(reading)}, {"container_id": "k"}, {"container_id": "k", "reading": {}}):
        with pytest.raises(CodecError):
            store_statement(wrong)


def test_evidence_is_one_text_an_item_and_what_is_absent_is_left_out() -> None:
    claims: dict[str, Any] = {
        "image_id": "i",
        "helper": None,
        "protocol_version": 1,
        "supervisor": {"version": "1", "digest": None},
        "agents": {"claude-code": {"version": "2", "digest": "d"}, "broken": None},
        "updater": {"claude-code": "off"},
    }
    assert evidence_items(claims) == {
        "image_id": "i",
        "protocol_version": "1",
        "supervisor.version": "1",
        "cli.claude-code.version": "2",
        "cli.claude-code.digest": "d",
        "cli.claude-code.updater": "off",
    }
    assert evidence_items({}) == {}
    assert evidence_items({"protocol_version": True, "agents": [], "supervisor": "x", "image_id": 3}) == {}


def test_one_word_for_all_updaters_counts_for_each() -> None:
    claims = {"agents": {"a": {"version": "1"}, "b": {"version": "1", "updater": "on"}}, "updater": "off"}
    items = evidence_items(claims)
    assert (items["cli.a.updater"], items["cli.b.updater"]) == ("off", "on")
