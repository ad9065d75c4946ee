"""Renews an activation's lease."""

from __future__ import annotations

from sandbox_manager.conductor.lookups import require_holder, story_of_activation
from sandbox_manager.conductor.parts import Parts, turn_key
from sandbox_manager.core.errors import StaleGenerationError
from sandbox_manager.core.records import ActivationState
from sandbox_manager.core.refusals import ActivationExpiredError


class Leasing:
    """RenewActivation."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def renew(self, activation_id: str, runner_id: str, activation_generation: int) -> int:
        """The lease in milliseconds from now. A lease that has run out is not renewed: somebody else may have acted on that."""
        story = await story_of_activation(self._parts, activation_id)
        activation = story.activation
        assert activation is not None
        if activation.activation_generation != activation_generation:
            raise StaleGenerationError("activation", activation.activation_generation, activation_generation)
        require_holder(story.turn, runner_id)
        key = turn_key(story.turn)
        is_over = activation.state is ActivationState.ENDED or not story.turn.state.is_open
        if is_over or not self._parts.leases.is_live(key):
            raise ActivationExpiredError(
                f"the lease of activation {activation_id} ran out, or its turn is over ({story.turn.state.value}). Stop the work; "
                "look the turn up.",
                {"activation_id": activation_id, "state": story.turn.state.value},
            )
        return self._parts.leases.renew(key)
