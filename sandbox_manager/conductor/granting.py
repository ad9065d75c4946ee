"""Grants an activation: the window in which one prompt may be admitted to one member. It is durable before it is handed out.

The grant is signed, so that the host agent can tell it from a runner's word; which process may serve it is decided here.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace

from sandbox_manager.adapters.store_port import Conversation, Insert, TurnStory, Update
from sandbox_manager.agents.errors import AgentLocatorError
from sandbox_manager.agents.registry import AGENTS
from sandbox_manager.conductor.members import member_machine
from sandbox_manager.conductor.parts import Parts
from sandbox_manager.conductor.process_settings import in_force
from sandbox_manager.conductor.sandboxes import ReadySandbox
from sandbox_manager.core.context import RecordedProcess
from sandbox_manager.core.member import Granted
from sandbox_manager.core.records import (
    ActivationRecord,
    ActivationState,
    ConversationRef,
    GroupRecord,
    HostRecord,
    MemberRecord,
    ProcessSettings,
    SaidSettings,
    TurnState,
)
from sandbox_manager.core.refusals import AttestationRefusedError
from sandbox_manager.core.values import NativeLocator
from standfast_chassis.canonical_json import JsonValue
from standfast_chassis.keys import TokenKind

# Makes a turn's native message id from its key: the same turn never gets a second one.
_MESSAGE_IDS = uuid.UUID("6d1b6c1e-6f0b-5a0c-9f43-9a3f5d0c7b11")


@dataclass(frozen=True, slots=True)
class PrepareWish:
    """A checked request. `locator` None: the manager supplies its own."""

    ref: ConversationRef
    turn_id: str
    runner_id: str
    agent: str
    said: SaidSettings
    locator: NativeLocator | None


@dataclass(frozen=True, slots=True)
class Grant:
    """What a runner needs to attach."""

    activation: ActivationRecord
    host: HostRecord
    interrupted_turn: str | None


class Granting:
    """Makes grants."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def grant(
        self,
        wish: PrepareWish,
        story: TurnStory,
        found: Conversation,
        ready: ReadySandbox,
        saved: NativeLocator | None,
    ) -> Grant:
        turn, group, member = story.turn, ready.group, found.member
        assert member is not None
        # A session without a settled turn is begun anew: what an interrupted one left must not pass for history.
        locator = saved or self._fresh_locator(member, ready)
        settings = in_force(wish.said, member.settings)
        kept = member.kept
        may_reuse = kept is not None and _fits(kept, ready, settings, member)
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
            settings=settings,
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
            settings=settings,
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
            agent = AGENTS[member.agent]
            return agent.locator(self._parts.new_id() if agent.names_session == "HOST" else "", ready.workspace)
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
                "permission_mode": activation.settings.permissions.mode,
                "options": dict(activation.settings.options),
                "allow_rules": list(activation.settings.permissions.allow_rules),
                "deny_rules": list(activation.settings.permissions.deny_rules),
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


def _fits(kept: RecordedProcess, ready: ReadySandbox, settings: ProcessSettings, member: MemberRecord) -> bool:
    """Whether the recorded process may serve this turn: the same run of the container, the same settings, the pinned program."""
    return (
        kept.container_started_at == ready.started_at
        and not ready.was_started
        and kept.settings_digest == settings.digest
        and kept.agent_version in (None, AGENTS[member.agent].version)
    )
