"""What the runner and the manager say to each other about one turn. Requests are built here, answers are checked.

Every call is idempotent by its own ids, so each may be asked again; how long is said by its caller.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import structlog

from runner.adapters.wire import (
    answer_from_wire,
    conversation_to_wire,
    granted_from_wire,
    locator_from_wire,
    locator_to_wire,
    outcome_from_wire,
    outcome_to_wire,
    own_findings,
    turn_conversation,
    verdict_to_wire,
)
from runner.conductor.parts import Parts, TurnRequest
from runner.conductor.replay import Activation, Replayed, replay
from runner.conductor.retries import ask, is_away, is_passing
from runner.core.errors import ReasonedError
from runner.core.locator_record import LocatorRecord
from runner.core.preparation import check_grant, check_requested
from runner.core.settlement import settle
from runner.core.values import Cause, NativeLocator, Outcome, TurnKey
from runner.core.verdict import Judgement
from runner.drivers.registry import find_agent
from standfast.sandbox.v1 import sandbox_manager_pb2 as sandbox_pb
from standfast.types.v1 import types_pb2
from standfast_chassis.errors import StandfastError

_log = structlog.get_logger("standfast.runner.negotiation")


@dataclass(frozen=True, slots=True)
class Grant:
    """A checked activation."""

    activation_id: str
    host_address: str
    host_id: str
    container_id: str
    container_generation: int
    activation_generation: int
    locator: NativeLocator
    resumes: bool
    message_id: str
    activation_token: str
    lease_s: float
    interrupted_turn_id: str
    settings: types_pb2.AgentSettings  # as the manager says them: the turn's own, else the conversation's last ones


def settle_request_id(key: TurnKey, activation_id: str) -> str:
    """The same for every runner that settles this activation of this turn."""
    text = (
        f"{len(key.tenant)}:{key.tenant}|{len(key.conversation_id)}:{key.conversation_id}|{key.turn_id}|{activation_id}"
    )
    return f"settle-{hashlib.sha256(text.encode()).hexdigest()}"


class Negotiation:
    """One turn's talk with the manager."""

    def __init__(self, parts: Parts, key: TurnKey) -> None:
        self._parts = parts
        self._key = key

    async def claim(self, request: TurnRequest, *, knows_conversation: bool) -> sandbox_pb.ClaimTurnResponse:
        wish = sandbox_pb.ClaimTurnRequest(
            conversation=turn_conversation(self._key),
            turn_id=self._key.turn_id,
            message_digest=request.message.digest,
            message_length=request.message.length,
            agent=request.agent.name,
            expect=request.expect,
            runner_id=self._parts.runner_id,
            runner_address=self._parts.runner_address,
            runner_knows_conversation=knows_conversation,
        )
        limits = self._parts.limits
        return await ask(
            lambda: self._parts.manager.claim_turn(wish),
            what="the claim",
            first_s=limits.retry_first_s,
            max_s=limits.retry_max_s,
            for_s=limits.manager_wait_s,
            again=is_away,
        )

    async def prepare(self, request: TurnRequest, *, record: LocatorRecord, has_settled_turns: bool) -> Grant:
        if self._parts.policy.check_identity:
            # Before a grant: one that is given back costs the conversation its running process.
            check_requested(requested=request.locator, saved=record.saved)
        wish = sandbox_pb.PrepareTurnRequest(
            conversation=turn_conversation(self._key),
            turn_id=self._key.turn_id,
            runner_id=self._parts.runner_id,
            agent=request.agent.name,
            settings=request.settings,
            locator=locator_to_wire(record.to_send),
        )
        limits = self._parts.limits
        answer = await ask(
            lambda: self._parts.manager.prepare_turn(wish),
            what="the preparation",
            first_s=limits.retry_first_s,
            max_s=limits.retry_max_s,
            for_s=limits.manager_wait_s,
            again=is_away,
        )
        locator = check_grant(
            record=record,
            has_settled_turns=has_settled_turns,
            requested=request.locator,
            granted=granted_from_wire(answer.locator) if answer.HasField("locator") else None,
            resumes=answer.resumes,
            agent=request.agent.name,
            names_session=request.agent.names_session,
            check_identity=self._parts.policy.check_identity,
        )
        return Grant(
            activation_id=answer.activation_id,
            host_address=answer.host_address,
            host_id=answer.host_id,
            container_id=answer.container_id,
            container_generation=answer.generations.container,
            activation_generation=answer.generations.activation,
            locator=locator,
            resumes=answer.resumes,
            message_id=answer.message_id,
            activation_token=answer.activation_token,
            lease_s=max(answer.lease_ms / 1000, 0.1),
            interrupted_turn_id=answer.interrupted_turn_id,
            settings=answer.settings if answer.HasField("settings") else request.settings,
        )

    async def admit(self, request: TurnRequest, grant: Grant, report_jws: str) -> sandbox_pb.AdmitTurnResponse:
        wish = sandbox_pb.AdmitTurnRequest(
            activation_id=grant.activation_id,
            runner_id=self._parts.runner_id,
            report_jws=report_jws,
            message_digest=request.message.digest,
            message_length=request.message.length,
        )
        limits = self._parts.limits
        answer = await ask(
            lambda: self._parts.manager.admit_turn(wish),
            what="the admission",
            first_s=limits.retry_first_s,
            max_s=limits.retry_max_s,
            for_s=limits.admit_wait_s,
            again=is_passing,
        )
        found = answer.generations
        if (found.container, found.activation) != (grant.container_generation, grant.activation_generation):
            raise ReasonedError(
                "GENERATION_STALE",
                f"Expected an admission for container generation {grant.container_generation} and activation generation "
                f"{grant.activation_generation}, found {found.container} and {found.activation}. Nothing was sent.",
                {"expected": grant.activation_generation, "observed": found.activation},
            )
        return answer

    async def renew(self, grant: Grant) -> float:
        """The lease in seconds from now."""
        answer = await self._parts.manager.renew_activation(
            sandbox_pb.RenewActivationRequest(
                activation_id=grant.activation_id,
                runner_id=self._parts.runner_id,
                activation_generation=grant.activation_generation,
            )
        )
        return max(answer.lease_ms / 1000, 0.1)

    async def settle(
        self, activation_id: str, judgement: Judgement, *, native_session_id: str, failed: bool, for_s: float | None
    ) -> sandbox_pb.Settlement:
        """Asks for the settlement; `for_s` None: until the manager answers."""
        wish = sandbox_pb.SettleTurnRequest(
            request_id=settle_request_id(self._key, activation_id),
            conversation=turn_conversation(self._key),
            turn_id=self._key.turn_id,
            activation_id=activation_id,
            runner_id=self._parts.runner_id,
            claim=sandbox_pb.RunnerClaim(
                verdict=verdict_to_wire(judgement.verdict),
                native_session_id=native_session_id,
                failed=failed,
                findings=own_findings(judgement),
            ),
        )
        limits = self._parts.limits
        answer = await ask(
            lambda: self._parts.manager.settle_turn(wish),
            what="the settlement",
            first_s=limits.retry_first_s,
            max_s=limits.retry_max_s,
            for_s=for_s,
        )
        return answer.settlement

    async def abandon(self, outcome: Outcome, cause: Cause | None, *, for_s: float | None) -> sandbox_pb.ManagedTurn:
        """Gives the turn up; the answer says what really became of it. NATIVE_END_SEEN is raised, not answered."""
        wish = sandbox_pb.AbandonTurnRequest(
            conversation=turn_conversation(self._key),
            turn_id=self._key.turn_id,
            runner_id=self._parts.runner_id,
            outcome=outcome_to_wire(outcome),
            reason=cause.reason if cause is not None else "",
        )
        limits = self._parts.limits
        answer = await ask(
            lambda: self._parts.manager.abandon_turn(wish),
            what="giving up the turn",
            first_s=limits.retry_first_s,
            max_s=limits.retry_max_s,
            for_s=for_s,
            again=is_passing,
        )
        return answer.turn

    async def lookup(self, *, for_s: float | None) -> sandbox_pb.ManagedTurn:
        limits = self._parts.limits
        answer = await ask(
            lambda: self._parts.manager.lookup_turn(
                sandbox_pb.LookupTurnRequest(
                    conversation=conversation_to_wire(self._key.conversation), turn_id=self._key.turn_id
                )
            ),
            what="looking up the turn",
            first_s=limits.retry_first_s,
            max_s=limits.retry_max_s,
            for_s=for_s,
        )
        return answer.turn

    async def resolve_former(self, former: sandbox_pb.ManagedTurn) -> None:
        """A former turn of the conversation stands in the way: give it up, or settle it from the journal.

        It may be another runner's, or one of this runner's that it has lost. Raises what kept it from being resolved.
        """
        key = TurnKey(self._key.tenant, self._key.conversation_id, former.turn_id)
        talk = Negotiation(self._parts, key)
        wait_s = self._parts.limits.former_wait_s
        try:
            was_admitted = former.state == "ADMITTED"
            outcome = Outcome.INTERRUPTED if was_admitted else Outcome.NOT_SENT
            answer = await talk.abandon(outcome, None, for_s=wait_s)
            _log.info("a former turn was given up", turn=str(key), outcome=outcome_from_wire(answer.outcome))
        except StandfastError as error:
            if error.reason != "NATIVE_END_SEEN":
                raise
            await talk.settle_from_journal(former, for_s=wait_s)

    async def settle_from_journal(self, turn: sandbox_pb.ManagedTurn, *, for_s: float) -> None:
        """Settles a turn of which this runner saw nothing, on its own reading of the journalled bytes."""
        agent = find_agent(turn.agent)
        locator = locator_from_wire(turn.locator)
        if agent is None or locator is None:
            raise ReasonedError(
                "LOCATOR_REQUIRED",
                f"Turn {turn.turn_id} has native end evidence, but the manager names no agent and locator of it that "
                "this runner knows, so it cannot be settled here.",
                {"turn_id": turn.turn_id, "agent": turn.agent},
            )
        activation = activation_of(turn, locator)
        read = await replay(self._parts, agent, activation, publish=lambda _: None, for_s=for_s)
        own = read.judge.verdict()
        settlement = await self.settle(
            turn.activation_id,
            own,
            native_session_id=own.observed or "",
            failed=has_failed(read),
            for_s=for_s,
        )
        result = settle(
            own=own,
            native_end=read.native_end,
            stopped=None,
            stop_cause=None,
            locator=locator,
            answer=answer_from_wire(settlement),
        )
        _log.info("a former turn was settled", turn=str(self._key), outcome=result.outcome.value, saved=result.save)
        if result.save:
            await self._parts.store.save_for_former_turn(self._key, locator)


def activation_of(turn: sandbox_pb.ManagedTurn, locator: NativeLocator) -> Activation:
    return Activation(
        activation_id=turn.activation_id,
        host_address=turn.host_address,
        message_id=turn.message_id,
        locator=locator,
    )


def has_failed(read: Replayed) -> bool:
    return read.native_end is None or read.native_end.failed
