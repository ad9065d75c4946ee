"""Decides the context state from the host's signed report, and records the permission to send one message once.

The report comes through the runner and is worth nothing without the host's signature. The decision itself is core/context.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sandbox_manager.adapters.store_port import Conversation, Insert, TurnStory, Update
from sandbox_manager.agents.registry import AGENTS
from sandbox_manager.conductor.lookups import (
    ended,
    recording_refusals,
    require_holder,
    story_of_activation,
)
from sandbox_manager.conductor.parts import Parts, turn_key
from sandbox_manager.conductor.sandboxes import Sandboxes
from sandbox_manager.core import codec
from sandbox_manager.core.context import (
    ContextDecision,
    ExpectedContainer,
    ExpectedMember,
    Presence,
    Ruling,
    decide,
)
from sandbox_manager.core.errors import StaleGenerationError
from sandbox_manager.core.locators import complete_locator
from sandbox_manager.core.records import (
    ActivationRecord,
    ActivationState,
    AdmissionRecord,
    GroupRecord,
    LeftoverRecord,
    MemberRecord,
    TurnState,
)
from sandbox_manager.core.refusals import (
    ActivationExpiredError,
    AdmissionInvalidError,
    ContextLostError,
    HostUnavailableError,
    ImageRetiredError,
    NativeSessionMismatchError,
    NotAdmittedError,
    SignatureInvalidError,
)
from sandbox_manager.core.store_check import AdmittedTurn
from sandbox_manager.core.values import ActivationReport, ContextState, Generations
from standfast_chassis import span_names
from standfast_chassis.canonical_json import JsonValue, sha256_hex
from standfast_chassis.keys import TokenKind


@dataclass(frozen=True, slots=True)
class AdmitWish:
    """A checked admission request."""

    activation_id: str
    runner_id: str
    report_jws: str
    message_digest: str
    message_length: int


class Admitting:
    """AdmitTurn."""

    def __init__(self, parts: Parts, sandboxes: Sandboxes) -> None:
        self._parts = parts
        self._sandboxes = sandboxes

    async def admit(self, wish: AdmitWish) -> tuple[AdmissionRecord, ActivationRecord]:
        """The admission. The same activation and message get the same one again."""
        story = await story_of_activation(self._parts, wish.activation_id)
        with self._parts.tracing.span(
            span_names.ADMIT,
            {span_names.STANDFAST_TURN_ID: story.turn.turn_id, span_names.GEN_AI_AGENT_NAME: story.turn.agent},
        ) as span:
            async with self._parts.locks.holding(story.turn.ref):
                story = await story_of_activation(self._parts, wish.activation_id)
                async with recording_refusals(self._parts, story.turn.ref, story.turn.turn_id):
                    admission, activation = await self._admit(wish, story)
            span.set_attribute(span_names.STANDFAST_CONTEXT_STATE, admission.context_state.value)
            span.set_attribute(span_names.STANDFAST_REASON, admission.context_reason)
        return admission, activation

    async def _admit(self, wish: AdmitWish, story: TurnStory) -> tuple[AdmissionRecord, ActivationRecord]:
        turn, activation = story.turn, story.activation
        assert activation is not None
        require_holder(turn, wish.runner_id)
        if (wish.message_digest, wish.message_length) != (turn.message_digest, turn.message_length):
            raise AdmissionInvalidError(
                f"turn {turn.turn_id} was claimed with another message; nothing may be sent under it.",
                {"turn_id": turn.turn_id, "expected": turn.message_digest, "found": wish.message_digest},
            )
        if story.admission is not None and activation.state is ActivationState.ADMITTED:
            return story.admission, activation
        if activation.state is ActivationState.ENDED or not self._parts.leases.is_live(turn_key(turn)):
            raise ActivationExpiredError(
                f"the lease of activation {activation.activation_id} ran out, or its turn is over; nothing may be sent. "
                "Prepare the turn anew, or give it up.",
                {"activation_id": activation.activation_id},
            )
        found = await self._parts.store.conversation(turn.ref)
        member, group = found.member, found.group
        if member is None or group is None or member.activation_generation != activation.activation_generation:
            newest = member.activation_generation if member is not None else 0
            raise StaleGenerationError("activation", newest, activation.activation_generation)
        await self._parts.host_of(group)
        report = await self._report(wish.report_jws, activation)
        if not activation.resumes:
            activation = replace(activation, locator=complete_locator(activation.locator, report.locator))
        decision = decide(
            report, _expected_member(found, member, activation, report), self._container(group, activation)
        )
        if decision.ruling is not Ruling.ADMIT or decision.state is None:
            await self._refuse(decision, story, member)
        # Also of a run that a former turn began: it may have been given up before anybody asked.
        await self._sandboxes.require_measured(group, report.container.started_at)
        return await self._record(wish, story, activation, member, report, decision)

    async def _report(self, report_jws: str, activation: ActivationRecord) -> ActivationReport:
        host = await self._parts.store.host(activation.host_id)
        if host is None:
            raise HostUnavailableError(f"host {activation.host_id} is not registered.", {"host_id": activation.host_id})
        payload = self._parts.hosts.signed(host, report_jws, TokenKind.ACTIVATION_REPORT)
        try:
            report = codec.decode(ActivationReport, payload)
        except codec.CodecError as error:
            raise SignatureInvalidError(
                f"the signed report cannot be read: {error.message}.", error.metadata
            ) from error
        if self._parts.policy.check_identity:
            return report
        locator = complete_locator(activation.locator, report.locator)
        return replace(report, locator=locator, observed_session_id=None, observed_store=None)

    def _container(self, group: GroupRecord, activation: ActivationRecord) -> ExpectedContainer:
        return ExpectedContainer(
            presence=Presence.PRESENT,
            container_id=activation.container_id,
            image_id=group.image_id or "",
            nonce=group.nonce,
            accepted_images=self._parts.manifest.accepted_images,
            started_now=activation.container_started,
        )

    async def _refuse(self, decision: ContextDecision, story: TurnStory, member: MemberRecord) -> None:
        facts = {"expected": decision.expected, "observed": decision.found, "why": decision.reason}
        match decision.ruling, decision.reason:
            case Ruling.REFUSE, "IMAGE_RETIRED":
                raise ImageRetiredError(
                    f"The container's image is not accepted by this release: {decision.cure}.", facts
                )
            case Ruling.REFUSE, "NATIVE_SESSION_MISMATCH":
                raise NativeSessionMismatchError(
                    f"Another native session answered: expected {decision.expected}, found {decision.found}. Nothing was sent.",
                    facts,
                )
            case Ruling.REFUSE, reason if decision.state is not ContextState.LOST:
                raise NotAdmittedError(reason, expected=decision.expected, observed=decision.found, cure=decision.cure)
            case Ruling.REFUSE, cause:
                raise ContextLostError(
                    cause,
                    cure=decision.cure,
                    readable=decision.readable,
                    expected=decision.expected,
                    observed=decision.found,
                )
            case (Ruling.RESTART, _) | (Ruling.RETRY, "GENERATION_STALE" | "SESSION_NOT_FRESH"):
                # The grant cannot be used; the turn can: its next Prepare lets no running process serve it.
                await self._parts.store.commit(
                    [
                        Update(replace(story.turn, state=TurnState.CLAIMED, activation_id=None)),
                        Update(replace(member, kept=None, disposition_reason=decision.reason)),
                        *ended(story),
                    ]
                )
                raise ActivationExpiredError(
                    f"The activation cannot serve this turn ({decision.reason}): expected {decision.expected}, found "
                    f"{decision.found}. Nothing was sent; prepare the turn anew.",
                    facts,
                )
            case _:
                raise HostUnavailableError(
                    f"The activation's report is not enough yet ({decision.reason}): expected {decision.expected}, found "
                    f"{decision.found}. Nothing was sent; retry.",
                    facts,
                )

    async def _record(
        self,
        wish: AdmitWish,
        story: TurnStory,
        activation: ActivationRecord,
        member: MemberRecord,
        report: ActivationReport,
        decision: ContextDecision,
    ) -> tuple[AdmissionRecord, ActivationRecord]:
        turn = story.turn
        assert decision.state is not None
        claims: dict[str, JsonValue] = {
            "activation_id": activation.activation_id,
            "process_generation": report.generations.process,
            "activation_generation": activation.activation_generation,
            "message_digest": turn.message_digest,
            "message_length": turn.message_length,
            "message_id": activation.message_id,
        }
        admission = AdmissionRecord(
            activation_id=activation.activation_id,
            tenant=turn.tenant,
            conversation_id=turn.conversation_id,
            turn_id=turn.turn_id,
            message_digest=turn.message_digest,
            message_length=turn.message_length,
            message_id=activation.message_id,
            context_state=decision.state,
            context_reason=decision.reason,
            process_generation=report.generations.process,
            process=report.process,
            agent_version=report.agent_version,
            container_started_at=report.container.started_at,
            report_digest=sha256_hex(wish.report_jws.encode()),
            admission_jws=self._parts.key.sign(claims, TokenKind.ADMISSION),
        )
        leftover = LeftoverRecord(
            activation_id=activation.activation_id,
            tenant=turn.tenant,
            conversation_id=turn.conversation_id,
            turn_id=turn.turn_id,
            native_session_id=activation.locator.native_session_id,
            admitted=AdmittedTurn(activation.message_id, turn.message_digest),
        )
        await self._parts.store.commit(
            [
                Insert(admission),
                Insert(leftover),
                Update(
                    replace(
                        turn,
                        state=TurnState.ADMITTED,
                        context_state=decision.state,
                        context_reason=decision.reason,
                    )
                ),
                Update(replace(activation, state=ActivationState.ADMITTED)),
                # Until the turn is settled nobody knows whether its process can serve another one. Where the running process is
                # used, the generation that a new one would have got was given to none.
                Update(
                    replace(
                        member,
                        kept=None,
                        disposition=None,
                        disposition_reason=None,
                        process_generation=report.generations.process,
                    )
                ),
            ]
        )
        self._parts.leases.renew(turn_key(turn))
        return admission, activation


def _expected_member(
    found: Conversation, member: MemberRecord, activation: ActivationRecord, report: ActivationReport
) -> ExpectedMember:
    generations = activation.generations
    kept = activation.kept
    if report.process_was_running and activation.may_reuse and kept is not None:
        generations = Generations(generations.container, kept.process_generation, generations.activation)
    session_id = activation.locator.native_session_id
    return ExpectedMember(
        activation_id=activation.activation_id,
        turn_id=activation.turn_id,
        group_id=activation.group_id,
        member_id=activation.member_id,
        generations=generations,
        locator=activation.locator,
        settings_digest=activation.settings.digest,
        settled_turns=member.settled_turns,
        store=found.store.record if found.store is not None else None,
        agent_version=AGENTS[member.agent].version,
        kept=kept,
        leftovers=tuple(one.admitted for one in found.leftovers if one.native_session_id == session_id),
        interrupted=tuple(one.native_session_id for one in found.leftovers),
        interrupted_turn=member.interrupted_turn,
        disposition_reason=member.disposition_reason,
    )
