"""The attempts of one round. Event in, effects out; no time, no request and no repair is made here.

    READY --Start--> SENDING
    SENDING --Answered, acceptable-----------------------------> COMMITTED
    SENDING --Answered, reasoning unacceptable--> PLANNING (once, attempt < 4), else FAILED
    SENDING --Broke, targeted repair for it-----> PLANNING (each kind once, attempt < 4)
    SENDING --Broke, retryable, attempt < 4-----> PAUSING (2/4/8 s, or Retry-After)
    SENDING --Broke, may wait, all rules hold---> PAUSING (60 s and more, `is_waiting`)
    SENDING --Broke, anything else--------------> FAILED, with that fault
    PLANNING --Planned--> CHECKING                PLANNING --Unplanned--> as Broke without a repair
    PAUSING --Elapsed--> CHECKING
    CHECKING --Cleared--> PERSISTING (a repair was planned), else SENDING
    PERSISTING --Persisted--> SENDING             PERSISTING --Unpersisted--> FAILED, nothing is sent
    CHECKING, PAUSING --BudgetSpent--> STOPPED    any of these --Cancel--> CANCELLED

Every attempt counts, whatever its cause: a repair resets neither the counter nor the backoff. A late answer after a
cancel arrives here as Cancel, never as Answered.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from direct_agent.core.acceptance import Acceptance, Issue
from direct_agent.recovery.fault import Fault, FaultClass, Reason
from direct_agent.recovery.limits import LimitKind
from direct_agent.recovery.policy import Policy, RoundRole


class AttemptState(StrEnum):
    READY = "ready"
    SENDING = "sending"
    PLANNING = "planning"
    PAUSING = "pausing"
    CHECKING = "checking"
    PERSISTING = "persisting"
    COMMITTED = "committed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    STOPPED = "stopped"


FINAL = (AttemptState.COMMITTED, AttemptState.FAILED, AttemptState.CANCELLED, AttemptState.STOPPED)


class RepairKind(StrEnum):
    """REGENERATE and HISTORY share one allowance a round: both answer for missing reasoning."""

    REGENERATE = "regenerate"
    HISTORY = "history"
    OUTPUT_LIMIT = "output_limit"
    CONTEXT_LIMIT = "context_limit"


# --- events


@dataclass(frozen=True, slots=True)
class Start:
    pass


@dataclass(frozen=True, slots=True)
class Answered:
    """A complete candidate. `is_incident_used`: this incident of missing reasoning has had its regeneration."""

    acceptance: Acceptance
    fault: Fault
    is_incident_used: bool = False


@dataclass(frozen=True, slots=True)
class Broke:
    """`showed_output`: any text, reasoning, tool fragment, opaque or search item was seen. `jitter_s`: 0 to 6."""

    fault: Fault
    showed_output: bool
    jitter_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Planned:
    pass


@dataclass(frozen=True, slots=True)
class Unplanned:
    """There is nothing that this repair could change."""


@dataclass(frozen=True, slots=True)
class Elapsed:
    pass


@dataclass(frozen=True, slots=True)
class Cleared:
    """Not cancelled, and no budget is spent."""


@dataclass(frozen=True, slots=True)
class BudgetSpent:
    limit: str


@dataclass(frozen=True, slots=True)
class Persisted:
    pass


@dataclass(frozen=True, slots=True)
class Unpersisted:
    fault: Fault


@dataclass(frozen=True, slots=True)
class Cancel:
    pass


Event = (
    Start | Answered | Broke | Planned | Unplanned | Elapsed | Cleared | BudgetSpent | Persisted | Unpersisted | Cancel
)


# --- effects


@dataclass(frozen=True, slots=True)
class Send:
    """Send exactly one request: the frozen one, or the repaired one that was planned last."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Discard:
    """Throw away all that the attempt produced, also text already shown."""

    attempt: int
    reason: Reason | None


@dataclass(frozen=True, slots=True)
class Plan:
    kind: RepairKind


@dataclass(frozen=True, slots=True)
class Check:
    """Look at the cancellation and the budgets."""


@dataclass(frozen=True, slots=True)
class Persist:
    """Make the planned repair's record durable."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait `delay_s`. `waited_s`: scheduled before this one. `fault`: what caused it."""

    attempt: int
    delay_s: float
    waited_s: float
    is_waiting: bool
    fault: Fault


@dataclass(frozen=True, slots=True)
class Commit:
    attempt: int


@dataclass(frozen=True, slots=True)
class Fail:
    fault: Fault


@dataclass(frozen=True, slots=True)
class EndCancelled:
    pass


@dataclass(frozen=True, slots=True)
class EndStopped:
    limit: str


Effect = Send | Discard | Plan | Check | Persist | Pause | Commit | Fail | EndCancelled | EndStopped


class IllegalTransitionError(Exception):
    """An event that cannot happen in this state. Nothing was changed."""


