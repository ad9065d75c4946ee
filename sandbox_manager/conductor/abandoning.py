"""Gives up a turn that did not end natively, or was never sent. The host's journal decides what it is called, not the runner."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sandbox_manager.adapters.store_port import Change, TurnStory, Update
from sandbox_manager.conductor.leftovers import what_it_left
from sandbox_manager.conductor.lookups import ended, require_holder, story_of_turn
from sandbox_manager.conductor.members import member_machine
from sandbox_manager.conductor.observations import journalled
from sandbox_manager.conductor.parts import Parts, turn_key
from sandbox_manager.core.member import GivenUp
from sandbox_manager.core.records import ConversationRef, TurnState
from sandbox_manager.core.refusals import NativeEndSeenError
from sandbox_manager.core.values import Observation

NOT_SENT = "NOT_SENT"
INTERRUPTED = "INTERRUPTED"
REFUSED = "REFUSED"
# What a runner may wish for a turn without a native end.
WISHES = (NOT_SENT, INTERRUPTED, "CANCELLED", "TIMED_OUT", "UNANSWERED_QUESTION", REFUSED)


@dataclass(frozen=True, slots=True)
class AbandonWish:
    """A checked request. `outcome` is one of WISHES."""

    ref: ConversationRef
    turn_id: str
    runner_id: str
    outcome: str
    reason: str | None


class Abandoning:
    """AbandonTurn, and what the reconciler gives up."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def abandon(self, wish: AbandonWish) -> TurnStory:
        """The turn as it stands. A turn that is over says so again."""
        async with self._parts.locks.holding(wish.ref):
            story = await story_of_turn(self._parts, wish.ref, wish.turn_id)
            if not story.turn.state.is_open:
                return story
            if self._parts.leases.is_live(turn_key(story.turn)):
                require_holder(story.turn, wish.runner_id)
            return await self.give_up(story, wish.outcome, wish.reason)

    async def give_up(self, story: TurnStory, outcome: str, reason: str | None) -> TurnStory:
        """Gives up an open turn whose conversation's lock is held."""
        turn = story.turn
        observation = None
        if turn.state is TurnState.ADMITTED:
            observation = await self._observation(story)
            outcome = _corrected(outcome, observation)
        elif outcome == INTERRUPTED:
            # Without an admission the gate lets nothing through.
            outcome = NOT_SENT
        changed = replace(
            turn,
            state=TurnState.REFUSED if outcome == REFUSED else TurnState.ABANDONED,
            outcome=outcome,
            reason=reason,
        )
        await self._parts.store.commit(
            [Update(changed), *ended(story), *await self._member_changes(story, outcome, observation)]
        )
        self._parts.leases.end(turn_key(turn))
        return await story_of_turn(self._parts, turn.ref, turn.turn_id)

    async def _observation(self, story: TurnStory) -> Observation | None:
        assert story.activation is not None
        entry = await journalled(self._parts, story.activation)
        observation = entry.observation
        if observation is not None and observation.forwarded and observation.tap.end is not None:
            raise NativeEndSeenError(
                f"turn {story.turn.turn_id} has native end evidence on host {entry.host.host_id}: settle it, do not give it up.",
                {"turn_id": story.turn.turn_id, "host_id": entry.host.host_id},
            )
        return observation

    async def _member_changes(self, story: TurnStory, outcome: str, observation: Observation | None) -> list[Change]:
        turn, activation = story.turn, story.activation
        found = await self._parts.store.conversation(turn.ref)
        if found.member is None or activation is None:
            return []
        member = found.member
        if member.activation_generation == activation.activation_generation:
            member_machine(member, turn).step(GivenUp(activation.activation_generation))
        changes = what_it_left(found, activation, observation)
        if turn.state is TurnState.ADMITTED:
            is_first = member.settled_turns == 0 and outcome != NOT_SENT
            changes.append(
                Update(
                    replace(
                        member,
                        kept=None,
                        disposition_reason=f"AFTER_{outcome}",
                        interrupted_turn=turn.turn_id if is_first else member.interrupted_turn,
                    )
                )
            )
        elif turn.state is TurnState.PREPARED and member.kept is not None:
            # The grant may have been attached, and the process used or replaced: nobody here can say.
            changes.append(Update(replace(member, kept=None, disposition_reason="PROCESS_GONE")))
        return changes


def _corrected(outcome: str, observation: Observation | None) -> str:
    """The wish, corrected by the journal. A journal that knows nothing cannot say that nothing was sent."""
    was_sent = observation is None or observation.forwarded
    if was_sent and outcome in (NOT_SENT, REFUSED):
        return INTERRUPTED
    if not was_sent and outcome in (INTERRUPTED, REFUSED):
        return NOT_SENT
    return outcome
