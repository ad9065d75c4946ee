"""The attempt machine: every state with every event, and what no order of events may break."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from direct_agent.core.acceptance import Acceptance, Decision, Issue
from direct_agent.recovery import attempt_machine as m
from direct_agent.recovery.attempt_machine import FINAL, AttemptMachine, AttemptState
from direct_agent.recovery.fault import Fault, FaultClass, Reason
from direct_agent.recovery.limits import Limit, LimitKind
from direct_agent.recovery.policy import Policy, RoundRole

TRANSIENT = Fault(FaultClass.HEADERS, "busy", Reason.HEADERS, 503, is_retryable=True, may_wait=True)
CUT = Fault(FaultClass.STREAM, "cut", Reason.PREMATURE_EOF, 200, is_retryable=True)
FINAL_FAULT = Fault(FaultClass.AUTH, "no", Reason.HEADERS, 401)
REPLAY = Fault(FaultClass.PROTOCOL, "replay", Reason.REASONING_REPLAY_400, 400)
OUTPUT = Fault(FaultClass.LIMIT, "ceiling", Reason.OUTPUT_LIMIT, 400, limit=Limit(LimitKind.OUTPUT, 10))
CONTEXT = Fault(FaultClass.LIMIT, "window", Reason.CONTEXT_LIMIT, 400, limit=Limit(LimitKind.CONTEXT, 10))
REASONING = Fault(FaultClass.REASONING, "missing", Reason.REASONING_REPLAY, 200)
GOOD = m.Answered(Acceptance(Decision.DIRECT), REASONING)
MISSING = m.Answered(Acceptance(Decision.RECOVER, Issue.MISSING), REASONING)

EVENTS: list[m.Event] = [
    m.Start(), GOOD, MISSING, m.Broke(TRANSIENT, False), m.Broke(CUT, True), m.Broke(FINAL_FAULT, False),
    m.Broke(REPLAY, False), m.Broke(OUTPUT, False), m.Broke(CONTEXT, False), m.Planned(), m.Unplanned(), m.Elapsed(),
    m.Cleared(), m.BudgetSpent("time"), m.Persisted(), m.Unpersisted(FINAL_FAULT), m.Cancel(),
    m.Answered(Acceptance(Decision.REJECT, Issue.TRUNCATED), REASONING),
    m.Answered(Acceptance(Decision.RECOVER, Issue.MISSING), REASONING, is_incident_used=True),
]  # fmt: skip
LEGAL = {
    AttemptState.READY: (m.Start, m.Cancel),
    AttemptState.SENDING: (m.Answered, m.Broke, m.Cancel),
    AttemptState.PLANNING: (m.Planned, m.Unplanned, m.Cancel),
    AttemptState.PAUSING: (m.Elapsed, m.BudgetSpent, m.Cancel),
    AttemptState.CHECKING: (m.Cleared, m.BudgetSpent, m.Cancel),
    AttemptState.PERSISTING: (m.Persisted, m.Unpersisted, m.Cancel),
}
PATHS: dict[AttemptState, list[m.Event]] = {
    AttemptState.READY: [],
    AttemptState.SENDING: [m.Start()],
    AttemptState.PLANNING: [m.Start(), m.Broke(REPLAY, False)],
    AttemptState.PAUSING: [m.Start(), m.Broke(TRANSIENT, False)],
    AttemptState.CHECKING: [m.Start(), m.Broke(TRANSIENT, False), m.Elapsed()],
    AttemptState.PERSISTING: [m.Start(), m.Broke(REPLAY, False), m.Planned(), m.Cleared()],
    AttemptState.COMMITTED: [m.Start(), GOOD],
    AttemptState.FAILED: [m.Start(), m.Broke(FINAL_FAULT, False)],
    AttemptState.CANCELLED: [m.Cancel()],
    AttemptState.STOPPED: [m.Start(), m.Broke(TRANSIENT, False), m.BudgetSpent("time")],
}


def at(state: AttemptState, policy: Policy | None = None, role: RoundRole | None = None) -> AttemptMachine:
    machine = AttemptMachine(policy or Policy(), role or RoundRole())
    for event in PATHS[state]:
        machine.step(event)
    assert machine.state is state
    return machine


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("state", AttemptState)
def test_an_event_is_legal_or_changes_nothing(state: AttemptState, event: m.Event) -> None:
    machine = at(state)
    before = dict(vars(machine))
    if isinstance(event, LEGAL.get(state, ())):
        machine.step(event)
    else:
        with pytest.raises(m.IllegalTransitionError):
            machine.step(event)
        assert vars(machine) == before


def drive(machine: AttemptMachine, results: list[m.Event]) -> tuple[int, list[float], list[m.Effect]]:
    """Sends, pauses and effects when attempts end as given and everything else goes well."""
    waiting = list(results)
    effects, seen, sends, pauses = machine.step(m.Start()), list[m.Effect](), 0, list[float]()
    while effects:
        seen.extend(effects)
        last = effects[-1]
        match last:
            case m.Send():
                sends += 1
                if not waiting:
                    return sends, pauses, seen
                effects = machine.step(waiting.pop(0))
            case m.Plan():
                effects = machine.step(m.Planned())
            case m.Check():
                effects = machine.step(m.Cleared())
            case m.Persist():
                effects = machine.step(m.Persisted())
            case m.Pause(delay_s=delay_s):
                pauses.append(delay_s)
                effects = machine.step(m.Elapsed())
            case _:
                return sends, pauses, seen
    return sends, pauses, seen


def test_the_backoff_index_is_the_attempt_number() -> None:
    sends, pauses, _ = drive(at(AttemptState.READY), [m.Broke(REPLAY, False), m.Broke(TRANSIENT, False), GOOD])
    assert (sends, pauses) == (3, [4.0])


def test_a_larger_retry_after_wins_and_is_not_capped() -> None:
    slow = Fault(FaultClass.HEADERS, "busy", Reason.HEADERS, 429, True, True, 3600.0)
    assert drive(at(AttemptState.READY), [m.Broke(slow, False), GOOD])[1] == [3600.0]


def test_each_limit_repair_happens_once_and_all_share_four_attempts() -> None:
    results: list[m.Event] = [m.Broke(OUTPUT, False), m.Broke(CONTEXT, False), m.Broke(REPLAY, False), MISSING]
    sends, pauses, seen = drive(at(AttemptState.READY), results)
    assert (sends, pauses) == (4, [])
    assert isinstance(seen[-1], m.Fail)
    sends, _, seen = drive(at(AttemptState.READY), [m.Broke(OUTPUT, False), m.Broke(OUTPUT, False)])
    assert (sends, type(seen[-1])) == (2, m.Fail)


def test_a_regeneration_and_a_history_repair_share_one_allowance() -> None:
    assert drive(at(AttemptState.READY), [m.Broke(REPLAY, False), MISSING])[0] == 2
    assert drive(at(AttemptState.READY), [MISSING, m.Broke(REPLAY, False)])[0] == 2


def test_a_repair_with_nothing_to_repair_falls_back_to_the_fault() -> None:
    machine = at(AttemptState.PLANNING)
    assert machine.step(m.Unplanned()) == [m.Fail(REPLAY)]


def test_output_shown_once_forbids_waiting_for_the_whole_round() -> None:
    machine = AttemptMachine(Policy(), RoundRole())
    sends, _, seen = drive(machine, [m.Broke(CUT, True), *[m.Broke(TRANSIENT, False)] * 5])
    assert sends == 4
    assert isinstance(seen[-1], m.Fail)


def test_a_wait_budget_counts_the_quick_delays_and_keeps_what_kept_failing() -> None:
    machine = AttemptMachine(Policy(wait_budget_s=180), RoundRole())
    sends, pauses, seen = drive(machine, [m.Broke(TRANSIENT, False, 3.0)] * 9)
    assert (sends, pauses) == (6, [2.0, 4.0, 8.0, 63.0, 63.0])
    end = seen[-1]
    assert isinstance(end, m.Fail)
    assert (end.fault.fault_class, end.fault.status, end.fault.is_retryable) == (FaultClass.UNREACHABLE, 503, False)


def test_transport_retries_off_ends_at_the_first_transport_failure() -> None:
    for fault in (TRANSIENT, CUT):
        machine = AttemptMachine(Policy(transport_retries=False), RoundRole())
        assert drive(machine, [m.Broke(fault, False), GOOD])[0] == 1


@given(
    st.lists(st.sampled_from([each for each in EVENTS if isinstance(each, m.Broke | m.Answered)]), max_size=12),
    st.sampled_from([RoundRole(), RoundRole(is_planner=True), RoundRole(subagent_depth=2), RoundRole(is_grace=True)]),
    st.sampled_from([None, 0.0, 100.0]),
)
def test_no_order_of_results_breaks_the_rules(results: list[m.Event], role: RoundRole, budget_s: float | None) -> None:
    machine = AttemptMachine(Policy(wait_budget_s=budget_s), role)
    sends, _, seen = drive(machine, results)
    pauses = [effect for effect in seen if isinstance(effect, m.Pause)]
    # Without waiting there are never more than four requests, whatever went wrong.
    waits = [pause for pause in pauses if pause.is_waiting]
    assert sends <= 4 + len(waits)
    assert sends == sum(isinstance(effect, m.Send) for effect in seen) == machine.attempt
    if waits:
        assert role.may_wait
        assert budget_s != 0
        assert not machine.is_partial or machine.state in FINAL
        assert all(pause.delay_s >= 60 for pause in waits)
    kinds = [effect.kind for effect in seen if isinstance(effect, m.Plan)]
    assert len(kinds) == len(set(kinds))
    # Nothing is sent after a commit, and a repaired request only after its record is durable.
    commits = [at for at, effect in enumerate(seen) if isinstance(effect, m.Commit)]
    assert not commits or commits == [len(seen) - 1]
    for at_plan, effect in enumerate(seen):
        if isinstance(effect, m.Plan):
            following = seen[at_plan + 1 :]
            names = [type(each) for each in following]
            if m.Send in names:
                assert m.Persist in names[: names.index(m.Send)]