class AttemptMachine:
    """One round. `attempt` is the number of the current or last request, from 1."""

    def __init__(self, policy: Policy, role: RoundRole) -> None:
        self._policy = policy
        self._role = role
        self.state = AttemptState.READY
        self.attempt = 0
        self.is_partial = False
        self.waited_s = 0.0
        self._used: set[RepairKind] = set()
        self._planning: RepairKind | None = None
        self._must_persist = False
        self._last: Broke | None = None

    def step(self, event: Event) -> list[Effect]:
        match self.state, event:
            case AttemptState.READY, Start():
                return self._send()
            case AttemptState.SENDING, Answered(acceptance, fault, is_incident_used):
                return self._answered(acceptance, fault, is_incident_used)
            case AttemptState.SENDING, Broke():
                return self._broke(event)
            case AttemptState.PLANNING, Planned():
                self._must_persist = True
                self.state = AttemptState.CHECKING
                return [Check()]
            case AttemptState.PLANNING, Unplanned():
                return self._again_or_not()
            case AttemptState.PAUSING, Elapsed():
                self.state = AttemptState.CHECKING
                return [Check()]
            case AttemptState.CHECKING, Cleared():
                if self._must_persist:
                    self.state = AttemptState.PERSISTING
                    return [Persist()]
                return self._send()
            case AttemptState.PERSISTING, Persisted():
                return self._send()
            case AttemptState.PERSISTING, Unpersisted(fault):
                return self._fail(fault)
            case ((AttemptState.CHECKING | AttemptState.PAUSING), BudgetSpent(limit)):
                self.state = AttemptState.STOPPED
                return [EndStopped(limit)]
            case state, Cancel() if state not in FINAL:
                self.state = AttemptState.CANCELLED
                return (
                    [Discard(self.attempt, None), EndCancelled()] if state is AttemptState.SENDING else [EndCancelled()]
                )
            case _:
                raise IllegalTransitionError(f"{type(event).__name__} in {self.state}")

    def _send(self) -> list[Effect]:
        self._must_persist = False
        self.attempt += 1
        self.state = AttemptState.SENDING
        return [Send(self.attempt)]

    def _answered(self, acceptance: Acceptance, fault: Fault, is_incident_used: bool) -> list[Effect]:
        if acceptance.commits:
            self.state = AttemptState.COMMITTED
            return [Commit(self.attempt)]
        self.is_partial = True
        self._last = Broke(fault, showed_output=True)
        discard = Discard(self.attempt, Reason.REASONING_REPLAY)
        is_askable = acceptance.issue in (Issue.MISSING, Issue.INCOMPLETE) and not is_incident_used
        if is_askable and self._may_plan(RepairKind.REGENERATE):
            return [discard, *self._plan(RepairKind.REGENERATE)]
        return [discard, *self._fail(fault)]

    def _broke(self, event: Broke) -> list[Effect]:
        self._last = event
        self.is_partial = self.is_partial or event.showed_output
        discard = Discard(self.attempt, event.fault.reason)
        kind = _repair_for(event.fault)
        if kind is not None and self._may_plan(kind):
            return [discard, *self._plan(kind)]
        return [discard, *self._again_or_not()]

    def _may_plan(self, kind: RepairKind) -> bool:
        return self.attempt < self._policy.attempts_max and kind not in self._used

    def _plan(self, kind: RepairKind) -> list[Effect]:
        shared = (RepairKind.REGENERATE, RepairKind.HISTORY)
        self._used.update(shared if kind in shared else (kind,))
        self.state = AttemptState.PLANNING
        return [Plan(kind)]

    def _again_or_not(self) -> list[Effect]:
        """A quick retry, waiting, or the end, for the last fault."""
        if self._last is None:
            raise IllegalTransitionError("no fault to decide on")
        fault, policy = self._last.fault, self._policy
        if fault.is_retryable and policy.transport_retries:
            if self.attempt < policy.attempts_max:
                return self._pause(policy.quick_delay_s(self.attempt, fault.retry_after_s), False, fault)
            if fault.may_wait and self._role.may_wait and not self.is_partial and policy.wait_budget_s != 0:
                delay_s = policy.waiting_delay_s(self._last.jitter_s, fault.retry_after_s)
                if policy.wait_budget_s is not None and self.waited_s + delay_s > policy.wait_budget_s:
                    return self._fail(_unreachable(fault, self.attempt, self.waited_s))
                return self._pause(delay_s, True, fault)
        return self._fail(fault)

    def _pause(self, delay_s: float, is_waiting: bool, fault: Fault) -> list[Effect]:
        waited_s, self.waited_s = self.waited_s, self.waited_s + delay_s
        self.state = AttemptState.PAUSING
        return [Pause(self.attempt, delay_s, waited_s, is_waiting, fault)]

    def _fail(self, fault: Fault) -> list[Effect]:
        self.state = AttemptState.FAILED
        return [Fail(fault)]


def _repair_for(fault: Fault) -> RepairKind | None:
    if fault.fault_class is FaultClass.PROTOCOL:
        return RepairKind.HISTORY
    if fault.fault_class is FaultClass.LIMIT and fault.limit is not None:
        return RepairKind.OUTPUT_LIMIT if fault.limit.kind is LimitKind.OUTPUT else RepairKind.CONTEXT_LIMIT
    return None


def _unreachable(fault: Fault, attempts: int, waited_s: float) -> Fault:
    """The wait budget is used up. Keeps reason (the phase) and status of what kept failing."""
    return replace(
        fault,
        fault_class=FaultClass.UNREACHABLE,
        message=f"The provider stayed unreachable: {attempts} requests, {waited_s:.0f} s waited. {fault.message}",
        is_retryable=False,
        may_wait=False,
    )
