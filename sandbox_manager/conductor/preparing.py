"""Finds or places the group, brings up its container, checks the native store, and grants the activation.

The order is the point: ids and nonce are durable before a container is made; the store is checked before a process is started; the grant
is durable before it is handed out.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace

from sandbox_manager.adapters.store_port import Conversation, Insert, TurnStory, Update
from sandbox_manager.agents.errors import AgentLocatorError
from sandbox_manager.agents.registry import AGENTS
from sandbox_manager.conductor.lookups import ended, recording_refusals, require_holder, story_of_turn
from sandbox_manager.conductor.members import member_machine
from sandbox_manager.conductor.observations import NEVER_FORWARDED
from sandbox_manager.conductor.parts import Parts, turn_key
from sandbox_manager.conductor.sandboxes import ReadySandbox, Sandboxes
from sandbox_manager.conductor.stopping import Stopping
from sandbox_manager.core.context import RecordedProcess
from sandbox_manager.core.errors import ConversationBusyError
from sandbox_manager.core.group import GroupState
from sandbox_manager.core.host import HostState
from sandbox_manager.core.judgement import weigh
from sandbox_manager.core.locators import resolve_locator
from sandbox_manager.core.member import GivenUp, Granted
from sandbox_manager.core.records import (
    ActivationRecord,
    ActivationState,
    ConversationRef,
    GroupRecord,
    HostRecord,
    MemberRecord,
    ProcessSettings,
    TurnState,
)
from sandbox_manager.core.refusals import (
    AgentMismatchError,
    AttestationRefusedError,
    ContextLostError,
    ConversationRemovedError,
    NoHostError,
    TurnOverError,
)
from sandbox_manager.core.store_check import check_store
from sandbox_manager.core.values import NativeLocator, Verdict
from standfast_chassis import span_names
from standfast_chassis.canonical_json import JsonValue
from standfast_chassis.keys import TokenKind

# Makes a turn's native message id from its key: the same turn never gets a second one.
_MESSAGE_IDS = uuid.UUID("6d1b6c1e-6f0b-5a0c-9f43-9a3f5d0c7b11")
_SLOT = 1


@dataclass(frozen=True, slots=True)
class PrepareWish:
    """A checked request. `locator` None: the manager supplies its own."""

    ref: ConversationRef
    turn_id: str
    runner_id: str
    agent: str
    settings: ProcessSettings
    locator: NativeLocator | None


@dataclass(frozen=True, slots=True)
class Grant:
    """What a runner needs to attach."""

    activation: ActivationRecord
    host: HostRecord
    interrupted_turn: str | None


class Preparing:
    """PrepareTurn."""

    def __init__(self, parts: Parts, sandboxes: Sandboxes, stopping: Stopping) -> None:
        self._parts = parts
        self._sandboxes = sandboxes
        self._stopping = stopping

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
        found = found if found.member is not None else await self._place(wish, found)
        member, group = found.member, found.group
        assert member is not None
        assert group is not None
        if member.agent != wish.agent:
            raise AgentMismatchError(
                f"conversation {wish.ref.label} belongs to {member.agent}, not to {wish.agent}. Open a new conversation.",
                {"expected": member.agent, "found": wish.agent},
            )
        if group.state == GroupState.STOPPING.value:
            group = await self._stopping.finish(group)
        ready = await self._sandboxes.running(wish.ref, group, has_history=member.settled_turns > 0)
        if saved is not None:
            await self._require_store(found, ready, member, saved)
        return await self._grant(wish, story, found, member, ready, saved)

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

    async def _require_store(
        self, found: Conversation, ready: ReadySandbox, member: MemberRecord, saved: NativeLocator
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

    async def _grant(
        self,
        wish: PrepareWish,
        story: TurnStory,
        found: Conversation,
        member: MemberRecord,
        ready: ReadySandbox,
        saved: NativeLocator | None,
    ) -> Grant:
        turn, group = story.turn, ready.group
        # A session without a settled turn is begun anew: what an interrupted one left must not pass for history.
        locator = saved or self._fresh_locator(member, ready)
        kept = member.kept
        may_reuse = kept is not None and _fits(kept, ready, wish.settings, member)
        activation = ActivationRecord(
            activation_id=self._parts.new_id(),
            tenant=turn.tenant,
            conversation_id=turn.conversation_id,
            turn_id=turn.turn_id,
            member_id=member.member_id,
            group_id=group.group_id,
            host_id=ready.host.host_id,
            runner_id=wish.runner_id,
            state=ActivationState.GRANTED,
            container_id=group.container_id or "",
            container_generation=group.container_generation,
            process_generation=member.process_generation + 1,
            activation_generation=member.activation_generation + 1,
            locator=locator,
            message_id=str(uuid.uuid5(_MESSAGE_IDS, f"{turn.tenant}/{turn.conversation_id}/{turn.turn_id}")),
            resumes=saved is not None,
            first_turn=member.settled_turns == 0,
            settings=wish.settings,
            kept=kept,
            may_reuse=may_reuse,
            container_started=ready.was_started,
            token="",
        )
        member_machine(member, None).step(Granted(activation.activation_generation, turn.turn_id))
        activation = replace(activation, token=self._token(activation, member, group, found))
        changed = replace(
            member,
            activation_generation=activation.activation_generation,
            process_generation=activation.process_generation,
        )
        await self._parts.store.commit(
            [
                Insert(activation),
                Update(replace(turn, state=TurnState.PREPARED, activation_id=activation.activation_id)),
                Update(changed),
            ]
        )
        return Grant(activation, ready.host, member.interrupted_turn)

    def _fresh_locator(self, member: MemberRecord, ready: ReadySandbox) -> NativeLocator:
        try:
            return AGENTS[member.agent].locator(self._parts.new_id(), ready.workspace)
        except AgentLocatorError as error:
            raise AttestationRefusedError(
                "EVIDENCE_CONTRADICTED",
                f"host {ready.host.host_id}: its sandboxes' workspace is no place for a session of {member.agent}: {error.message}.",
                {"item": "workspace", "found": ready.workspace, "host_id": ready.host.host_id},
            ) from error

    def _token(
        self, activation: ActivationRecord, member: MemberRecord, group: GroupRecord, found: Conversation
    ) -> str:
        record = found.store.record if found.store is not None and activation.resumes else None
        kept = activation.kept if activation.may_reuse else None
        store: JsonValue = None
        if record is not None:
            store = {
                "prefix_length": record.length,
                "digest": record.digest,
                "anchors": list(record.anchors),
                "promised": list(record.promised),
            }
        claims: dict[str, JsonValue] = {
            "activation_id": activation.activation_id,
            "turn_id": activation.turn_id,
            "tenant": activation.tenant,
            "conversation_id": activation.conversation_id,
            "group_id": activation.group_id,
            "member_id": activation.member_id,
            "slot": member.slot,
            "container_id": activation.container_id,
            "container_generation": activation.container_generation,
            "nonce": group.nonce,
            "activation_generation": activation.activation_generation,
            "agent": member.agent,
            "settings": {
                "model": activation.settings.model,
                "permission_mode": activation.settings.permission_mode,
                "options": dict(activation.settings.options),
            },
            "settings_digest": activation.settings.digest,
            "locator": {
                "agent": activation.locator.agent,
                "native_session_id": activation.locator.native_session_id,
                "cwd": activation.locator.cwd,
                "store": activation.locator.store,
            },
            "resumes": activation.resumes,
            "first_turn": activation.first_turn,
            "message_id": activation.message_id,
            "store": store,
            "reuse_process_generation": kept.process_generation if kept is not None else None,
            "reuse_pid": kept.process.pid if kept is not None else None,
            "reuse_started_ticks": kept.process.started_ticks if kept is not None else None,
            "next_process_generation": activation.process_generation,
            "lease_ms": int(self._parts.leases.lease_s * 1000),
        }
        return self._parts.key.sign(claims, TokenKind.ATTACH)


def _require_free(found: Conversation, turn_id: str) -> None:
    for turn in found.open_turns:
        if turn.turn_id != turn_id and turn.state is not TurnState.CLAIMED:
            raise ConversationBusyError(
                f"turn {turn.turn_id} of conversation {found.ref.label} is not resolved: it must be settled or given up first.",
                {"turn_id": turn.turn_id, "state": turn.state.value, "address": turn.runner_address},
            )


def _fits(kept: RecordedProcess, ready: ReadySandbox, settings: ProcessSettings, member: MemberRecord) -> bool:
    """Whether the recorded process may serve this turn: the same run of the container, the same settings, the pinned program."""
    return (
        kept.container_started_at == ready.started_at
        and not ready.was_started
        and kept.settings_digest == settings.digest
        and kept.agent_version in (None, AGENTS[member.agent].version)
    )
