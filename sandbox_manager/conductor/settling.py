"""Judges a turn that is natively over and settles it: both verdicts, settlement, locator and store record in one transaction.

The verdict is core/verdict.py's, on the host's observation and the manager's own records; the runner's claim is compared afterwards and can
only make the turn fail. Neither side ever corrects the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import structlog

from sandbox_manager.adapters.store_port import Change, Conversation, Delete, Insert, TurnStory, Update
from sandbox_manager.agents.registry import AGENTS
from sandbox_manager.conductor.leftovers import what_it_left
from sandbox_manager.conductor.lookups import story_of_turn
from sandbox_manager.conductor.members import member_machine
from sandbox_manager.conductor.observations import Journalled, journalled
from sandbox_manager.conductor.parts import Parts, turn_key
from sandbox_manager.core.context import RecordedProcess
from sandbox_manager.core.errors import StaleGenerationError
from sandbox_manager.core.judgement import Outcome
from sandbox_manager.core.member import NotSaved, Settled
from sandbox_manager.core.records import (
    ActivationRecord,
    ActivationState,
    AdmissionRecord,
    ConversationRef,
    GroupRecord,
    LocatorRecord,
    Mark,
    Marks,
    MemberRecord,
    SettlementRecord,
    StoreRecordRow,
    TurnState,
)
from sandbox_manager.core.refusals import NotEndedError, TurnResolvedError
from sandbox_manager.core.values import Generations, Observation, ProcessDisposition, StoreReading, Verdict
from sandbox_manager.core.verdict import Expected, ManagerVerdict, Result, judge
from standfast_chassis import span_names

_log = structlog.get_logger("standfast.manager.settling")


@dataclass(frozen=True, slots=True)
class RunnerSays:
    """The runner's claim. It is compared with the manager's verdict, and never changes it."""

    verdict: Verdict | None
    native_session_id: str
    failed: bool


@dataclass(frozen=True, slots=True)
class SettleWish:
    """A checked request."""

    request_id: str
    ref: ConversationRef
    turn_id: str
    activation_id: str
    runner_id: str
    claim: RunnerSays


class Settling:
    """SettleTurn."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def settle(self, wish: SettleWish) -> SettlementRecord:
        """The settlement. A repeated request, or another runner's for the same activation, gets the first answer."""
        with self._parts.tracing.span(span_names.SETTLE, {span_names.STANDFAST_TURN_ID: wish.turn_id}) as span:
            async with self._parts.locks.holding(wish.ref):
                settlement = await self._settle(wish)
            span.set_attribute(span_names.STANDFAST_TURN_OUTCOME, settlement.outcome)
        return settlement

    async def _settle(self, wish: SettleWish) -> SettlementRecord:
        first = await self._parts.store.settlement_by_request(wish.request_id)
        if first is not None and (first.turn_id, first.activation_id) == (wish.turn_id, wish.activation_id):
            return first
        story = await story_of_turn(self._parts, wish.ref, wish.turn_id)
        if story.settlement is not None and story.settlement.activation_id == wish.activation_id:
            return story.settlement
        activation, admission = story.activation, story.admission
        found = await self._parts.store.conversation(wish.ref)
        member, group = found.member, found.group
        if activation is None or activation.activation_id != wish.activation_id or member is None or group is None:
            newest = member.activation_generation if member is not None else 0
            raise StaleGenerationError("activation", newest, 0)
        if not story.turn.state.is_open:
            raise TurnResolvedError(
                f"turn {wish.turn_id} is {story.turn.state.value} ({story.turn.reason or story.turn.outcome}); it settles no more.",
                {"turn_id": wish.turn_id, "state": story.turn.state.value},
            )
        if admission is None:
            raise NotEndedError(
                f"turn {wish.turn_id} was never admitted, so it has no native end; give it up instead.",
                {"turn_id": wish.turn_id, "state": story.turn.state.value},
            )
        entry = await journalled(self._parts, activation)
        if entry.observation is None or not entry.observation.forwarded or entry.observation.tap.end is None:
            raise NotEndedError(
                f"the host's observation of turn {wish.turn_id} holds no native end; give it up instead.",
                {"turn_id": wish.turn_id, "host_id": entry.host.host_id},
            )
        verdict = await self._verdict(found, group, member, activation, admission, entry)
        return await self._record(wish, story, found, member, entry.observation, entry.digest, verdict)

    async def _verdict(
        self,
        found: Conversation,
        group: GroupRecord,
        member: MemberRecord,
        activation: ActivationRecord,
        admission: AdmissionRecord,
        entry: Journalled,
    ) -> ManagerVerdict:
        observation = entry.observation
        assert observation is not None
        expected = _expected(found, group, member, activation, admission)
        if not self._parts.policy.check_identity:
            observation = _identity_overlooked(observation, expected)
        with self._parts.tracing.span(
            span_names.VERIFY_MANAGER, {span_names.STANDFAST_TURN_ID: activation.turn_id}
        ) as span:
            verdict = judge(expected, observation)
            if verdict.result is Result.READ_AGAIN:
                verdict = judge(expected, observation, reread=await self._read_again(group, member, activation, entry))
            span.set_attribute(span_names.STANDFAST_VERDICT, verdict.identity.value)
            span.set_attribute(span_names.STANDFAST_STORE_VERDICT, verdict.store.value)
        return verdict

    async def _read_again(
        self, group: GroupRecord, member: MemberRecord, activation: ActivationRecord, entry: Journalled
    ) -> StoreReading:
        """A first turn whose history was not on disk: the host has ended its process, and what is not there now never comes."""
        read = await self._parts.hosts.read_store(entry.host, group, member.slot, activation.locator, 0)
        return read.reading

    async def _record(
        self,
        wish: SettleWish,
        story: TurnStory,
        found: Conversation,
        member: MemberRecord,
        observation: Observation,
        observation_digest: str,
        verdict: ManagerVerdict,
    ) -> SettlementRecord:
        turn, activation, admission = story.turn, story.activation, story.admission
        assert activation is not None
        assert admission is not None
        differences = _differences(wish.claim, activation, observation, verdict)
        saved = verdict.is_settled and not differences
        outcome = verdict.outcome if saved else Outcome.FAILED
        disposition, why = verdict.disposition, verdict.disposition_reason
        if verdict.is_settled and not saved:
            disposition, why = ProcessDisposition.RECLAIM_FIRST, "VERDICTS_DIFFER"
        end = observation.tap.end
        assert end is not None
        settlement = SettlementRecord(
            activation_id=activation.activation_id,
            request_id=wish.request_id,
            tenant=turn.tenant,
            conversation_id=turn.conversation_id,
            turn_id=turn.turn_id,
            saved=saved,
            outcome=outcome.value,
            manager_verdict=verdict.identity,
            store_verdict=verdict.store.value,
            runner_verdict=wish.claim.verdict,
            findings=Marks((*(Mark(one.code, one.expected, one.found) for one in verdict.reasons), *differences)),
            process_disposition=disposition,
            process_reason=why,
            locator=verdict.locator if saved else None,
            generations=observation.generations,
            container_id=observation.container.container_id,
            end_evidence_digest=end.evidence_digest,
            end_reason=" ".join(str(part) for part in (end.reason, end.status) if part is not None),
            observation_digest=observation_digest,
        )
        event = Settled if saved else NotSaved
        member_machine(member, turn).step(event(activation.activation_generation))
        kept = None
        if saved and disposition is ProcessDisposition.KEPT and admission.process is not None:
            kept = RecordedProcess(
                process=admission.process,
                process_generation=admission.process_generation,
                container_started_at=observation.container.started_at,
                settings_digest=activation.settings.digest,
                agent_version=observation.tap.agent_version or admission.agent_version,
            )
        changed = replace(member, kept=kept, disposition=disposition, disposition_reason=why)
        if saved:
            changed = replace(
                changed,
                last_settled_turn=turn.turn_id,
                settled_turns=member.settled_turns + 1,
                interrupted_turn=None,
            )
        reason = None if outcome is not Outcome.FAILED else _reason(settlement, verdict, differences)
        changes: list[Change] = [
            Insert(settlement),
            Update(replace(turn, state=TurnState.SETTLED, outcome=outcome.value, reason=reason)),
            Update(replace(activation, state=ActivationState.ENDED)),
            Update(changed),
        ]
        changes += _saved_changes(found, changed, activation, verdict, turn.turn_id) if saved else []
        changes += [] if saved else what_it_left(found, activation, observation)
        await self._parts.store.commit(changes)
        self._parts.leases.end(turn_key(turn))
        _log.info(
            "settled",
            conversation_id=turn.conversation_id,
            turn_id=turn.turn_id,
            outcome=settlement.outcome,
            saved=saved,
            manager_verdict=verdict.identity.value,
            store_verdict=settlement.store_verdict,
            process=disposition.value,
        )
        return settlement


