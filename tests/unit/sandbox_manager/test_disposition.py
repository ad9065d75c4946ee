"""What becomes of the process, as the host can tell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sandbox_manager.core.values import Census, ProcessDisposition
from sandbox_manager.host.core.disposition import AfterTurn, DispositionPolicy, LeaveBy, after_verdict, decide
from sandbox_manager.host.core.store_wait import is_settled_on_disk, missing, must_read_after_exit
from tests.unit.sandbox_manager.settled_turn import (
    CLI,
    FIRST_PART,
    MESSAGE_ID,
    OTHER_SESSION,
    SESSION,
    findings,
    printed,
    read,
)

KEPT, RETIRED, RECLAIM = ProcessDisposition.KEPT, ProcessDisposition.RETIRED, ProcessDisposition.RECLAIM_FIRST
GOOD = findings(printed())
IN_ORDER = AfterTurn(
    findings=GOOD,
    expected_session_id=SESSION,
    census=Census(complete=True, kept=(CLI,), killed=0, remaining=(), unattributed=0),
    agent_rule=None,
    interrupted_by=None,
    process_alive=True,
    tap_gap=False,
    store_is_complete=True,
)


@pytest.mark.parametrize(
    ("changes", "what", "reason"),
    [
        ({}, KEPT, "ALL_IN_ORDER"),
        ({"agent_rule": "API_RETRY_SEEN"}, RETIRED, "API_RETRY_SEEN"),
        ({"interrupted_by": "CANCEL"}, RETIRED, "CANCELLED"),
        ({"store_is_complete": False}, RETIRED, "STORE_PROMISED"),
        ({"settings_changed": True}, RETIRED, "SETTINGS_CHANGED"),
        ({"process_alive": False}, RECLAIM, "PROCESS_EXITED"),
        ({"tap_gap": True}, RECLAIM, "TAP_GAP"),
        ({"findings": findings(printed(OTHER_SESSION))}, RECLAIM, "SESSION_NOT_CONFIRMED"),
        ({"findings": replace(GOOD, reset_to="x")}, RECLAIM, "SESSION_NOT_CONFIRMED"),
        ({"findings": findings(b"")}, RECLAIM, "SESSION_NOT_CONFIRMED"),
        ({"findings": replace(GOOD, end=None)}, RECLAIM, "NO_NATIVE_END"),
        ({"census": None}, RECLAIM, "CENSUS_MISSING"),
        ({"census": Census(False, (CLI,), 0, (), 0)}, RECLAIM, "CENSUS_INCOMPLETE"),
        ({"census": Census(True, (), 0, (CLI,), 0)}, RECLAIM, "CENSUS_INCOMPLETE"),
        ({"agent_rule": "API_RETRY_SEEN", "tap_gap": True}, RECLAIM, "TAP_GAP"),
    ],
)
def test_the_process_after_a_turn(changes: dict[str, Any], what: ProcessDisposition, reason: str) -> None:
    decided = decide(replace(IN_ORDER, **changes))
    assert (decided.what, decided.reason) == (what, reason)


def test_the_lab_can_switch_the_agents_rule_off_and_nothing_else() -> None:
    off = DispositionPolicy(retire_rules_on=False)
    assert decide(replace(IN_ORDER, agent_rule="API_RETRY_SEEN"), off).what is KEPT
    assert decide(replace(IN_ORDER, agent_rule="API_RETRY_SEEN", interrupted_by="CANCEL"), off).what is RETIRED
    assert decide(replace(IN_ORDER, tap_gap=True), off).what is RECLAIM


def test_a_pending_background_task_changes_how_the_process_leaves() -> None:
    pending = replace(GOOD, background_pending=True)
    decided = decide(replace(IN_ORDER, findings=pending, agent_rule="BACKGROUND_PENDING"))
    assert (decided.what, decided.leave_by) == (RETIRED, LeaveBy.TERMINATE)
    assert decide(replace(IN_ORDER, agent_rule="API_RETRY_SEEN")).leave_by is LeaveBy.CLOSE_STDIN


def test_a_verdict_that_does_not_settle_keeps_no_process() -> None:
    kept = decide(IN_ORDER)
    assert after_verdict(kept, settled=True) == kept
    assert after_verdict(kept, settled=False).what is RECLAIM


def test_the_store_is_waited_for_until_it_holds_everything_that_was_printed() -> None:
    assert missing(GOOD, MESSAGE_ID, read(FIRST_PART)) == ()
    assert is_settled_on_disk(GOOD, MESSAGE_ID, read(FIRST_PART))
    assert missing(GOOD, MESSAGE_ID, read(b"")) == (MESSAGE_ID, "a1")
    assert missing(GOOD, MESSAGE_ID, read(b"", error="ABSENT")) == (MESSAGE_ID, "a1")
    assert not is_settled_on_disk(GOOD, MESSAGE_ID, read(b"", error="ABSENT"))
    assert not is_settled_on_disk(GOOD, MESSAGE_ID, read(FIRST_PART + b'{"type"'))


def test_only_a_first_turn_is_read_again_after_the_exit() -> None:
    assert must_read_after_exit(is_first_turn=True, complete=False)
    assert not must_read_after_exit(is_first_turn=True, complete=True)
    assert not must_read_after_exit(is_first_turn=False, complete=False)
