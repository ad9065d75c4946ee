"""Claims a turn for a runner, durably, before anything else happens; and says what stands in its way.

                no such turn ──▶ (known? busy? behind?) ──▶ CLAIMED
the same turn:  open, this runner's ──▶ CLAIMED or RESUME      open, another live runner's ──▶ TURN_ELSEWHERE
                open, its runner gone ──▶ taken over           over ──▶ ENDED
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sandbox_manager.adapters.store_port import Conversation, Insert, TurnStory, Update
from sandbox_manager.conductor.forgotten import require_expected
from sandbox_manager.conductor.parts import Parts, turn_key
from sandbox_manager.core.claims import Claim, ClaimedTurn, ClaimRuling, rule_on_claim
from sandbox_manager.core.errors import ConversationBusyError
from sandbox_manager.core.locators import Expect
from sandbox_manager.core.records import ConversationRef, TurnRecord, TurnState
from sandbox_manager.core.refusals import ContextLostError, ConversationRemovedError

CLAIMED = "CLAIMED"
RESUME = "RESUME"
ENDED = "ENDED"

_EXPECTATIONS = {"NEW": Expect.NEW, "CONTINUE": Expect.CONTINUE}


@dataclass(frozen=True, slots=True)
class ClaimWish:
    """A checked claim. `expect` is NEW, CONTINUE or UNSPECIFIED."""

    ref: ConversationRef
    turn_id: str
    message_digest: str
    message_length: int
    agent: str
    expect: str
    runner_id: str
    runner_address: str
    runner_knows_conversation: bool


@dataclass(frozen=True, slots=True)
class ClaimAnswer:
    """The claim as it stands."""

    disposition: str
    story: TurnStory
    unresolved: TurnStory | None
    conversation_known: bool


class Claims:
    """ClaimTurn."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def claim(self, wish: ClaimWish) -> ClaimAnswer:
        """The claim as it stands after this call. Repeating it with the same message changes nothing."""
        async with self._parts.locks.holding(wish.ref):
            story = await self._parts.store.turn(wish.ref, wish.turn_id)
            if story is not None:
                return await self._again(wish, story)
            return await self._first(wish)

    async def _again(self, wish: ClaimWish, story: TurnStory) -> ClaimAnswer:
        turn = story.turn
        ruling = rule_on_claim(_claim(wish), self._claimed(turn), None)
        found = await self._parts.store.conversation(wish.ref)
        if ruling is ClaimRuling.FINISHED:
            return ClaimAnswer(ENDED, story, None, found.member is not None)
        if ruling is ClaimRuling.ADOPTED:
            taken = replace(turn, runner_id=wish.runner_id, runner_address=wish.runner_address)
            await self._parts.store.commit([Update(taken)])
            story = replace(story, turn=replace(taken, revision=taken.revision + 1))
        self._parts.leases.renew(turn_key(turn))
        disposition = CLAIMED if turn.state is TurnState.CLAIMED else RESUME
        unresolved = await self._unresolved(found, wish, is_repeated=True)
        return ClaimAnswer(disposition, story, unresolved, found.member is not None)

    async def _first(self, wish: ClaimWish) -> ClaimAnswer:
        found = await self._parts.store.conversation(wish.ref)
        if found.tombstone is not None:
            raise ConversationRemovedError(
                f"conversation {wish.ref.label} was removed; its id is not used again. Open a new one under another id.",
                {"conversation_id": wish.ref.conversation_id},
            )
        # A turn that was claimed and never prepared has made no member, and yet somebody is at it.
        unresolved = await self._unresolved(found, wish)
        await self._require_expected(found, wish)
        turn = TurnRecord(
            tenant=wish.ref.tenant,
            conversation_id=wish.ref.conversation_id,
            turn_id=wish.turn_id,
            ordinal=found.turns + 1,
            agent=wish.agent,
            message_digest=wish.message_digest,
            message_length=wish.message_length,
            state=TurnState.CLAIMED,
            runner_id=wish.runner_id,
            runner_address=wish.runner_address,
        )
        await self._parts.store.commit([Insert(turn)])
        self._parts.leases.renew(turn_key(turn))
        return ClaimAnswer(CLAIMED, TurnStory(turn, None, None, None), unresolved, found.member is not None)

    async def _unresolved(self, found: Conversation, wish: ClaimWish, *, is_repeated: bool = False) -> TurnStory | None:
        """The oldest open turn beside the wished one, which its runner has left.

        Raises while a live runner is at one; a repeated claim is not refused for that, only its Prepare is.
        """
        first = None
        for turn in found.open_turns:
            if turn.turn_id == wish.turn_id:
                continue
            try:
                rule_on_claim(_claim(wish), None, self._claimed(turn))
            except ConversationBusyError:
                if not is_repeated:
                    raise
                continue
            first = first or turn
        return await self._parts.store.turn(wish.ref, first.turn_id) if first is not None else None

    async def _require_expected(self, found: Conversation, wish: ClaimWish) -> None:
        is_known = found.member is not None
        await require_expected(self._parts, wish.ref, _EXPECTATIONS.get(wish.expect, Expect.UNSET), is_known=is_known)
        if not is_known and wish.runner_knows_conversation:
            raise ContextLostError(
                "STORE_BEHIND",
                cure="Restore the manager's store from its newest backup.",
                readable="the runner's own record of the conversation",
                expected="a member of this conversation in the manager's store",
                observed="none, while the runner has a saved locator",
            )

    def _claimed(self, turn: TurnRecord) -> ClaimedTurn:
        return ClaimedTurn(
            turn_id=turn.turn_id,
            message_digest=turn.message_digest,
            message_length=turn.message_length,
            runner_id=turn.runner_id,
            runner_address=turn.runner_address,
            is_open=turn.state.is_open,
            runner_alive=self._parts.leases.is_live(turn_key(turn)),
        )


def _claim(wish: ClaimWish) -> Claim:
    return Claim(wish.turn_id, wish.message_digest, wish.message_length, wish.runner_id)