def _expected(
    found: Conversation,
    group: GroupRecord,
    member: MemberRecord,
    activation: ActivationRecord,
    admission: AdmissionRecord,
) -> Expected:
    session_id = activation.locator.native_session_id
    return Expected(
        activation_id=activation.activation_id,
        turn_id=activation.turn_id,
        group_id=activation.group_id,
        member_id=activation.member_id,
        generations=Generations(
            activation.container_generation, admission.process_generation, activation.activation_generation
        ),
        container_id=activation.container_id,
        image_id=group.image_id or "",
        nonce=group.nonce,
        locator=activation.locator,
        message_id=admission.message_id,
        message_digest=admission.message_digest,
        message_length=admission.message_length,
        store=found.store.record if found.store is not None and activation.resumes else None,
        leftovers=tuple(
            one.admitted
            for one in found.leftovers
            if one.native_session_id == session_id and one.activation_id != activation.activation_id
        ),
        agent_version=AGENTS[member.agent].version,
    )


def _identity_overlooked(observation: Observation, expected: Expected) -> Observation:
    """With this side's check switched off: whatever session answered passes for the expected one."""
    session_id = expected.locator.native_session_id
    tap = replace(observation.tap, session_ids=(session_id,), reset_to=None, identity_before_output=True)
    return replace(observation, locator=expected.locator, tap=tap)


