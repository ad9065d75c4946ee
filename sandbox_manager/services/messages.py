"""Records as messages. Names of states go over as they are; enumerations by name with their prefix."""

from __future__ import annotations

from sandbox_manager.adapters.store_port import Conversation, TurnStory
from sandbox_manager.core.records import HostRecord, Marks, ProcessSettings, SettlementRecord
from sandbox_manager.core.values import ContextState, Generations, NativeLocator, ProcessDisposition, Verdict
from standfast.host.v1 import host_registry_pb2
from standfast.sandbox.v1 import sandbox_manager_pb2 as pb
from standfast.types.v1 import types_pb2 as types
from standfast_chassis.build_info import BuildInfo

# States in transit that a caller need not tell apart from where they lead.
_GROUP_STATES = {"PLANNED": "PLACED", "VOIDING": "STARTING", "REMOVING": "REMOVED"}


def locator_message(locator: NativeLocator) -> types.NativeLocator:
    """A locator."""
    return types.NativeLocator(
        agent=locator.agent, native_session_id=locator.native_session_id, cwd=locator.cwd, store=locator.store
    )


def generations_message(generations: Generations) -> types.Generations:
    """Generations."""
    return types.Generations(
        container=generations.container, process=generations.process, activation=generations.activation
    )


def settings_message(settings: ProcessSettings) -> types.AgentSettings:
    """The settings of a process."""
    return types.AgentSettings(
        model=settings.model or "",
        permission_mode=settings.permissions.mode,
        allow_rules=settings.permissions.allow_rules,
        deny_rules=settings.permissions.deny_rules,
        options=dict(settings.options),
    )


def context_state_value(state: ContextState | None) -> types.ContextState.ValueType:
    """The enumeration's value; unspecified while undecided."""
    return types.ContextState.Value(f"CONTEXT_STATE_{state.value if state is not None else 'UNSPECIFIED'}")


def outcome_value(outcome: str | None) -> types.Outcome.ValueType:
    """The enumeration's value of an outcome's word."""
    return types.Outcome.Value(f"OUTCOME_{outcome or 'UNSPECIFIED'}")


def outcome_word(value: types.Outcome.ValueType) -> str:
    """The word of an outcome, e.g. "NOT_SENT"."""
    return types.Outcome.Name(value).removeprefix("OUTCOME_")


def verdict_value(verdict: Verdict | None) -> types.Verdict.ValueType:
    """The enumeration's value."""
    return types.Verdict.Value(f"VERDICT_{verdict.value if verdict is not None else 'UNSPECIFIED'}")


def verdict_of(value: types.Verdict.ValueType) -> Verdict | None:
    """The verdict that a runner claims; None where it claims none."""
    name = types.Verdict.Name(value).removeprefix("VERDICT_")
    return None if name == "UNSPECIFIED" else Verdict(name)


def disposition_value(disposition: ProcessDisposition | None) -> types.ProcessDisposition.ValueType:
    """The enumeration's value."""
    word = disposition.value if disposition is not None else "UNSPECIFIED"
    return types.ProcessDisposition.Value(f"PROCESS_DISPOSITION_{word}")


def findings_messages(marks: Marks) -> list[types.Finding]:
    """Findings, in their order."""
    return [types.Finding(code=mark.code, expected=mark.expected, observed=mark.observed) for mark in marks.items]


def settlement_message(settlement: SettlementRecord) -> pb.Settlement:
    """A settlement."""
    message = pb.Settlement(
        saved=settlement.saved,
        outcome=outcome_value(settlement.outcome),
        manager_verdict=verdict_value(settlement.manager_verdict),
        store_verdict=types.StoreVerdict.Value(f"STORE_VERDICT_{settlement.store_verdict}"),
        runner_verdict=verdict_value(settlement.runner_verdict),
        findings=findings_messages(settlement.findings),
        process_disposition=disposition_value(settlement.process_disposition),
        process_reason=settlement.process_reason,
        generations=generations_message(settlement.generations),
        container_id=settlement.container_id,
        end_evidence_digest=settlement.end_evidence_digest,
        end_reason=settlement.end_reason,
    )
    if settlement.locator is not None:
        message.locator.CopyFrom(locator_message(settlement.locator))
    return message


def turn_message(story: TurnStory, host_address: str) -> pb.ManagedTurn:
    """A turn as it stands. `host_address` is of the host that has its journal; empty before a grant."""
    turn, activation, admission = story.turn, story.activation, story.admission
    message = pb.ManagedTurn(
        turn_id=turn.turn_id,
        state=turn.state.value,
        activation_id=turn.activation_id or "",
        host_address=host_address,
        context_state=context_state_value(turn.context_state),
        context_reason=turn.context_reason or "",
        outcome=outcome_value(turn.outcome),
        message_digest=turn.message_digest,
        runner_id=turn.runner_id,
        reason=turn.reason or "",
        agent=turn.agent,
    )
    if activation is not None:
        generations = activation.generations
        if admission is not None:
            generations = Generations(generations.container, admission.process_generation, generations.activation)
        message.generations.CopyFrom(generations_message(generations))
        message.message_id = activation.message_id
        message.locator.CopyFrom(locator_message(activation.locator))
    if story.settlement is not None:
        message.settlement.CopyFrom(settlement_message(story.settlement))
    return message


def conversation_message(found: Conversation) -> pb.ManagedConversation:
    """A conversation as it stands."""
    message = pb.ManagedConversation(
        conversation=types.ConversationKey(tenant=found.ref.tenant, conversation_id=found.ref.conversation_id)
    )
    if found.member is not None:
        message.agent = found.member.agent
        message.last_settled_turn = found.member.last_settled_turn or ""
        message.settled_turns = found.member.settled_turns
    if found.group is not None:
        message.group_id = found.group.group_id
        message.group_state = _GROUP_STATES.get(found.group.state, found.group.state)
        message.container_id = found.group.container_id or ""
        message.container_generation = found.group.container_generation
        message.host_id = found.group.host_id
    if found.locator is not None:
        message.locator.CopyFrom(locator_message(found.locator.locator))
    return message


def host_message(host: HostRecord, *, state: str, lease_left_ms: int, groups: int) -> host_registry_pb2.Host:
    """A host as it stands."""
    return host_registry_pb2.Host(
        host_id=host.host_id,
        state=state,
        address=host.address,
        engine=host.engine,
        release_sha=host.release_sha,
        image_id=host.image_id,
        lease_left_ms=lease_left_ms,
        groups=groups,
        findings=findings_messages(host.findings),
    )


def build_message(build: BuildInfo, key_id: str) -> types.BuildInfo:
    """Which build answers."""
    return types.BuildInfo(
        component="manager",
        version=build.version,
        release_sha=build.release_sha or "unknown",
        protocol_version=build.protocol_version,
        key_id=key_id,
    )
