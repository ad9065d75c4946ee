"""The member machine of what is recorded: its state is that of the turn which holds the member."""

from __future__ import annotations

from sandbox_manager.core.member import Member, MemberState
from sandbox_manager.core.records import MemberRecord, TurnRecord, TurnState

_STATES = {TurnState.PREPARED: MemberState.GRANTED, TurnState.ADMITTED: MemberState.ADMITTED}


def member_machine(member: MemberRecord, holder: TurnRecord | None) -> Member:
    """`holder`: the conversation's turn with a grant; None when there is none."""
    state = _STATES.get(holder.state, MemberState.FREE) if holder is not None else MemberState.FREE
    return Member(
        state,
        activation_generation=member.activation_generation,
        turn_id=holder.turn_id if holder is not None else None,
        last_settled_turn=member.last_settled_turn,
        settled_turns=member.settled_turns,
    )
