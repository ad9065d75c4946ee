"""Performs the pause before a further attempt: told at its start and while it lasts, ended early by cancel or budget."""

from __future__ import annotations

from collections.abc import Callable

from direct_agent.conductors.race import against_cancel
from direct_agent.ports import Budget, Cancellation, Clock
from direct_agent.recovery import attempt_machine as machine
from direct_agent.transcript import Usage

COUNTDOWN_S = 10.0
"""In a long pause an event comes so often that a silence limit elsewhere counts us as alive."""

RETRIES_MAX = 3
"""What `retrying` shows as its limit: attempts after the first."""


async def pause(
    effect: machine.Pause,
    clock: Clock,
    cancel: Cancellation,
    budget: Budget,
    usage: Usage,
    emit: Callable[..., None],
) -> machine.Event:
    """Elapsed, Cancel or BudgetSpent."""
    fault = effect.fault
    emit(
        "retrying",
        attempt=effect.attempt,
        limit=RETRIES_MAX,
        reason=fault.reason,
        phase=fault.reason,
        status=str(fault.status) if fault.status is not None else None,
        delay_s=effect.delay_s,
        next_at=clock.wall() + effect.delay_s,
        waited_s=effect.waited_s,
        waiting=effect.is_waiting,
    )
    left_s = effect.delay_s
    while left_s > 0:
        limit_s = budget.remaining_s()
        if limit_s is not None and limit_s <= 0:
            return machine.BudgetSpent(budget.spent(usage) or "time")
        step_s = min(left_s, COUNTDOWN_S)
        if limit_s is not None:
            step_s = min(step_s, limit_s)
        await against_cancel(clock.sleep(step_s), cancel)
        if cancel.is_set():
            return machine.Cancel()
        left_s -= step_s
        if left_s > 0:
            emit("countdown", remaining_s=left_s, waiting=effect.is_waiting)
    return machine.Elapsed()
