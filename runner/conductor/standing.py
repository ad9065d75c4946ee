"""A turn as it stands: what GetTurn shows and what is kept of it. It only collects what others found out."""

from __future__ import annotations

from runner.adapters.wire import failure_to_wire, locator_to_wire, outcome_to_wire
from runner.conductor.negotiation import Grant
from runner.core.settlement import Settled
from runner.core.turn import TurnState
from runner.core.values import Cause, Outcome
from standfast.runner.v1 import runner_pb2
from standfast.sandbox.v1 import sandbox_manager_pb2 as sandbox_pb
from standfast.types.v1 import types_pb2
from standfast_chassis import span_names


class Standing:
    """`turn` is the message that is kept; `texts` are the root's assistant text blocks so far."""

    def __init__(self, turn: runner_pb2.Turn) -> None:
        self.turn = turn
        self.texts: list[str] = []
        self.is_settled_elsewhere = False

    def snapshot(self, state: TurnState, last_sequence: int) -> runner_pb2.Turn:
        """A copy."""
        turn = runner_pb2.Turn()
        turn.CopyFrom(self.turn)
        if not turn.outcome:
            turn.state = state.value
            turn.output_text = "".join(self.texts)
        turn.last_sequence = last_sequence
        return turn

    def take_grant(self, grant: Grant) -> None:
        turn = self.turn
        turn.activation_id = grant.activation_id
        turn.host_id = grant.host_id
        turn.container_id = grant.container_id
        turn.locator.CopyFrom(locator_to_wire(grant.locator) or types_pb2.NativeLocator())
        turn.generations.container = grant.container_generation
        turn.generations.activation = grant.activation_generation

    def take_admission(self, answer: sandbox_pb.AdmitTurnResponse) -> None:
        self.turn.context_state = answer.context_state
        self.turn.context_reason = answer.context_reason
        self.turn.generations.CopyFrom(answer.generations)

    def take_lost(self, reason: str) -> None:
        self.turn.context_state = types_pb2.CONTEXT_STATE_LOST
        self.turn.context_reason = reason

    def take_managed(self, managed: sandbox_pb.ManagedTurn) -> None:
        """The turn as the manager knows it; what it leaves open stays as it is."""
        turn = self.turn
        turn.activation_id = managed.activation_id or turn.activation_id
        if managed.HasField("locator"):
            turn.locator.CopyFrom(managed.locator)
        if managed.HasField("generations"):
            turn.generations.CopyFrom(managed.generations)
        if managed.context_state:
            turn.context_state = managed.context_state
            turn.context_reason = managed.context_reason
        if managed.HasField("settlement"):
            self.take_settlement(managed.settlement)
            turn.runner_verdict = managed.settlement.runner_verdict
        self.is_settled_elsewhere = managed.state == "SETTLED"

    def take_settlement(self, settlement: sandbox_pb.Settlement) -> None:
        turn = self.turn
        turn.manager_verdict = settlement.manager_verdict
        turn.store_verdict = settlement.store_verdict
        turn.process_disposition = settlement.process_disposition or turn.process_disposition
        turn.process_reason = settlement.process_reason or turn.process_reason
        turn.container_id = settlement.container_id or turn.container_id
        turn.end_evidence_digest = settlement.end_evidence_digest
        turn.end_reason = settlement.end_reason or turn.end_reason
        if settlement.HasField("generations"):
            turn.generations.CopyFrom(settlement.generations)
        del turn.findings[:]
        turn.findings.extend(settlement.findings)

    def take_end(self, decision: Settled, state: TurnState) -> Cause | None:
        """How the turn ended. Gives the cause of its refusal, for a refused turn."""
        turn = self.turn
        turn.state = state.value
        turn.outcome = outcome_to_wire(decision.outcome)
        turn.ClearField("failure")
        failure = failure_to_wire(decision.cause)
        if failure is not None:
            turn.failure.CopyFrom(failure)
        turn.output_text = "".join(self.texts)
        turn.output_unconfirmed = decision.unconfirmed and bool(self.texts)
        turn.locator_saved = decision.save
        turn.ended_at.GetCurrentTime()
        if decision.outcome is not Outcome.REFUSED:
            return None
        cause = decision.cause or Cause("INTERNAL", "The turn was refused, and no cause was recorded.")
        if cause.reason == "CONTEXT_LOST":
            self.take_lost(dict(cause.metadata).get("cause", ""))
        return cause

    def span_attributes(self) -> dict[str, str | None]:
        """What the turn's span says of its end. Unknown is left out."""
        turn = self.turn
        outcome = types_pb2.Outcome.Name(turn.outcome).removeprefix("OUTCOME_") if turn.outcome else None
        state = types_pb2.ContextState.Name(turn.context_state).removeprefix("CONTEXT_STATE_")
        return {
            span_names.STANDFAST_TURN_OUTCOME: outcome,
            span_names.STANDFAST_CONTEXT_STATE: state if turn.context_state else None,
            span_names.STANDFAST_CONTEXT_CAUSE: turn.context_reason or None,
            span_names.STANDFAST_REASON: turn.failure.reason or None,
        }
