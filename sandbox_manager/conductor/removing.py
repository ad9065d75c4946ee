"""Removes a conversation: a tombstone first, durably, then its container. What is removed is never used again."""

from __future__ import annotations

from dataclasses import replace

from sandbox_manager.adapters.store_port import Insert, Update
from sandbox_manager.conductor.lookups import ended
from sandbox_manager.conductor.parts import Parts, turn_key
from sandbox_manager.conductor.sandboxes import group_machine, record_group
from sandbox_manager.conductor.stopping import Stopping, unknown_conversation
from sandbox_manager.core.group import GroupState, Removed, RemoveWanted
from sandbox_manager.core.records import ConversationRef, GroupRecord, TombstoneRecord, TurnState
from sandbox_manager.core.refusals import HostAnsweredError, HostUnavailableError


class Removing:
    """RemoveConversation."""

    def __init__(self, parts: Parts, stopping: Stopping) -> None:
        self._parts = parts
        self._stopping = stopping

    async def remove(self, ref: ConversationRef, *, force: bool) -> None:
        """Removes it. A host that does not answer removes its container later: the reconciler sees to it."""
        async with self._parts.locks.holding(ref):
            found = await self._parts.store.conversation(ref)
            if found.tombstone is not None:
                return
            if found.member is None or found.group is None:
                raise unknown_conversation(ref)
            self._stopping.require_idle(found, force=force)
            machine = group_machine(found.group)
            machine.step(RemoveWanted())
            turns = [
                Update(
                    replace(
                        turn,
                        state=TurnState.ABANDONED,
                        outcome="INTERRUPTED" if turn.state is TurnState.ADMITTED else "NOT_SENT",
                        reason="CONVERSATION_REMOVED",
                    )
                )
                for turn in found.open_turns
            ]
            stories = [await self._parts.store.turn(ref, turn.turn_id) for turn in found.open_turns]
            activations = [change for story in stories if story is not None for change in ended(story)]
            tombstone = TombstoneRecord(ref.tenant, ref.conversation_id, found.group.group_id)
            group = replace(found.group, state=machine.state.value)
            await self._parts.store.commit([Insert(tombstone), Update(group), *turns, *activations])
            for turn in found.open_turns:
                self._parts.leases.end(turn_key(turn))
            try:
                await self.release(replace(group, revision=group.revision + 1))
            except (HostUnavailableError, HostAnsweredError):
                return

    async def release(self, group: GroupRecord) -> None:
        """Removes a removed group's container from its host."""
        machine = group_machine(group)
        if machine.state is not GroupState.REMOVING:
            return
        host = await self._parts.host_of(group)
        await self._parts.hosts.remove_sandbox(host, group)
        machine.step(Removed())
        await record_group(self._parts, replace(group, released=True), machine)
