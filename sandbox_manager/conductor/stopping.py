"""Stops a group's container in order and records the clean stop. STOPPING is durable before the first action."""

from __future__ import annotations

from dataclasses import replace

from sandbox_manager.adapters.store_port import Conversation, Update
from sandbox_manager.conductor.parts import Parts, turn_key
from sandbox_manager.conductor.sandboxes import group_machine, record_group
from sandbox_manager.core.errors import ConversationBusyError
from sandbox_manager.core.group import GroupState, Seen, StopInspected, StoppingRecorded, StopWanted
from sandbox_manager.core.host_statements import ABSENT, RUNNING, SandboxStatement
from sandbox_manager.core.records import ConversationRef, GroupRecord
from sandbox_manager.core.refusals import ConversationUnknownError

# States in which there is nothing to stop; a stop of them says so again.
_AT_REST = frozenset(
    state.value
    for state in (
        GroupState.PLANNED,
        GroupState.STOPPED,
        GroupState.UNCLEAN,
        GroupState.GONE,
        GroupState.REMOVING,
        GroupState.REMOVED,
    )
)


class Stopping:
    """StopConversation, and the stops that the reconciler asks for."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def stop(self, ref: ConversationRef, *, force: bool) -> Conversation:
        """The conversation as it stands after the stop."""
        async with self._parts.locks.holding(ref):
            found = await self._parts.store.conversation(ref)
            if found.member is None or found.group is None:
                raise unknown_conversation(ref)
            self.require_idle(found, force=force)
            await self.stop_group(found.group, force=force)
            return await self._parts.store.conversation(ref)

    def require_idle(self, found: Conversation, *, force: bool) -> None:
        """Raises ConversationBusyError while a live runner is at a turn, unless forced."""
        for turn in found.open_turns:
            if not force and self._parts.leases.is_live(turn_key(turn)):
                raise ConversationBusyError(
                    f"turn {turn.turn_id} of conversation {found.ref.label} runs at {turn.runner_address}. Wait for its end, "
                    "cancel it, or force.",
                    {"turn_id": turn.turn_id, "address": turn.runner_address},
                )

    async def stop_group(self, group: GroupRecord, *, force: bool) -> GroupRecord:
        """Stops a group whose conversation's lock is held."""
        if group.state in _AT_REST:
            return group
        if group.state == GroupState.STARTING.value or group.state == GroupState.VOIDING.value:
            # A start that was never confirmed: the engine is asked what became of it, and that is recorded first.
            return await self._after_half_start(group, force=force)
        machine = group_machine(group)
        machine.step(StopWanted())
        group = await record_group(self._parts, group, machine)
        return await self.finish(group, force=force)

    async def finish(self, group: GroupRecord, *, force: bool = False) -> GroupRecord:
        """Goes on with a stop that is durable: also one that a former run of this process began."""
        host = await self._parts.host_of(group)
        machine = group_machine(group)
        machine.step(StoppingRecorded())
        found = await self._parts.hosts.stop_sandbox(host, group, force=force)
        machine.step(inspected(found))
        return await record_group(self._parts, group, machine)

    async def _after_half_start(self, group: GroupRecord, *, force: bool) -> GroupRecord:
        host = await self._parts.host_of(group)
        found = await self._parts.hosts.inspect_sandbox(host, group)
        if found.state == RUNNING and found.container_id is not None:
            # It runs without a recorded start: stopped in order, but not from a start that we know. UNCLEAN says so.
            group = replace(group, container_id=group.container_id or found.container_id)
            await self._parts.hosts.stop_sandbox(host, group, force=force)
        state = GroupState.PLANNED if found.state == ABSENT and group.container_id is None else GroupState.UNCLEAN
        if found.state == ABSENT and group.container_id is not None:
            state = GroupState.GONE
        changed = replace(group, state=state.value)
        await self._parts.store.commit([Update(changed)])
        return replace(changed, revision=changed.revision + 1)


def inspected(found: SandboxStatement) -> StopInspected:
    """The inspect after a stop, as the group machine takes it."""
    seen = Seen.RUNNING if found.state == RUNNING else Seen.ABSENT if found.state == ABSENT else Seen.EXITED
    return StopInspected(
        seen=seen,
        orderly=found.orderly is True,
        container_id=found.container_id,
        started_at=found.started_at,
        finished_at=found.finished_at,
    )


def unknown_conversation(ref: ConversationRef) -> ConversationUnknownError:
    """The refusal of a conversation that the store does not have."""
    return ConversationUnknownError(
        f"no conversation {ref.label} is known here.", {"conversation_id": ref.conversation_id, "tenant": ref.tenant}
    )
