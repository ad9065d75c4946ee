"""Claims a turn for a runner, durably, before anything else happens; and says what stands in its way.

                no such turn ──▶ (known? busy? behind?) ──▶ CLAIMED
the same turn:  open, this runner's ──▶ CLAIMED or RESUME      open, another live runner's ──▶ TURN_ELSEWHERE
                open, its runner gone ──▶ taken over           over ──▶ ENDED
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sandbox_manager.adapters.store_port import Conversation, Insert, TurnStory, Update
from sandbox_manager.core.errors import (
    ConversationBusyError,
    ConversationExistsError,
    LegacyConversationError,
    MessageChangedError,
    TurnElsewhereError,
)
from sandbox_manager.core.records import ConversationRef, TurnRecord, TurnState
from sandbox_manager.core.refusals import ContextLostError, ConversationRemovedError
from sandbox_manager.services.parts import Parts, turn_key

CLAIMED = "CLAIMED"
RESUME = "RESUME"
ENDED = "ENDED"


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
class Claim:
    """The claim as it stands."""

    disposition: str
    story: TurnStory
    unresolved: TurnStory | None
    conversation_known: bool


class Claims:
    """ClaimTurn."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def claim(self, wish: ClaimWish) -> Claim:
        """The claim as it stands after this call. Repeating it with the same message changes nothing."""
        async with self._parts.locks.holding(wish.ref):
            story = await self._parts.store.turn(wish.ref, wish.turn_id)
            if story is not None:
                return await self._again(wish, story)
            return await self._first(wish)

    async def _again(self, wish: ClaimWish, story: TurnStory) -> Claim:
        turn = story.turn
        if (turn.message_digest, turn.message_length) != (wish.message_digest, wish.message_length):
            raise MessageChangedError(
                f"turn {wish.turn_id} was claimed with another message ({turn.message_length} bytes, this one has "
                f"{wish.message_length}). Give the new message a turn_id of its own.",
                {"turn_id": wish.turn_id, "expected": turn.message_digest, "found": wish.message_digest},
            )
        found = await self._parts.store.conversation(wish.ref)
        if not turn.state.is_open:
            return Claim(ENDED, story, None, found.member is not None)
        if turn.runner_id != wish.runner_id:
            if self._parts.leases.is_live(turn_key(turn)):
                raise _elsewhere(turn)
            taken = replace(turn, runner_id=wish.runner_id, runner_address=wish.runner_address)
            await self._parts.store.commit([Update(taken)])
            story = replace(story, turn=replace(taken, revision=taken.revision + 1))
        self._parts.leases.renew(turn_key(turn))
        disposition = CLAIMED if turn.state is TurnState.CLAIMED else RESUME
        return Claim(disposition, story, await self._unresolved(found, wish), found.member is not None)

    async def _first(self, wish: ClaimWish) -> Claim:
        found = await self._parts.store.conversation(wish.ref)
        if found.tombstone is not None:
            raise ConversationRemovedError(
                f"conversation {wish.ref.label} was removed; its id is not used again. Open a new one under another id.",
                {"conversation_id": wish.ref.conversation_id},
            )
        # A turn that was claimed and never prepared has made no member, and yet somebody is at it.
        unresolved = await self._unresolved(found, wish)
        if found.member is None:
            await self._require_unknown_everywhere(wish)
        elif wish.expect == "NEW":
            raise ConversationExistsError(
                f"conversation {wish.ref.label} is known; expected a new one. Continue it, or choose another id.",
                {"conversation_id": wish.ref.conversation_id},
            )
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
        return Claim(CLAIMED, TurnStory(turn, None, None, None), unresolved, found.member is not None)

    async def _unresolved(self, found: Conversation, wish: ClaimWish) -> TurnStory | None:
        """The oldest open turn beside the wished one, which its runner has left. Raises while a live runner is at one."""
        for turn in found.open_turns:
            if turn.turn_id == wish.turn_id:
                continue
            # A runner that asks for another turn while its own is open has lost sight of it: it was restarted.
            if turn.runner_id != wish.runner_id and self._parts.leases.is_live(turn_key(turn)):
                raise ConversationBusyError(
                    f"turn {turn.turn_id} of conversation {wish.ref.label} runs at {turn.runner_address}. Wait for its end, or "
                    "cancel it there.",
                    {"turn_id": turn.turn_id, "address": turn.runner_address},
                )
            story = await self._parts.store.turn(wish.ref, turn.turn_id)
            if story is not None and story.turn.state.is_open:
                return story
        return None

    async def _require_unknown_everywhere(self, wish: ClaimWish) -> None:
        """The store knows no member. Before that is called new, every host that is alive is searched."""
        await self._parts.book.heard_all(self._parts.first_beat_wait_s)
        for host_id, containers in self._parts.book.labelled(wish.ref.label).items():
            for container in containers:
                # Its group may have been removed on purpose, or belong to a half-made start: both are known.
                if await self._parts.store.group(container.group_id) is None:
                    raise ContextLostError(
                        "STORE_BEHIND",
                        cure="Restore the manager's store from its newest backup, or remove that container if it is not wanted.",
                        readable=f"the container {container.container_id} on host {host_id}",
                        expected="a store that knows every retained container",
                        observed=f"container {container.container_id} of unknown group {container.group_id} on {host_id}",
                    )
        if wish.expect == "CONTINUE":
            raise LegacyConversationError(
                f"no native session of conversation {wish.ref.label} is retained here; expected one to continue. Open a new "
                "conversation.",
                {"conversation_id": wish.ref.conversation_id},
            )
        if wish.runner_knows_conversation:
            raise ContextLostError(
                "STORE_BEHIND",
                cure="Restore the manager's store from its newest backup.",
                readable="the runner's own record of the conversation",
                expected="a member of this conversation in the manager's store",
                observed="none, while the runner has a saved locator",
            )


def _elsewhere(turn: TurnRecord) -> TurnElsewhereError:
    return TurnElsewhereError(
        f"turn {turn.turn_id} runs at {turn.runner_address}. Watch it there; it can be taken over when that runner is gone.",
        {"turn_id": turn.turn_id, "address": turn.runner_address, "runner_id": turn.runner_id},
    )
