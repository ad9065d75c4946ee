"""Finds the turn of a call and says why it may not go on. Every mutation starts here, under its conversation's lock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import structlog

from sandbox_manager.adapters.store_port import TurnStory, Update
from sandbox_manager.conductor.parts import Parts, turn_key
from sandbox_manager.core.errors import TurnElsewhereError
from sandbox_manager.core.records import ActivationState, ConversationRef, TurnRecord, TurnState
from sandbox_manager.core.refusals import ActivationUnknownError, TurnUnknownError
from standfast_chassis.errors import StandfastError

_log = structlog.get_logger("standfast.manager.turns")

# Refusals that a turn keeps: somebody must mend something, or open another turn. Everything else may be tried again under the same id.
RECORDED_REFUSALS = frozenset(
    {
        "CONTEXT_LOST",
        "LOCATOR_MISMATCH",
        "LOCATOR_REQUIRED",
        "NATIVE_SESSION_MISMATCH",
        "SESSION_NOT_RESUMED",
        "IMAGE_RETIRED",
        "AGENT_MISMATCH",
        "SETTING_UNKNOWN",
        "CLI_VERSION_MISMATCH",
        "HELPER_VERSION_MISMATCH",
        "UPDATER_ENABLED",
    }
)


async def story_of_turn(parts: Parts, ref: ConversationRef, turn_id: str) -> TurnStory:
    """The turn. Raises TurnUnknownError."""
    story = await parts.store.turn(ref, turn_id)
    if story is None:
        raise TurnUnknownError(
            f"conversation {ref.label} has no turn {turn_id} here; expected a claimed one.",
            {"conversation_id": ref.conversation_id, "turn_id": turn_id},
        )
    return story


async def story_of_activation(parts: Parts, activation_id: str) -> TurnStory:
    """The turn that an activation was granted for. Raises ActivationUnknownError."""
    story = await parts.store.turn_of_activation(activation_id)
    if story is None:
        raise ActivationUnknownError(
            f"no activation {activation_id} was granted here; prepare the turn first.", {"activation_id": activation_id}
        )
    return story


def require_holder(turn: TurnRecord, runner_id: str) -> None:
    """Raises TurnElsewhereError when another runner holds the claim."""
    if turn.runner_id != runner_id:
        raise TurnElsewhereError(
            f"turn {turn.turn_id} is held by the runner at {turn.runner_address}, not by {runner_id}. Claim it first.",
            {"turn_id": turn.turn_id, "address": turn.runner_address, "runner_id": turn.runner_id},
        )


@asynccontextmanager
async def recording_refusals(parts: Parts, ref: ConversationRef, turn_id: str) -> AsyncIterator[None]:
    """Records a refusal on the turn before it is passed on, so that the same turn_id repeats it."""
    try:
        yield
    except StandfastError as error:
        if error.reason in RECORDED_REFUSALS:
            await _record(parts, ref, turn_id, error)
        raise


async def _record(parts: Parts, ref: ConversationRef, turn_id: str, error: StandfastError) -> None:
    # Read anew: the grant may have been written since the caller looked.
    story = await parts.store.turn(ref, turn_id)
    if story is None or not story.turn.state.is_open:
        return
    turn = replace(
        story.turn,
        state=TurnState.REFUSED,
        outcome="REFUSED",
        reason=error.reason,
        cause=error.metadata.get("cause"),
    )
    await parts.store.commit([Update(turn), *ended(story)])
    parts.leases.end(turn_key(turn))
    _log.info(
        "refused",
        conversation_id=turn.conversation_id,
        turn_id=turn.turn_id,
        reason=error.reason,
        cause=turn.cause,
    )


def ended(story: TurnStory) -> list[Update]:
    """The change that ends a turn's activation, if it has one that is not over."""
    activation = story.activation
    if activation is None or activation.state is ActivationState.ENDED:
        return []
    return [Update(replace(activation, state=ActivationState.ENDED))]
