"""One auxiliary call: a side request that is no conversation round (searching, summarising).

Finite and buffered: four attempts at 2/4/8 s, never waiting, no repair, and no text leaves before an attempt is
complete. It keeps a request count of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from direct_agent.conductors.attempt import ReadLimits, run_attempt
from direct_agent.conductors.attempt_events import emit
from direct_agent.conductors.pause import pause
from direct_agent.conductors.race import against_cancel
from direct_agent.conductors.round import RoundEnd, Surroundings
from direct_agent.core.acceptance import Acceptance, Decision
from direct_agent.core.endpoint import Endpoint
from direct_agent.core.request_settings import RequestSettings, requested_output
from direct_agent.ports import Budget, Cancellation, FrozenRequest
from direct_agent.providers.request import frozen_request
from direct_agent.providers.stream_reader import Delta, DeltaKind, StreamFaultError
from direct_agent.recovery import attempt_machine as machine
from direct_agent.recovery.attempt_machine import AttemptMachine
from direct_agent.recovery.fault import Fault, FaultClass
from direct_agent.recovery.policy import Policy, RoundRole
from direct_agent.transcript import AssistantMessage, Transcript, Usage

TEXT_BYTES_MAX = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class AuxiliaryOutcome:
    """`text` only when COMMITTED. `usage` counts this call's own requests, also when it failed."""

    end: RoundEnd
    usage: Usage
    text: str | None = None
    message: AssistantMessage | None = None
    fault: Fault | None = None
    limit: str | None = None


async def ask(
    endpoint: Endpoint,
    view: Transcript,
    settings: RequestSettings,
    around: Surroundings,
    cancel: Cancellation,
    budget: Budget,
    policy: Policy | None = None,
    limits: ReadLimits | None = None,
) -> AuxiliaryOutcome:
    """Asks once, with the finite retries of an auxiliary call."""
    attempts = AttemptMachine(policy or Policy(), RoundRole(is_grace=True))
    request = frozen_request(endpoint, view, settings)
    usage: Usage = Usage()
    message: AssistantMessage | None = None
    effects = attempts.step(machine.Start())
    while True:
        following: machine.Event | None = None
        for effect in effects:
            match effect:
                case machine.Send():
                    following, cost, message = await _attempt(endpoint, request, settings, around, cancel, limits)
                    usage += cost
                case machine.Plan():
                    following = machine.Unplanned()
                case machine.Check():
                    limit = budget.spent(usage)
                    following = machine.Cleared() if limit is None else machine.BudgetSpent(limit)
                    following = machine.Cancel() if cancel.is_set() else following
                case machine.Pause():
                    following = await pause(
                        effect,
                        around.clock,
                        cancel,
                        budget,
                        usage,
                        lambda name, **fields: emit(around.events, name, **fields),
                    )
                case machine.Commit():
                    return AuxiliaryOutcome(RoundEnd.COMMITTED, usage, message.text if message else "", message)
                case machine.Fail(fault):
                    return AuxiliaryOutcome(RoundEnd.FAILED, usage, fault=fault)
                case machine.EndCancelled():
                    return AuxiliaryOutcome(RoundEnd.CANCELLED, usage)
                case machine.EndStopped(limit_name):
                    return AuxiliaryOutcome(RoundEnd.STOPPED, usage, limit=limit_name)
        if following is None:
            raise machine.IllegalTransitionError(f"nothing to do in {attempts.state}")
        effects = attempts.step(following)


async def _attempt(
    endpoint: Endpoint,
    request: FrozenRequest,
    settings: RequestSettings,
    around: Surroundings,
    cancel: Cancellation,
    limits: ReadLimits | None,
) -> tuple[machine.Event, Usage, AssistantMessage | None]:
    size = 0

    def watch(delta: Delta) -> None:
        nonlocal size
        size += len(delta.text.encode("utf-8", "replace")) if delta.kind is DeltaKind.TEXT else 0
        if size > TEXT_BYTES_MAX:
            message = f"The answer to an auxiliary call is larger than {TEXT_BYTES_MAX} bytes."
            raise StreamFaultError(Fault(FaultClass.UNKNOWN, message, status=200, had_body=True))

    asked = requested_output(endpoint, settings)
    work = run_attempt(endpoint, request, asked, around.transport, around.clock, limits or ReadLimits(), watch)
    result = await against_cancel(work, cancel)
    if result is None:
        return machine.Cancel(), Usage(request_count=1, is_unknown=True), None
    if result.candidate is None:
        fault = result.fault or Fault(FaultClass.UNKNOWN, "an attempt without an end")
        return machine.Broke(fault, result.showed_output), result.usage, None
    accepted = machine.Answered(Acceptance(Decision.DIRECT), Fault(FaultClass.REASONING, ""))
    return accepted, result.usage, result.candidate.message
