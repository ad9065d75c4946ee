"""Conducts one round: performs what the attempt machine asks for, one request at a time, and gives one outcome.

The machine decides; this file sends, waits, persists and listens for the cancellation. A result that arrives after a
cancel is discarded, complete or not, so nothing of it can run.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from direct_agent.conductors.attempt import AttemptResult, ReadLimits, run_attempt
from direct_agent.conductors.attempt_events import emit
from direct_agent.conductors.pause import pause
from direct_agent.conductors.race import against_cancel
from direct_agent.conductors.repairs import Prepared, Repairs
from direct_agent.core.acceptance import Acceptance, Issue, accept
from direct_agent.core.endpoint import Endpoint
from direct_agent.core.request_settings import RequestSettings, requested_output
from direct_agent.ports import Budget, Cancellation, Clock, Compactor, Events, NotPersistedError, RepairLog, Transport
from direct_agent.providers.stream_reader import Delta
from direct_agent.recovery import attempt_machine as machine
from direct_agent.recovery.attempt_machine import AttemptMachine, RepairKind
from direct_agent.recovery.fault import Fault, FaultClass, Reason
from direct_agent.recovery.memory import RepairMemory
from direct_agent.recovery.overlay import RepairRecord
from direct_agent.recovery.policy import JITTER_S_MAX, Policy, RoundRole
from direct_agent.recovery.repaired_view import Findings, no_findings
from direct_agent.transcript import AssistantMessage, Candidate, Transcript, Usage


class RoundEnd(StrEnum):
    """STOPPED: a task budget is spent; `RoundOutcome.limit` names it (`deadline`: one that the caller set)."""

    COMMITTED = "committed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class RoundOutcome:
    """How a round ended. `message` only when COMMITTED: it may enter the transcript and its calls may run.

    `usage`: of all attempts. `last_usage`: of the last alone, for a display of the context's size. `fault`: why it
    FAILED. `request_ids`: as the provider named the requests, in order, where it did.
    """

    end: RoundEnd
    usage: Usage
    last_usage: Usage
    attempts: int
    waited_s: float
    message: AssistantMessage | None = None
    candidate: Candidate | None = None
    fault: Fault | None = None
    limit: str | None = None
    request_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The ports of a conversation's rounds."""

    transport: Transport
    clock: Clock
    repair_log: RepairLog
    events: Events
    compactor: Compactor | None = None
    jitter_s: Callable[[], float] = lambda: random.uniform(0.0, JITTER_S_MAX)
    new_id: Callable[[], str] = lambda: uuid.uuid4().hex


