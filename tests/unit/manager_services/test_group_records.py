"""A group's record and its machine say the same, in every state; and what a heartbeat says against a record is noticed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandbox_manager.adapters.store_port import Conversation
from sandbox_manager.conductor.members import member_machine
from sandbox_manager.conductor.sandboxes import group_machine, group_record
from sandbox_manager.core.group import EnsureWanted, GroupState, StopVoided
from sandbox_manager.core.member import MemberState
from sandbox_manager.core.records import GroupRecord, MemberRecord, TurnRecord, TurnState
from sandbox_manager.reconciler import differs
from sandbox_manager.services.messages import conversation_message

GROUP = GroupRecord(
    group_id="g1",
    tenant="local",
    conversation_id="c1",
    host_id="h1",
    state="STOPPED",
    container_generation=2,
    nonce="n",
    container_id="k",
    image_id="i",
    workspace="/w",
    started_at="s",
    stopped_container_id="k",
    stopped_started_at="s",
    stopped_finished_at="f",
)
MEMBER = MemberRecord("local", "c1", "m1", "g1", 1, "claude-code", activation_generation=3)


@pytest.mark.parametrize("state", list(GroupState))
def test_a_record_becomes_a_machine_and_the_same_record_again(state: GroupState) -> None:
    record = replace(GROUP, state=state.value)
    assert group_record(record, group_machine(record)) == record


def test_a_start_empties_the_clean_stop_in_the_record() -> None:
    machine = group_machine(GROUP)
    machine.step(EnsureWanted())
    machine.step(StopVoided())
    started = group_record(GROUP, machine)
    assert (started.state, started.stopped_container_id, started.stopped_started_at, started.stopped_finished_at) == (
        "STARTING",
        None,
        None,
        None,
    )


@pytest.mark.parametrize(
    ("turn_state", "member_state"),
    [
        (None, MemberState.FREE),
        (TurnState.CLAIMED, MemberState.FREE),
        (TurnState.PREPARED, MemberState.GRANTED),
        (TurnState.ADMITTED, MemberState.ADMITTED),
        (TurnState.SETTLED, MemberState.FREE),
        (TurnState.ABANDONED, MemberState.FREE),
        (TurnState.REFUSED, MemberState.FREE),
    ],
)
def test_a_member_is_held_by_the_turn_that_has_its_grant(
    turn_state: TurnState | None, member_state: MemberState
) -> None:
    turn = None
    if turn_state is not None:
        turn = TurnRecord("local", "c1", "t1", 1, "claude-code", "d", 1, turn_state, "r", "r:1")
    machine = member_machine(MEMBER, turn)
    assert (machine.state, machine.activation_generation) == (member_state, 3)


@pytest.mark.parametrize(
    ("state", "listed", "expected"),
    [
        ("RUNNING", "running", False),
        ("RUNNING", "exited", True),
        ("RUNNING", None, True),
        ("STOPPED", "exited", False),
        ("STOPPED", "running", True),
        ("STOPPED", None, True),
        ("UNCLEAN", "exited", False),
        ("UNCLEAN", None, True),
        ("GONE", None, False),
        ("GONE", "exited", True),
        ("STARTING", "exited", False),
        ("STOPPING", None, False),
        ("REMOVING", "running", False),
        ("PLANNED", None, False),
    ],
)
def test_only_a_record_that_claims_to_be_at_rest_is_compared(state: str, listed: str | None, expected: bool) -> None:
    states = {"k": listed} if listed is not None else {}
    assert differs(replace(GROUP, state=state), states) is expected


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        ("PLANNED", "PLACED"),
        ("VOIDING", "STARTING"),
        ("REMOVING", "REMOVED"),
        *((state.value, state.value) for state in GroupState if state.value[:4] not in ("PLAN", "VOID", "REMO")),
    ],
)
def test_a_caller_sees_the_states_that_the_contract_names(state: str, shown: str) -> None:
    found = Conversation(MEMBER.ref, None, MEMBER, replace(GROUP, state=state), None, None, (), (), 0)
    assert conversation_message(found).group_state == shown