def _differences(
    claim: RunnerSays, activation: ActivationRecord, observation: Observation, verdict: ManagerVerdict
) -> tuple[Mark, ...]:
    """Where the runner's claim and the manager's verdict part. Looked at only after the verdict is made."""
    if not verdict.is_settled:
        return ()
    marks = []
    if claim.verdict is not Verdict.CONFIRMED:
        found = claim.verdict.value if claim.verdict is not None else "none"
        marks.append(Mark("VERDICTS_DIFFER", "the runner's verdict CONFIRMED", found))
    expected = activation.locator.native_session_id
    if claim.native_session_id != expected:
        marks.append(Mark("VERDICTS_DIFFER", f"native session {expected}", claim.native_session_id or "none"))
    end = observation.tap.end
    if end is not None and not end.cancelled and claim.failed != end.is_error:
        marks.append(Mark("VERDICTS_DIFFER", f"failed: {end.is_error}", f"failed: {claim.failed}"))
    return tuple(marks)


def _reason(settlement: SettlementRecord, verdict: ManagerVerdict, differences: tuple[Mark, ...]) -> str:
    """Why a turn failed, as one name of ErrorReason."""
    if differences:
        return differences[0].code
    if verdict.is_settled:
        is_provider = settlement.end_reason.startswith("api_error") or settlement.end_reason[-3:].isdecimal()
        return "PROVIDER_ERROR" if is_provider else "NATIVE_ERROR"
    contradictions = [one for one in verdict.reasons if one.weighs is Verdict.CONTRADICTED]
    ranked = contradictions or list(verdict.reasons)
    return ranked[0].code if ranked else "VERDICTS_DIFFER"


def _saved_changes(
    found: Conversation, member: MemberRecord, activation: ActivationRecord, verdict: ManagerVerdict, turn_id: str
) -> list[Change]:
    assert verdict.locator is not None
    assert verdict.store_record is not None
    locator = LocatorRecord(
        tenant=member.tenant,
        conversation_id=member.conversation_id,
        group_id=member.group_id,
        member_id=member.member_id,
        native_session_id=verdict.locator.native_session_id,
        locator=verdict.locator,
        turn_id=turn_id,
    )
    store = StoreRecordRow(
        tenant=member.tenant,
        conversation_id=member.conversation_id,
        turn_id=turn_id,
        length=verdict.store_record.length,
        digest=verdict.store_record.digest,
        record=verdict.store_record,
    )
    return [
        Insert(locator) if found.locator is None else Update(replace(locator, revision=found.locator.revision)),
        Insert(store) if found.store is None else Update(replace(store, revision=found.store.revision)),
        # The new record covers whatever earlier turns have left.
        *(Delete(one) for one in found.leftovers),
    ]