class Rounds:
    """The rounds of one conversation with one endpoint. One round at a time."""

    def __init__(
        self,
        endpoint: Endpoint,
        memory: RepairMemory,
        around: Surroundings,
        policy: Policy | None = None,
        limits: ReadLimits | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.memory = memory
        self.around = around
        self.policy = policy or Policy()
        self.limits = limits or ReadLimits()

    async def run(
        self,
        transcript: Transcript,
        settings: RequestSettings,
        cancel: Cancellation,
        budget: Budget,
        role: RoundRole | None = None,
        findings: Findings = no_findings,
    ) -> RoundOutcome:
        """One model answer for the history `transcript`, which must end with something to answer."""
        return await _Round(self, transcript, settings, cancel, budget, role or RoundRole(), findings).run()


class _Round:
    def __init__(
        self,
        rounds: Rounds,
        transcript: Transcript,
        settings: RequestSettings,
        cancel: Cancellation,
        budget: Budget,
        role: RoundRole,
        findings: Findings,
    ) -> None:
        self._rounds = rounds
        self._around = rounds.around
        self._endpoint = rounds.endpoint
        self._memory = rounds.memory
        self._settings = settings
        self._cancel = cancel
        self._budget = budget
        self._machine = AttemptMachine(rounds.policy, role)
        self._repairs = Repairs(rounds.endpoint, rounds.memory, transcript, findings, rounds.around.new_id)
        self._current: Prepared | None = None
        self._plan: Prepared | None = None
        self._sent_record: RepairRecord | None = None
        self._usage = Usage()
        self._last = Usage()
        self._result: AttemptResult | None = None
        self._acceptance: Acceptance | None = None
        self._fault: Fault | None = None
        self._limit: str | None = None
        self._request_ids: list[str] = []

    async def run(self) -> RoundOutcome:
        if self._cancel.is_set():
            self._machine.step(machine.Cancel())
            return self._outcome(RoundEnd.CANCELLED)
        try:
            first = self._repairs.first(self._settings)
        except (ValueError, TypeError, KeyError) as error:
            message = f"The request cannot be built from this history: {type(error).__name__}."
            self._fault = Fault(FaultClass.UNKNOWN, message, was_sent=False)
            return self._outcome(RoundEnd.FAILED)
        if first.record is not None:
            if (unsaved := await self._persisted(first.record)) is not None:
                self._fault = unsaved
                return self._outcome(RoundEnd.FAILED)
            self._memory.saved(first.record)
        self._current, self._sent_record = first, first.record
        effects = self._machine.step(machine.Start())
        while True:
            event: machine.Event | None = None
            for effect in effects:
                match effect:
                    case machine.Send(attempt):
                        event = await self._send(attempt)
                    case machine.Discard(attempt, reason):
                        self._emit("attempt_discard", attempt=attempt, reason=reason)
                    case machine.Plan(kind):
                        event = await self._planned(kind)
                    case machine.Check():
                        event = self._checked()
                    case machine.Persist():
                        event = await self._persist()
                    case machine.Pause():
                        event = await pause(
                            effect, self._around.clock, self._cancel, self._budget, self._usage, self._emit
                        )
                    case machine.Commit(attempt):
                        return await self._commit(attempt)
                    case machine.Fail(fault):
                        self._fault = fault
                        return self._outcome(RoundEnd.FAILED)
                    case machine.EndCancelled():
                        return self._outcome(RoundEnd.CANCELLED)
                    case machine.EndStopped(limit):
                        self._limit = limit
                        return self._outcome(RoundEnd.STOPPED)
            if event is None:
                raise machine.IllegalTransitionError(f"nothing to do in {self._machine.state}")
            effects = self._machine.step(event)

    async def _send(self, attempt: int) -> machine.Event:
        current = self._current
        if current is None:
            raise machine.IllegalTransitionError("no request is prepared")
        if self._cancel.is_set():
            return machine.Cancel()
        self._emit("attempt_begin", attempt=attempt)
        work = run_attempt(
            self._endpoint,
            current.request,
            requested_output(self._endpoint, current.settings),
            self._around.transport,
            self._around.clock,
            self._rounds.limits,
            self._show,
        )
        self._result = result = await against_cancel(work, self._cancel)
        if result is None:
            # The request was made and its cost will never be told.
            self._add(Usage(request_count=1, is_unknown=True))
            return machine.Cancel()
        self._add(result.usage)
        if result.request_id is not None:
            self._request_ids.append(result.request_id)
        if result.candidate is None:
            if result.fault is None:
                raise machine.IllegalTransitionError("an attempt without an end")
            return machine.Broke(result.fault, result.showed_output, self._around.jitter_s())
        candidate = result.candidate
        self._acceptance = accept(self._endpoint, candidate.message, is_whole=candidate.is_whole)
        return machine.Answered(
            self._acceptance, _unacceptable(self._endpoint, self._acceptance), self._memory.is_regeneration_used
        )

    async def _planned(self, kind: RepairKind) -> machine.Event:
        current = self._current
        if current is None:
            raise machine.IllegalTransitionError("no request is prepared")
        fault = self._result.fault if self._result is not None and self._result.fault is not None else _NO_FAULT
        plan = await against_cancel(self._tried(kind, fault, current), self._cancel)
        if plan is None:
            return machine.Cancel()
        self._plan = plan[0]
        return machine.Planned() if self._plan is not None else machine.Unplanned()

    async def _tried(self, kind: RepairKind, fault: Fault, current: Prepared) -> tuple[Prepared | None]:
        # In a tuple, so that "no plan" is not taken for "cancelled".
        return (await self._repairs.planned(kind, fault, current, self._around.compactor),)

    def _checked(self) -> machine.Event:
        if self._cancel.is_set():
            return machine.Cancel()
        limit = self._budget.spent(self._usage)
        return machine.Cleared() if limit is None else machine.BudgetSpent(limit)

    async def _persist(self) -> machine.Event:
        plan = self._plan
        if plan is None or plan.record is None:
            raise machine.IllegalTransitionError("no repair is planned")
        if (unsaved := await self._persisted(plan.record)) is not None:
            return machine.Unpersisted(unsaved)
        self._memory.saved(plan.record)
        self._current, self._plan, self._sent_record = plan, None, plan.record
        if self._cancel.is_set():
            return machine.Cancel()
        return machine.Persisted()

    async def _persisted(self, record: RepairRecord) -> Fault | None:
        """None when the record is durable."""
        try:
            await self._around.repair_log.persist(record.to_bytes())
        except (OSError, NotPersistedError) as error:
            message = f"A repair record could not be saved ({type(error).__name__}); nothing was sent or run after it."
            return Fault(FaultClass.PERSIST, message, was_sent=False)
        return None

    async def _commit(self, attempt: int) -> RoundOutcome:
        result, record = self._result, self._sent_record
        if result is None or result.candidate is None or self._acceptance is None:
            raise machine.IllegalTransitionError("nothing to commit")
        if record is not None and self._current is not None and self._current.overlay is not None:
            active = self._memory.activated(record)
            if (unsaved := await self._persisted(active)) is not None:
                self._fault = unsaved
                self._emit("attempt_discard", attempt=attempt, reason=None)
                return self._outcome(RoundEnd.FAILED)
            self._memory.activate(active)
        if record is not None and record.kind is RepairKind.OUTPUT_LIMIT and self._current is not None:
            self._memory.output_max = self._current.settings.max_tokens
        if self._cancel.is_set():
            self._emit("attempt_discard", attempt=attempt, reason=None)
            return self._outcome(RoundEnd.CANCELLED)
        message = result.candidate.message
        was_regenerated = record is not None and record.kind is RepairKind.REGENERATE
        self._memory.committed(self._acceptance, message, was_regenerated=was_regenerated)
        self._emit("attempt_commit", attempt=attempt)
        return self._outcome(RoundEnd.COMMITTED, result.candidate)

    def _add(self, usage: Usage) -> None:
        self._usage, self._last = self._usage + usage, usage

    def _show(self, delta: Delta) -> None:
        self._emit("delta", kind=delta.kind, text=delta.text)

    def _emit(self, name: str, **fields: Any) -> None:
        emit(self._around.events, name, **fields)

    def _outcome(self, end: RoundEnd, candidate: Candidate | None = None) -> RoundOutcome:
        return RoundOutcome(
            end,
            self._usage,
            self._last,
            self._machine.attempt,
            self._machine.waited_s,
            candidate.message if candidate is not None else None,
            candidate,
            self._fault,
            self._limit,
            tuple(self._request_ids),
        )


_NO_FAULT = Fault(FaultClass.REASONING, "")


def _unacceptable(endpoint: Endpoint, acceptance: Acceptance) -> Fault:
    """Shown when a candidate's reasoning is not acceptable and it is not asked for again."""
    what = {
        Issue.MISSING: "did not supply required reasoning",
        Issue.INCOMPLETE: "supplied reasoning that is incomplete",
        Issue.TRUNCATED: "supplied more reasoning than can be kept",
        Issue.UNFINISHED: "stopped its answer half way",
    }.get(acceptance.issue or Issue.MISSING, "did not supply required reasoning")
    return Fault(
        FaultClass.REASONING,
        f"{endpoint.name} {what}; no tool was run, and existing work is kept.",
        Reason.REASONING_REPLAY,
        200,
        had_body=True,
    )
