"""Whether a turn may be claimed: the same turn never runs twice, and a member has one unresolved prompt. Pure.

A claim is (conversation, turn, message digest) by a runner. The claim is durable before anything is handed to a CLI.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sandbox_manager.core.errors import ConversationBusyError, MessageChangedError, TurnElsewhereError


class ClaimRuling(Enum):
    NEW = "NEW"  # nobody had it: write the claim
    SAME = "SAME"  # the same runner asks again: it goes on with what it has
    ADOPTED = "ADOPTED"  # its runner is gone: this one goes on
    FINISHED = "FINISHED"  # the stored outcome is the answer
    RESOLVE_FIRST = (
        "RESOLVE_FIRST"  # an earlier turn, whose runner is gone or is this one, has to be settled or given up first
    )


@dataclass(frozen=True, slots=True)
class Claim:
    turn_id: str
    message_digest: str
    message_length: int
    runner_id: str


@dataclass(frozen=True, slots=True)
class ClaimedTurn:
    """A turn as recorded. `is_open`: neither settled nor given up nor refused. `runner_alive`: it holds a lease, or has just claimed."""

    turn_id: str
    message_digest: str
    message_length: int
    runner_id: str
    runner_address: str
    is_open: bool
    runner_alive: bool


def rule_on_claim(claim: Claim, same: ClaimedTurn | None, open_other: ClaimedTurn | None) -> ClaimRuling:
    """Rules on a claim. `same` is the recorded turn of that id, `open_other` the conversation's other turn that is open.

    Raises MessageChangedError, TurnElsewhereError or ConversationBusyError. A repeated id is looked up before anything else: it never
    meets a busy conversation.
    """
    if same is not None:
        return _repeated(claim, same)
    if open_other is None:
        return ClaimRuling.NEW
    if open_other.runner_alive and open_other.runner_id != claim.runner_id:
        raise ConversationBusyError(
            f"turn {open_other.turn_id} of this conversation runs; wait for its end or cancel it",
            {"turn_id": open_other.turn_id, "address": open_other.runner_address},
        )
    return ClaimRuling.RESOLVE_FIRST


def _repeated(claim: Claim, same: ClaimedTurn) -> ClaimRuling:
    if (claim.message_digest, claim.message_length) != (same.message_digest, same.message_length):
        raise MessageChangedError(
            f"turn {claim.turn_id} was claimed with another message; a new message needs a new turn id",
            {
                "turn_id": claim.turn_id,
                "expected_digest": same.message_digest,
                "found_digest": claim.message_digest,
            },
        )
    if not same.is_open:
        return ClaimRuling.FINISHED
    if same.runner_id == claim.runner_id:
        return ClaimRuling.SAME
    if same.runner_alive:
        raise TurnElsewhereError(
            f"turn {claim.turn_id} runs at {same.runner_address}; watch it there",
            {"turn_id": claim.turn_id, "address": same.runner_address},
        )
    return ClaimRuling.ADOPTED
