"""Finds or places the group, brings up its container, checks the native store, and grants the activation.

The order is the point: ids and nonce are durable before a container is made; the store is checked before a process is started; the grant
is durable before it is handed out.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace

from sandbox_manager.adapters.store_port import Conversation, Insert, TurnStory, Update
from sandbox_manager.conductor.forgotten import require_expected
from sandbox_manager.conductor.granting import Grant, Granting, PrepareWish
from sandbox_manager.conductor.lookups import ended, recording_refusals, require_holder, story_of_turn
from sandbox_manager.conductor.members import member_machine
from sandbox_manager.conductor.observations import NEVER_FORWARDED
from sandbox_manager.conductor.parts import Parts, turn_key
from sandbox_manager.conductor.process_settings import in_force, require_taken
from sandbox_manager.conductor.sandboxes import ReadySandbox, Sandboxes
from sandbox_manager.conductor.stopping import Stopping
from sandbox_manager.core.errors import ConversationBusyError
from sandbox_manager.core.group import GroupState
from sandbox_manager.core.host import HostState
from sandbox_manager.core.host_statements import StoreStatement
from sandbox_manager.core.judgement import weigh
from sandbox_manager.core.locators import Expect, resolve_locator
from sandbox_manager.core.member import GivenUp
from sandbox_manager.core.records import (
    GroupRecord,
    HostRecord,
    MemberRecord,
    TurnState,
)
from sandbox_manager.core.refusals import (
    AgentMismatchError,
    ContextLostError,
    ConversationRemovedError,
    NoHostError,
    TurnOverError,
)
from sandbox_manager.core.store_check import check_store
from sandbox_manager.core.values import NativeLocator, Verdict
from standfast_chassis import span_names
from standfast_chassis.errors import StandfastError

_SLOT = 1


class Preparing:
    """PrepareTurn."""

    def __init__(self, parts: Parts, sandboxes: Sandboxes, stopping: Stopping) -> None:
        self._parts = parts
        self._sandboxes = sandboxes
        self._stopping = stopping
        self._granting = Granting(parts)

    async def prepare(self, wish: PrepareWish) -> Grant:
        """The grant. While it is unused, the same turn gets the same one again."""
        with self._parts.tracing.span(
            span_names.PREPARE,
            {
                span_names.STANDFAST_TURN_ID: wish.turn_id,
                span_names.STANDFAST_TENANT: wish.ref.tenant,
                span_names.GEN_AI_CONVERSATION_ID: wish.ref.conversation_id,
                span_names.GEN_AI_AGENT_NAME: wish.agent,
            },
        ) as span:
            async with self._parts.locks.holding(wish.ref):
                story = await story_of_turn(self._parts, wish.ref, wish.turn_id)
                require_holder(story.turn, wish.runner_id)
                self._parts.leases.renew(turn_key(story.turn))
                async with recording_refusals(self._parts, wish.ref, wish.turn_id):
                    grant = await self._prepare(wish, story)
                self._parts.leases.renew(turn_key(story.turn))
            span.set_attribute(span_names.STANDFAST_GROUP_ID, grant.activation.group_id)
            span.set_attribute(span_names.STANDFAST_ACTIVATION_GENERATION, grant.activation.activation_generation)
            span.set_attribute(span_names.HOST_ID, grant.host.host_id)
            span.set_attribute(span_names.CONTAINER_ID, grant.activation.container_id)
        return grant

    async def _prepare(self, wish: PrepareWish, story: TurnStory) -> Grant:
        found = await self._parts.store.conversation(wish.ref)
        if found.tombstone is not None:
            raise ConversationRemovedError(
                f"conversation {wish.ref.label} was removed; its id is not used again.",
                {"conversation_id": wish.ref.conversation_id},
            )
        if story.turn.state is not TurnState.CLAIMED:
            story = await self._taken_back(story, found)
            same = await self._same_again(story, found)
            if same is not None:
                return same
            found = await self._parts.store.conversation(wish.ref)
        _require_free(found, wish.turn_id)
        saved = self._locator_to_resume(wish, found)
        if found.member is not None and found.member.agent != wish.agent:
            raise AgentMismatchError(
                f"conversation {wish.ref.label} belongs to {found.member.agent}, not to {wish.agent}. Open a new conversation.",
                {"expected": found.member.agent, "found": wish.agent},
            )
        require_taken(wish.agent, in_force(wish.said, found.member.settings if found.member is not None else None))
        found = found if found.member is not None else await self._place(wish, found)
        member, group = found.member, found.group
        assert member is not None
        assert group is not None
        if group.state == GroupState.STOPPING.value:
            group = await self._stopping.finish(group)
        early = self._begin_reading(found, group, member, saved)
        try:
            ready = await self._sandboxes.running(wish.ref, group, has_history=member.settled_turns > 0)
            if saved is not None:
                await self._require_store(found, ready, member, saved, early)
        finally:
            if early is not None:
                early.cancel()
        return await self._granting.grant(wish, story, found, ready, saved)

    async def _same_again(self, story: TurnStory, found: Conversation) -> Grant | None:
        """The grant that the turn has, if it can still be used; None when it has none."""
        turn, activation = story.turn, story.activation
        if turn.state is TurnState.CLAIMED:
            return None
        if turn.state is TurnState.PREPARED and activation is not None and found.group is not None:
            host = await self._parts.host_of(found.group)
            return Grant(activation, host, found.member.interrupted_turn if found.member is not None else None)
        raise TurnOverError(
            f"turn {turn.turn_id} is {turn.state.value}: expected one that is claimed or prepared. It takes no other grant; "
            "look it up, and settle or abandon it if it is not over.",
            {"turn_id": turn.turn_id, "state": turn.state.value, "reason": turn.reason or ""},
        )

    async def _taken_back(self, story: TurnStory, found: Conversation) -> TurnStory:
        """A grant that was attached before and came to nothing can be attached no more: the turn is to have another one."""
        turn, activation = story.turn, story.activation
        if turn.state is not TurnState.PREPARED or activation is None or found.member is None:
            return story
        host = await self._parts.store.host(activation.host_id)
        entry = await self._parts.hosts.journalled(host, activation.activation_id) if host is not None else None
        if entry is None or entry.state != NEVER_FORWARDED:
            return story
        member_machine(found.member, turn).step(GivenUp(activation.activation_generation))
        await self._parts.store.commit(
            [
                Update(replace(turn, state=TurnState.CLAIMED, activation_id=None)),
                Update(replace(found.member, kept=None, disposition_reason="PROCESS_GONE")),
                *ended(story),
            ]
        )
        return await story_of_turn(self._parts, turn.ref, turn.turn_id)

    def _locator_to_resume(self, wish: PrepareWish, found: Conversation) -> NativeLocator | None:
        requested = wish.locator if self._parts.policy.check_identity else None
        return resolve_locator(
            requested,
            found.locator.locator if found.locator is not None else None,
            settled_turns=found.member.settled_turns if found.member is not None else 0,
        )

    async def _place(self, wish: PrepareWish, found: Conversation) -> Conversation:
        host = await self._choose_host(wish.agent)
        # The claim has asked before; a host that came back since may hold what the store has forgotten.
        await require_expected(self._parts, wish.ref, Expect.UNSET, is_known=False)
        group = GroupRecord(
            group_id=f"g{uuid.UUID(self._parts.new_id()).hex[:16]}",
            tenant=wish.ref.tenant,
            conversation_id=wish.ref.conversation_id,
            host_id=host.host_id,
            state=GroupState.PLANNED.value,
            container_generation=1,
            nonce=self._parts.new_id(),
        )
        member = MemberRecord(
            tenant=wish.ref.tenant,
            conversation_id=wish.ref.conversation_id,
            member_id=f"m{uuid.UUID(self._parts.new_id()).hex[:16]}",
            group_id=group.group_id,
            slot=_SLOT,
            agent=wish.agent,
        )
        await self._parts.store.commit([Insert(group), Insert(member)])
        return replace(found, group=group, member=member)

    async def _choose_host(self, agent: str) -> HostRecord:
        """The READY host with a lease that has the agent and the fewest groups."""
        groups = await self._parts.store.groups()
        able = [
            host
            for host in await self._parts.store.hosts()
            if host.state == HostState.READY.value
            and self._parts.book.has_lease(host.host_id)
            and agent in host.agents.items
        ]
        if not able:
            raise NoHostError(
                f"no registered host is READY for {agent}; expected at least one with a lease. Start a host agent, or see "
                "`standfast hosts` for why one was refused.",
                {"agent": agent},
            )
        return min(able, key=lambda host: sum(group.host_id == host.host_id for group in groups))

    def _begin_reading(
        self, found: Conversation, group: GroupRecord, member: MemberRecord, saved: NativeLocator | None
    ) -> asyncio.Task[StoreStatement | None] | None:
        """Has the store read while the host looks after a container that runs by our record; None where that is not so.

        What is read counts only if the container proves to have run all the time.
        """
        record = found.store.record if found.store is not None else None
        if saved is None or record is None or group.state != GroupState.RUNNING.value:
            return None

        async def read() -> StoreStatement | None:
            try:
                host = await self._parts.host_of(group)
                return await self._parts.hosts.read_store(host, group, member.slot, saved, record.length)
            except StandfastError:
                return None  # it is asked once more when the container is known to run, and that answer counts

        return asyncio.get_running_loop().create_task(read())

    async def _require_store(
        self,
        found: Conversation,
        ready: ReadySandbox,
        member: MemberRecord,
        saved: NativeLocator,
        early: asyncio.Task[StoreStatement | None] | None,
    ) -> None:
        record = found.store.record if found.store is not None else None
        if record is None:
            raise ContextLostError(
                "STORE_MISSING",
                cure="Restore the manager's store from its newest backup.",
                readable="the container and the turns' records",
                expected="a store record of the newest settled turn",
                observed="none",
            )
        read = await early if early is not None and not ready.was_started else None
        if read is None:
            read = await self._parts.hosts.read_store(ready.host, ready.group, member.slot, saved, record.length)
        if read.container_id != ready.group.container_id:
            raise ContextLostError(
                "CONTAINER_CHANGED",
                cure="Bring the recorded container back.",
                readable="the turns' records outside the sandbox",
                expected=str(ready.group.container_id),
                observed=read.container_id,
            )
        check = check_store(
            record,
            read.reading,
            session_id=saved.native_session_id,
            leftovers=tuple(
                one.admitted for one in found.leftovers if one.native_session_id == saved.native_session_id
            ),
        )
        if weigh(check.reasons) is Verdict.CONFIRMED:
            return
        contradictions = [reason for reason in check.reasons if reason.weighs is Verdict.CONTRADICTED]
        first = (contradictions or list(check.reasons))[0]
        raise ContextLostError(
            first.code,
            cure="Put the native store back as it was at the last settlement.",
            readable="the container with its workspace and the native store as it is, and the turns' records",
            expected=first.expected,
            observed=first.found,
        )


def _require_free(found: Conversation, turn_id: str) -> None:
    for turn in found.open_turns:
        if turn.turn_id != turn_id and turn.state is not TurnState.CLAIMED:
            raise ConversationBusyError(
                f"turn {turn.turn_id} of conversation {found.ref.label} is not resolved: it must be settled or given up first.",
                {"turn_id": turn.turn_id, "state": turn.state.value, "address": turn.runner_address},
            )
