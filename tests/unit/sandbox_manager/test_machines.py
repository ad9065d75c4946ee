"""Every machine, every state and every event: legal and to where, or refused with nothing changed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest

from sandbox_manager.core import errors as manager_errors
from sandbox_manager.core import group, host, member
from sandbox_manager.core.group import GroupState as G
from sandbox_manager.core.group import Seen
from sandbox_manager.core.host import HostState as H
from sandbox_manager.core.member import MemberState as M
from sandbox_manager.core.values import NativeEnd, ProcessDisposition
from sandbox_manager.host.core import activation, slot
from sandbox_manager.host.core import errors as host_errors
from sandbox_manager.host.core.activation import ActivationState as A
from sandbox_manager.host.core.disposition import LeaveBy
from sandbox_manager.host.core.gate import Admission
from sandbox_manager.host.core.slot import SlotState as S
from tests.unit.sandbox_manager.settled_turn import CLI, whole_report, whole_turn

REFUSALS = (
    manager_errors.IllegalTransitionError,
    manager_errors.StaleGenerationError,
    host_errors.IllegalTransitionError,
    host_errors.AdmissionConflictError,
)


@dataclass(frozen=True)
class Plan:
    """One machine: how to make it in a state, its events by name, and what is legal: state -> event -> state after."""

    make: Callable[[Any], Any]
    states: type[Enum]
    events: dict[str, Any]
    legal: dict[Any, dict[str, Any]]


# --- activation ----------------------------------------------------------------------------------------------------------------------
ADMISSION = Admission("act-1", "m-1", "d" * 64, 4)
OTHER_ADMISSION = Admission("act-1", "m-1", "e" * 64, 4)
OBSERVATION = whole_turn().observation
REPORT = whole_report("RESTORED").report
END = NativeEnd(is_error=False, reason="completed", status=None, tap_offset=1, evidence_digest="x")

ACTIVATION_PATH: list[tuple[A, list[Any]]] = [
    (A.GRANTED, []),
    (A.PREPARING, [activation.PrepareBegun()]),
    (A.READY, [activation.Prepared(REPORT)]),
    (A.ADMITTED, [activation.Admitted(ADMISSION)]),
    (A.FORWARDING, [activation.MessageArrived(b"frame\n")]),
    (A.FORWARDED, [activation.ForwardRecorded()]),
    (A.ENDED, [activation.NativeEnded(END)]),
    (A.QUIESCING, [activation.LifecycleOver()]),
    (A.OBSERVING, [activation.Quiesced(OBSERVATION)]),
    (A.OBSERVED, [activation.ObservationJournalled(OBSERVATION)]),
    (A.CLOSED, [activation.Settled(ProcessDisposition.KEPT)]),
]


def make_activation(state: A) -> activation.Activation:
    made = activation.Activation()
    if state is A.FAILED:
        made.step(activation.PrepareFailed("X"))
    for reached, events in ACTIVATION_PATH if state is not A.FAILED else []:
        for event in events:
            made.step(event)
        if reached is state:
            break
    assert made.state is state
    return made


BEFORE = dict.fromkeys(["interrupted", "supervisor lost", "abandoned"], A.FAILED)
ACTIVATION = Plan(
    make_activation,
    A,
    {
        "prepare begun": activation.PrepareBegun(),
        "prepared": activation.Prepared(REPORT),
        "prepare failed": activation.PrepareFailed("X"),
        "admitted": activation.Admitted(ADMISSION),
        "admitted otherwise": activation.Admitted(OTHER_ADMISSION),
        "message": activation.MessageArrived(b"frame\n"),
        "recorded": activation.ForwardRecorded(),
        "not recorded": activation.ForwardNotRecorded("STORAGE_FULL"),
        "interrupted": activation.Interrupted("ATTACH_LOST"),
        "interrupt wait over": activation.InterruptWaitOver(),
        "message started": activation.MessageStarted(),
        "native end": activation.NativeEnded(END),
        "lifecycle over": activation.LifecycleOver(),
        "exited": activation.CliExited(1),
        "supervisor lost": activation.SupervisorLost(),
        "quiesced": activation.Quiesced(OBSERVATION),
        "journalled": activation.ObservationJournalled(OBSERVATION),
        "settled": activation.Settled(ProcessDisposition.KEPT),
        "abandoned": activation.Abandoned(),
    },
    {
        A.GRANTED: {**BEFORE, "prepare begun": A.PREPARING, "prepare failed": A.FAILED},
        A.PREPARING: {**BEFORE, "prepared": A.READY, "prepare failed": A.FAILED, "exited": A.FAILED},
        A.READY: {**BEFORE, "admitted": A.ADMITTED, "admitted otherwise": A.ADMITTED, "exited": A.FAILED},
        A.ADMITTED: {**BEFORE, "admitted": A.ADMITTED, "message": A.FORWARDING, "exited": A.FAILED},
        A.FORWARDING: {
            "recorded": A.FORWARDED,
            "not recorded": A.FAILED,
            "interrupted": A.FORWARDING,
            "exited": A.FORWARDING,
            "supervisor lost": A.FORWARDING,
        },
        A.FORWARDED: {
            "message started": A.FORWARDED,
            "native end": A.ENDED,
            "interrupted": A.FORWARDED,
            "exited": A.QUIESCING,
            "supervisor lost": A.OBSERVING,
        },
        A.ENDED: {
            "message started": A.ENDED,
            "lifecycle over": A.QUIESCING,
            "interrupted": A.ENDED,
            "interrupt wait over": A.ENDED,
            "exited": A.QUIESCING,
            "supervisor lost": A.OBSERVING,
        },
        A.QUIESCING: {
            "message started": A.QUIESCING,
            "quiesced": A.OBSERVING,
            "interrupted": A.QUIESCING,
            "interrupt wait over": A.QUIESCING,
            "exited": A.QUIESCING,
            "supervisor lost": A.OBSERVING,
        },
        A.OBSERVING: {
            "message started": A.OBSERVING,
            "journalled": A.OBSERVED,
            "interrupted": A.OBSERVING,
            "interrupt wait over": A.OBSERVING,
            "exited": A.OBSERVING,
            "supervisor lost": A.OBSERVING,
        },
        A.OBSERVED: {
            "settled": A.CLOSED,
            "interrupted": A.OBSERVED,
            "exited": A.OBSERVED,
            "supervisor lost": A.OBSERVED,
        },
        A.CLOSED: {"settled": A.CLOSED},
        A.FAILED: {"abandoned": A.FAILED},
    },
)


# --- slot ----------------------------------------------------------------------------------------------------------------------------
def make_slot(state: S) -> slot.Slot:
    made = slot.Slot(S.EMPTY)
    paths: dict[S, list[Any]] = {
        S.EMPTY: [],
        S.STARTING: [slot.Wanted(2)],
        S.ACTIVE: [slot.Wanted(2), slot.Started(CLI)],
        S.IDLE: [slot.Wanted(2), slot.Started(CLI), slot.Released(ProcessDisposition.KEPT)],
        S.RETIRING: [slot.Wanted(2), slot.Started(CLI), slot.Released(ProcessDisposition.RETIRED)],
        S.RECLAIMING: [slot.Wanted(2), slot.StartFailed("X")],
        S.UNKNOWN: [slot.SupervisorLost()],
    }
    for event in paths[state]:
        made.step(event)
    assert made.state is state
    return made


ALWAYS = {"supervisor lost": S.UNKNOWN, "container stopped": S.EMPTY}
SLOT = Plan(
    make_slot,
    S,
    {
        "wanted": slot.Wanted(2),
        "wanted, fitting": slot.Wanted(2, fitting=True),
        "wanted, fitting, another generation": slot.Wanted(3, fitting=True),
        "started": slot.Started(CLI),
        "start failed": slot.StartFailed("X"),
        "released, kept": slot.Released(ProcessDisposition.KEPT),
        "released, retired": slot.Released(ProcessDisposition.RETIRED),
        "released, reclaim": slot.Released(ProcessDisposition.RECLAIM_FIRST),
        "stop wanted": slot.StopWanted(),
        "exited": slot.Exited(0),
        "retire wait over": slot.RetireWaitOver(),
        "reclaim wanted": slot.ReclaimWanted(),
        "reclaimed": slot.Reclaimed(complete=True),
        "not reclaimed": slot.Reclaimed(complete=False),
        "supervisor lost": slot.SupervisorLost(),
        "container stopped": slot.ContainerStopped(),
    },
    {
        S.EMPTY: {
            **ALWAYS,
            **dict.fromkeys(["wanted", "wanted, fitting", "wanted, fitting, another generation"], S.STARTING),
            **dict.fromkeys(
                ["reclaim wanted", "stop wanted", "released, kept", "released, retired", "released, reclaim"], S.EMPTY
            ),
        },
        S.STARTING: {
            **ALWAYS,
            "started": S.ACTIVE,
            **dict.fromkeys(
                ["start failed", "exited", "released, kept", "released, retired", "released, reclaim"], S.RECLAIMING
            ),
        },
        S.ACTIVE: {
            **ALWAYS,
            "released, kept": S.IDLE,
            "released, retired": S.RETIRING,
            "released, reclaim": S.RECLAIMING,
            "exited": S.UNKNOWN,
        },
        S.IDLE: {
            **ALWAYS,
            "wanted, fitting": S.ACTIVE,
            **dict.fromkeys(["wanted", "wanted, fitting, another generation", "stop wanted"], S.RETIRING),
            **dict.fromkeys(["exited", "reclaim wanted"], S.RECLAIMING),
        },
        S.RETIRING: {**ALWAYS, "exited": S.RECLAIMING, "retire wait over": S.RECLAIMING},
        S.RECLAIMING: {
            **ALWAYS,
            "reclaimed": S.EMPTY,
            "not reclaimed": S.UNKNOWN,
            **dict.fromkeys(
                [
                    "exited",
                    "retire wait over",
                    "reclaim wanted",
                    "released, kept",
                    "released, retired",
                    "released, reclaim",
                ],
                S.RECLAIMING,
            ),
        },
        S.UNKNOWN: {
            **ALWAYS,
            **dict.fromkeys(
                [
                    "reclaim wanted",
                    "stop wanted",
                    "wanted",
                    "wanted, fitting",
                    "wanted, fitting, another generation",
                    "released, kept",
                    "released, retired",
                    "released, reclaim",
                ],
                S.RECLAIMING,
            ),
            **dict.fromkeys(["exited", "retire wait over", "not reclaimed"], S.UNKNOWN),
        },
    },
)


# --- group ---------------------------------------------------------------------------------------------------------------------------
STOP = group.CleanStop("c1", "t0", "t1")


def make_group(state: G) -> group.Group:
    if state is G.PLANNED:
        return group.Group()
    stop = STOP if state in (G.STOPPED, G.VOIDING) else None
    return group.Group(state, container_id="c1", image_id="i1", started_at="t0", clean_stop=stop)


REMOVE = {"remove wanted": G.REMOVING}
UNSEEN = {"seen running": None, "seen exited": None, "seen absent": None, "seen started anew": None}


def same(state: G) -> dict[str, G]:
    """In this state a sighting says nothing new."""
    return dict.fromkeys(UNSEEN, state)


GROUP = Plan(
    make_group,
    G,
    {
        "ensure wanted": group.EnsureWanted(),
        "ensured": group.Ensured("c1", "i1", "t5"),
        "ensured another": group.Ensured("c2", "i1", "t5"),
        "not started": group.EnsureFailed(),
        "not there": group.EnsureFailed(gone=True),
        "stop wanted": group.StopWanted(),
        "stopping recorded": group.StoppingRecorded(),
        "stopped in order": group.StopInspected(Seen.EXITED, True, "c1", "t0", "t1"),
        "stopped, not in order": group.StopInspected(Seen.EXITED, False, "c1", "t0", "t1"),
        "stopped, another container": group.StopInspected(Seen.EXITED, True, "c2", "t0", "t1"),
        "stopped, another start": group.StopInspected(Seen.EXITED, True, "c1", "t9", "t1"),
        "stopped, no end": group.StopInspected(Seen.EXITED, True, "c1", "t0", None),
        "stop: still running": group.StopInspected(Seen.RUNNING, True, "c1", "t0", None),
        "stop: absent": group.StopInspected(Seen.ABSENT, True),
        "voided": group.StopVoided(),
        "seen running": group.ContainerSeen(Seen.RUNNING, 1, "t0"),
        "seen started anew": group.ContainerSeen(Seen.RUNNING, 1, "t7"),
        "seen exited": group.ContainerSeen(Seen.EXITED, 1),
        "seen absent": group.ContainerSeen(Seen.ABSENT, 1),
        "seen, another generation": group.ContainerSeen(Seen.RUNNING, 2),
        "remove wanted": group.RemoveWanted(),
        "removed": group.Removed(),
    },
    {
        G.PLANNED: {**REMOVE, **same(G.PLANNED), "ensure wanted": G.STARTING},
        G.STARTING: {
            **REMOVE,
            **same(G.STARTING),
            "ensure wanted": G.STARTING,
            "ensured": G.RUNNING,
            "not started": G.UNCLEAN,
            "not there": G.GONE,
        },
        G.RUNNING: {
            **REMOVE,
            "seen running": G.RUNNING,
            "seen started anew": G.UNCLEAN,
            "seen exited": G.UNCLEAN,
            "seen absent": G.GONE,
            "ensure wanted": G.RUNNING,
            "stop wanted": G.STOPPING,
        },
        G.STOPPING: {
            **REMOVE,
            **same(G.STOPPING),
            "stop wanted": G.STOPPING,
            "stopping recorded": G.STOPPING,
            "stopped in order": G.STOPPED,
            **dict.fromkeys(
                ["stopped, not in order", "stopped, another container", "stopped, another start", "stopped, no end"],
                G.UNCLEAN,
            ),
            "stop: still running": G.RUNNING,
            "stop: absent": G.GONE,
        },
        G.STOPPED: {
            **REMOVE,
            "seen running": G.UNCLEAN,
            "seen started anew": G.UNCLEAN,
            "seen exited": G.STOPPED,
            "seen absent": G.GONE,
            "ensure wanted": G.VOIDING,
            "stop wanted": G.STOPPED,
        },
        G.VOIDING: {**REMOVE, **same(G.VOIDING), "ensure wanted": G.VOIDING, "voided": G.STARTING},
        G.UNCLEAN: {
            **REMOVE,
            "seen running": G.UNCLEAN,
            "seen started anew": G.UNCLEAN,
            "seen exited": G.UNCLEAN,
            "seen absent": G.GONE,
            "ensure wanted": G.STARTING,
        },
        G.GONE: {
            **REMOVE,
            "seen running": G.UNCLEAN,
            "seen started anew": G.UNCLEAN,
            "seen exited": G.UNCLEAN,
            "seen absent": G.GONE,
            "ensure wanted": G.STARTING,
        },
        G.REMOVING: {**REMOVE, **same(G.REMOVING), "removed": G.REMOVED},
        G.REMOVED: {"remove wanted": G.REMOVED, **same(G.REMOVED)},
    },
)


# --- member --------------------------------------------------------------------------------------------------------------------------
def make_member(state: M) -> member.Member:
    turn_id = None if state in (M.FREE, M.REMOVED) else "turn-3"
    return member.Member(state, activation_generation=3, turn_id=turn_id, last_settled_turn="turn-2", settled_turns=2)


MEMBER = Plan(
    make_member,
    M,
    {
        "granted": member.Granted(4, "turn-4"),
        "granted, stale": member.Granted(3, "turn-4"),
        "admitted": member.Admitted(3),
        "admitted, stale": member.Admitted(2),
        "settled": member.Settled(3),
        "settled, stale": member.Settled(2),
        "not saved": member.NotSaved(3),
        "given up": member.GivenUp(3),
        "lease over": member.LeaseOver(3),
        "lease over, stale": member.LeaseOver(2),
        "adopted": member.Adopted(3),
        "removed": member.Removed(3),
    },
    {
        M.FREE: {"granted": M.GRANTED, "lease over": M.FREE, "removed": M.REMOVED},
        M.GRANTED: {"admitted": M.ADMITTED, "given up": M.FREE, "lease over": M.FREE},
        M.ADMITTED: {
            "admitted": M.ADMITTED,
            "settled": M.FREE,
            "not saved": M.FREE,
            "given up": M.FREE,
            "lease over": M.UNRESOLVED,
        },
        M.UNRESOLVED: {
            "settled": M.FREE,
            "not saved": M.FREE,
            "given up": M.FREE,
            "lease over": M.UNRESOLVED,
            "adopted": M.ADMITTED,
        },
        M.REMOVED: {},
    },
)

# --- host ----------------------------------------------------------------------------------------------------------------------------
ANEW = {"registered": H.REGISTERING, "ban wanted": H.BANNED}
HOST = Plan(
    lambda state: host.Host(state, lease_generation=5),
    H,
    {
        "registered": host.Registered(),
        "attested": host.Attested(),
        "refused": host.Refused(),
        "probed": host.Probed(),
        "heartbeat": host.Heartbeat(5),
        "heartbeat, stale": host.Heartbeat(4),
        "lease over": host.LeaseOver(5),
        "lease over, stale": host.LeaseOver(4),
        "drain wanted": host.DrainWanted(),
        "emptied": host.Emptied(),
        "ban wanted": host.BanWanted(),
    },
    {
        H.REGISTERING: {**ANEW, "attested": H.ATTESTED, "refused": H.REJECTED},
        H.ATTESTED: {**ANEW, "probed": H.READY, "refused": H.REJECTED},
        H.READY: {**ANEW, "heartbeat": H.READY, "lease over": H.EXPIRED, "drain wanted": H.DRAINING},
        H.DRAINING: {
            **ANEW,
            "heartbeat": H.DRAINING,
            "lease over": H.EXPIRED,
            "drain wanted": H.DRAINING,
            "emptied": H.EVACUATED,
        },
        H.EVACUATED: {**ANEW, "drain wanted": H.EVACUATED},
        H.EXPIRED: {**ANEW, "lease over": H.EXPIRED},
        H.REJECTED: ANEW,
        H.BANNED: {"ban wanted": H.BANNED},
    },
)

PLANS = {"activation": ACTIVATION, "slot": SLOT, "group": GROUP, "member": MEMBER, "host": HOST}


def cells() -> Iterator[Any]:
    for name, plan in PLANS.items():
        assert set(plan.legal) == set(plan.states)
        for state in plan.states:
            assert set(plan.legal[state]) <= set(plan.events), state
            for event in plan.events:
                yield pytest.param(name, state, event, id=f"{name}-{state.value}-{event}")


@pytest.mark.parametrize(("name", "state", "event"), list(cells()))
def test_each_state_and_event(name: str, state: Any, event: str) -> None:
    plan = PLANS[name]
    machine = plan.make(state)
    before = copy.deepcopy(vars(machine))
    follows = plan.legal[state].get(event)
    if follows is None:
        with pytest.raises(REFUSALS):
            machine.step(plan.events[event])
        assert vars(machine) == before
    else:
        machine.step(plan.events[event])
        assert machine.state is follows


# --- what is done, and in which order ------------------------------------------------------------------------------------------------
def test_the_message_leaves_only_after_its_record_is_durable() -> None:
    made = make_activation(A.ADMITTED)
    assert made.step(activation.MessageArrived(b"frame\n")) == [activation.RecordForwarded(ADMISSION)]
    assert not made.is_written
    assert made.step(activation.ForwardRecorded()) == [activation.WriteMessage(b"frame\n")]
    assert made.is_written


@pytest.mark.parametrize(
    "event", [activation.Interrupted("CANCEL"), activation.CliExited(1), activation.SupervisorLost()]
)
def test_a_message_whose_work_stopped_while_it_was_recorded_is_not_written(event: Any) -> None:
    made = make_activation(A.FORWARDING)
    made.step(event)
    effects = made.step(activation.ForwardRecorded())
    assert not any(isinstance(effect, activation.WriteMessage) for effect in effects)
    assert (made.state, made.is_written) == (A.QUIESCING, False)


def test_a_second_admission_is_refused_and_the_same_one_is_said_yes_to() -> None:
    made = make_activation(A.ADMITTED)
    assert made.step(activation.Admitted(ADMISSION)) == []
    with pytest.raises(host_errors.AdmissionConflictError):
        made.step(activation.Admitted(OTHER_ADMISSION))
    assert made.admission == ADMISSION


def test_an_interrupt_is_written_once_and_then_the_process_goes() -> None:
    made = make_activation(A.FORWARDED)
    assert made.step(activation.Interrupted("CANCEL")) == [activation.WriteInterrupt()]
    assert made.step(activation.Interrupted("ATTACH_LOST")) == []
    assert made.interrupted_by == "CANCEL"
    assert made.step(activation.InterruptWaitOver()) == [activation.CloseGate(), activation.Quiesce(end_process=True)]


def test_an_interrupt_before_the_cli_began_is_written_again_when_it_begins() -> None:
    early = make_activation(A.FORWARDED)
    early.step(activation.Interrupted("CANCEL"))
    assert early.step(activation.MessageStarted()) == [activation.WriteInterrupt()]
    assert early.step(activation.MessageStarted()) == []
    calm = make_activation(A.FORWARDED)
    assert calm.step(activation.MessageStarted()) == []
    assert calm.step(activation.Interrupted("CANCEL")) == [activation.WriteInterrupt()]


def test_an_exit_without_an_end_is_said_as_such() -> None:
    made = make_activation(A.FORWARDED)
    made.step(activation.CliExited(137))
    assert (made.interrupted_by, made.exit_code, made.end) == ("CLI_EXIT", 137, None)


def test_a_supervisor_lost_after_the_native_end_interrupts_nothing() -> None:
    made = make_activation(A.ENDED)
    assert made.step(activation.SupervisorLost()) == [activation.CloseGate(), activation.ObserveBlind()]
    assert (made.interrupted_by, made.end) == (None, END)
    assert made.step(activation.Quiesced(OBSERVATION)) == [activation.JournalObservation(OBSERVATION)]


@pytest.mark.parametrize("state", [A.READY, A.ADMITTED])
def test_a_kept_process_that_nothing_was_written_to_stays_kept(state: A) -> None:
    made = activation.Activation()
    made.step(activation.PrepareBegun())
    made.step(activation.Prepared(whole_report("LIVE").report))
    if state is A.ADMITTED:
        made.step(activation.Admitted(ADMISSION))
    effects = made.step(activation.Interrupted("ATTACH_LOST"))
    assert activation.ReleaseSlot(ProcessDisposition.KEPT) in effects
    assert activation.TellNotSent("ATTACH_LOST") in effects


@pytest.mark.parametrize(
    "event", [activation.CliExited(1), activation.SupervisorLost(), activation.Interrupted("CANCEL")]
)
def test_any_other_process_is_reclaimed_when_nothing_was_sent(event: Any) -> None:
    effects = make_activation(A.READY).step(event)
    assert activation.ReleaseSlot(ProcessDisposition.RECLAIM_FIRST) in effects


def test_the_settled_disposition_reaches_the_slot() -> None:
    made = make_activation(A.OBSERVED)
    assert made.step(activation.Settled(ProcessDisposition.RETIRED)) == [
        activation.ReleaseSlot(ProcessDisposition.RETIRED)
    ]


def test_a_slot_that_nobody_has_looked_at_starts_nothing() -> None:
    made = slot.Slot()
    assert made.state is S.UNKNOWN
    assert made.step(slot.Wanted(1)) == [slot.Reclaim()]
    made.step(slot.Reclaimed(complete=True))
    assert made.step(slot.Wanted(1)) == [slot.Spawn(1)]


def test_a_process_with_a_background_task_is_terminated_not_closed() -> None:
    made = make_slot(S.ACTIVE)
    effects = made.step(slot.Released(ProcessDisposition.RETIRED, LeaveBy.TERMINATE))
    assert effects == [slot.AskToLeave(LeaveBy.TERMINATE)]


def test_a_kept_process_serves_the_next_turn() -> None:
    assert make_slot(S.IDLE).step(slot.Wanted(2, fitting=True)) == [slot.UseKept(CLI)]
    assert make_slot(S.IDLE).step(slot.Wanted(2)) == [slot.AskToLeave(LeaveBy.CLOSE_STDIN)]


def test_a_stop_is_durable_before_its_first_action() -> None:
    made = make_group(G.RUNNING)
    assert made.step(group.StopWanted()) == [group.RecordStopping()]
    assert made.step(group.StoppingRecorded()) == [group.StopSandbox("c1")]
    assert made.step(group.StopInspected(Seen.EXITED, True, "c1", "t0", "t1")) == [group.RecordStopped(STOP)]
    assert made.clean_stop == STOP


def test_a_clean_stop_is_void_before_the_container_starts() -> None:
    made = make_group(G.STOPPED)
    assert made.step(group.EnsureWanted()) == [group.VoidStop()]
    assert made.step(group.StopVoided()) == [group.EnsureSandbox("c1")]
    assert made.clean_stop is None


def test_a_container_seen_running_after_its_clean_stop_voids_it() -> None:
    made = make_group(G.STOPPED)
    assert made.step(group.ContainerSeen(Seen.RUNNING, 1, "t7")) == [group.RecordState()]
    assert (made.state, made.clean_stop) == (G.UNCLEAN, None)


def test_a_first_container_that_could_not_be_made_leaves_the_plan() -> None:
    made = group.Group()
    made.step(group.EnsureWanted())
    made.step(group.EnsureFailed())
    assert made.state is G.PLANNED


def test_a_settled_turn_counts_and_a_failed_one_does_not() -> None:
    made = make_member(M.ADMITTED)
    made.step(member.Settled(3))
    assert (made.last_settled_turn, made.settled_turns, made.turn_id) == ("turn-3", 3, None)
    other = make_member(M.ADMITTED)
    other.step(member.NotSaved(3))
    assert (other.last_settled_turn, other.settled_turns) == ("turn-2", 2)


def test_a_host_that_registers_anew_has_a_new_lease_generation() -> None:
    made = host.Host(H.READY, lease_generation=5)
    assert made.step(host.Registered()) == [host.EndLease()]
    assert (made.lease_generation, made.may_admit) == (6, False)
    made.step(host.Attested())
    assert made.step(host.Probed()) == [host.GrantLease(6)]
    assert (made.may_place, made.may_admit) == (True, True)
    made.step(host.DrainWanted())
    assert (made.may_place, made.may_admit) == (False, True)
