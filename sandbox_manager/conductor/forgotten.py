"""Searches the hosts for containers of a conversation that the manager's store does not know: never a silent NEW.

Asked before a claim decides that a conversation is unknown, and again before its first group is made: between the two a host may have
come back.
"""

from __future__ import annotations

from sandbox_manager.conductor.parts import Parts
from sandbox_manager.core.errors import StoreBehindError
from sandbox_manager.core.locators import Expect, LabelledContainer, check_expectation
from sandbox_manager.core.records import ConversationRef
from sandbox_manager.core.refusals import ContextLostError


async def require_expected(parts: Parts, ref: ConversationRef, expect: Expect, *, is_known: bool) -> None:
    """That the conversation is the one that the client expects. Before one is called unknown, every host that is alive is searched.

    Raises ContextLostError (STORE_BEHIND), LegacyConversationError, ConversationExistsError.
    """
    unknown = () if is_known else await _unknown_containers(parts, ref)
    try:
        check_expectation(expect, is_known=is_known, unknown_containers=unknown)
    except StoreBehindError as error:
        first = unknown[0]
        raise ContextLostError(
            "STORE_BEHIND",
            cure="Restore the manager's store from its newest backup, or remove that container if it is not wanted.",
            readable=f"the container {first.container_id} on host {first.host_id}",
            expected="a store that knows every retained container",
            observed=error.message,
        ) from error


async def _unknown_containers(parts: Parts, ref: ConversationRef) -> tuple[LabelledContainer, ...]:
    """Containers with this conversation's label whose group the store does not have: a removed or half-made one it has."""
    await parts.book.heard_all(parts.first_beat_wait_s)
    return tuple(
        [
            LabelledContainer(container.container_id, host_id)
            for host_id, containers in parts.book.labelled(ref.label).items()
            for container in containers
            if await parts.store.group(container.group_id) is None
        ]
    )
