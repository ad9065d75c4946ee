"""The runner's other decisions: settlement, locator record, grant checks, request checks, ledger, framer, reasons."""

from __future__ import annotations

import re
from functools import partial
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner import service, status
from runner.core import requests
from runner.core.errors import (
    AgentUnknownError,
    IdInvalidError,
    LocatorMismatchError,
    LocatorRecordError,
    LocatorRequiredError,
    MessageEmptyError,
    MessageHasNulError,
    MessageTooLargeError,
    ReasonedError,
    SettingUnknownError,
    WhenBusyUnsupportedError,
)
from runner.core.events import NativeTurnEnded
from runner.core.ledger import Ledger, Resume, resume_of
from runner.core.locator_record import LocatorRecord
from runner.core.preparation import check_activated, check_admitted, check_grant
from runner.core.settlement import Finding, ManagerAnswer, settle
from runner.core.values import Cause, NativeLocator, Outcome
from runner.core.verdict import Judgement, Verdict
from runner.drivers.line_framer import LineFramer
from standfast.runner.v1 import runner_pb2
from standfast.types.v1 import error_reason_pb2

A = NativeLocator("claude-code", "session-a", "/workspace", ".claude/projects/-workspace/session-a.jsonl")
B = NativeLocator("claude-code", "session-b", "/workspace", ".claude/projects/-workspace/session-b.jsonl")
OTHERS = [
    B,
    NativeLocator(A.agent, A.native_session_id, "/tmp", A.store),
    NativeLocator("x", "session-a", "/workspace", A.store),
]
STOP_CAUSE = Cause("CANCELLED_BY_CLIENT", "cancelled")

good = NativeTurnEnded(failed=False, cancelled=False, reason="completed", error=None, status=None)
bad = NativeTurnEnded(failed=True, cancelled=False, reason="api_error", error="API Error: 403", status=403)
own_error = NativeTurnEnded(failed=True, cancelled=False, reason="max_turns", error=None, status=None)


def judgement(verdict: Verdict) -> Judgement:
    reason = None if verdict is Verdict.CONFIRMED else "SOME_REASON"
    return Judgement(verdict, reason, A.native_session_id, B.native_session_id)


def answer(
    saved: bool = True,
    outcome: Outcome | None = Outcome.COMPLETED,
    verdict: Verdict | None = Verdict.CONFIRMED,
    locator: NativeLocator | None = A,
    findings: tuple[Finding, ...] = (),
    store: str = "CONFIRMED",
) -> ManagerAnswer:
    return ManagerAnswer(saved, outcome, verdict, store, locator, findings)


# --- settlement ---------------------------------------------------------------------------------------------------------
ENDS = (None, good, bad, own_error)
STOPS = (None, Outcome.CANCELLED, Outcome.TIMED_OUT, Outcome.UNANSWERED_QUESTION)


@pytest.mark.parametrize("own", list(Verdict))
@pytest.mark.parametrize("managers", [*Verdict, None])
@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("locator", [A, B, None])
def test_only_two_confirmed_verdicts_on_one_locator_save_it(
    own: Verdict, managers: Verdict | None, saved: bool, locator: NativeLocator | None
) -> None:
    for end, stopped, outcome in product(ENDS, STOPS, [*Outcome, None]):
        result = settle(
            own=judgement(own),
            native_end=end,
            stopped=stopped,
            stop_cause=STOP_CAUSE,
            locator=A,
            answer=answer(saved, outcome, managers, locator),
        )
        all_agree = own is managers is Verdict.CONFIRMED and saved and locator == A
        assert result.save == all_agree
        if not all_agree:
            assert result.outcome is Outcome.FAILED
            assert result.unconfirmed
            assert result.cause is not None
            assert result.cause.reason in status.CODES


@pytest.mark.parametrize(
    ("end", "stopped", "manager", "expected"),
    [
        (good, None, Outcome.COMPLETED, Outcome.COMPLETED),
        (good, None, None, Outcome.COMPLETED),
        (bad, None, Outcome.FAILED, Outcome.FAILED),
        (bad, None, Outcome.COMPLETED, Outcome.FAILED),
        (good, None, Outcome.FAILED, Outcome.FAILED),
        (good, None, Outcome.CANCELLED, Outcome.CANCELLED),
        (good, Outcome.CANCELLED, Outcome.COMPLETED, Outcome.CANCELLED),
        (bad, Outcome.TIMED_OUT, Outcome.CANCELLED, Outcome.TIMED_OUT),
        (bad, Outcome.UNANSWERED_QUESTION, Outcome.CANCELLED, Outcome.UNANSWERED_QUESTION),
        (None, None, Outcome.COMPLETED, Outcome.FAILED),
    ],
)
def test_a_confirmed_turn_ends_as_its_evidence_says(
    end: NativeTurnEnded | None, stopped: Outcome | None, manager: Outcome | None, expected: Outcome
) -> None:
    result = settle(
        own=judgement(Verdict.CONFIRMED),
        native_end=end,
        stopped=stopped,
        stop_cause=STOP_CAUSE,
        locator=A,
        answer=answer(outcome=manager),
    )
    assert (result.outcome, result.save) == (expected, True)


@pytest.mark.parametrize(("end", "reason"), [(bad, "PROVIDER_ERROR"), (own_error, "NATIVE_ERROR")])
def test_a_failure_is_told_in_the_clis_own_words(end: NativeTurnEnded, reason: str) -> None:
    result = settle(
        own=judgement(Verdict.CONFIRMED),
        native_end=end,
        stopped=None,
        stop_cause=None,
        locator=A,
        answer=answer(outcome=Outcome.FAILED),
    )
    assert result.cause is not None
    assert (result.cause.reason, result.cause.provider_status) == (reason, end.status)


# --- the locator record -------------------------------------------------------------------------------------------------
def test_only_a_saved_locator_is_sent() -> None:
    record = LocatorRecord().verify("t1", A)
    assert record.to_send is None
    assert record.save("t1", A).to_send == A


@pytest.mark.parametrize("other", OTHERS)
def test_a_saved_locator_is_never_overwritten_by_another(other: NativeLocator) -> None:
    record = LocatorRecord().verify("t1", A).save("t1", A)
    for step in (lambda: record.verify("t2", other), lambda: record.check(other, source="x")):
        with pytest.raises(LocatorMismatchError):
            step()
    verified = record.verify("t2", A)
    with pytest.raises(LocatorMismatchError):
        verified.save("t2", other)
    assert record.saved == A


def test_saving_needs_the_same_turns_own_verdict() -> None:
    with pytest.raises(LocatorRecordError):
        LocatorRecord().save("t1", A)
    with pytest.raises(LocatorRecordError):
        LocatorRecord().verify("t1", A).save("t2", A)
    assert LocatorRecord().verify("t1", A).discard("t2").verified == A
    assert LocatorRecord().verify("t1", A).discard("t1") == LocatorRecord()


@given(
    st.lists(st.tuples(st.sampled_from(["verify", "save", "discard"]), st.sampled_from("12"), st.sampled_from([A, B])))
)
def test_no_order_of_steps_changes_what_is_saved(steps: list[tuple[str, str, NativeLocator]]) -> None:
    record = LocatorRecord()
    for step, turn_id, locator in steps:
        before = record
        try:
            if step == "verify":
                record = record.verify(turn_id, locator)
            elif step == "save":
                record = record.save(turn_id, locator)
            else:
                record = record.discard(turn_id)
        except (LocatorMismatchError, LocatorRecordError):
            assert record == before
        assert before.saved in (None, record.saved)
        assert (record.verified is None) == (record.verified_by is None)


# --- checks before sending ----------------------------------------------------------------------------------------------
SAVED = LocatorRecord(saved=A)


def grant(
    record: LocatorRecord = SAVED,
    has_settled: bool = True,
    requested: NativeLocator | None = None,
    granted: NativeLocator | None = A,
    resumes: bool = True,
    check_identity: bool = True,
) -> NativeLocator:
    return check_grant(
        record=record,
        has_settled_turns=has_settled,
        requested=requested,
        granted=granted,
        resumes=resumes,
        agent="claude-code",
        check_identity=check_identity,
    )


def test_a_grant_that_agrees_with_everything_known_is_used() -> None:
    assert grant() == A
    assert grant(requested=A) == A
    assert grant(LocatorRecord(), has_settled=False, granted=B, resumes=False) == B
    assert grant(LocatorRecord(), has_settled=True, granted=A, resumes=True) == A  # a runner that lost its record


def test_a_grant_that_differs_is_refused_by_name() -> None:
    for arguments in ({"granted": B}, {"requested": B}, {"resumes": False}):
        with pytest.raises(LocatorMismatchError):
            grant(**arguments)
    with pytest.raises(LocatorRequiredError):
        grant(granted=None)
    with pytest.raises(LocatorRequiredError):
        grant(LocatorRecord(), has_settled=True, resumes=False)
    with pytest.raises(ReasonedError) as raised:
        grant(granted=NativeLocator("codex", A.native_session_id, A.cwd, A.store))
    assert raised.value.reason == "AGENT_MISMATCH"
    assert grant(granted=B, check_identity=False) == B


def test_a_process_of_another_session_is_refused() -> None:
    check_activated(locator=A, native_session_id=A.native_session_id)
    for session_id in (B.native_session_id, ""):
        with pytest.raises(ReasonedError) as raised:
            check_activated(locator=A, native_session_id=session_id)
        assert raised.value.reason == "NATIVE_SESSION_MISMATCH"


@pytest.mark.parametrize("state", ["NEW", "LIVE", "RESTORED", "LOST", "UNSPECIFIED", ""])
@pytest.mark.parametrize("process_is_new", [True, False])
@pytest.mark.parametrize("resumes", [True, False])
def test_only_a_state_that_this_side_saw_to_be_possible_is_used(
    state: str, process_is_new: bool, resumes: bool
) -> None:
    possible = {"NEW": not resumes, "LIVE": not process_is_new, "RESTORED": process_is_new and resumes}
    check = partial(check_admitted, context_state=state, process_is_new=process_is_new, resumes=resumes)
    if possible.get(state, False):
        check(handshake_refused=None)
    else:
        with pytest.raises(ReasonedError):
            check(handshake_refused=None)
    with pytest.raises(ReasonedError) as raised:
        check(handshake_refused="No conversation found")
    assert raised.value.reason == "SESSION_NOT_RESUMED"


# --- requests -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("value", ["a", "A-Z_0.9:x", "x" * 128])
def test_ids_of_the_form_are_taken(value: str) -> None:
    assert requests.check_id("turn_id", value) == value


@pytest.mark.parametrize("value", ["", "x" * 129, "a/b", "a b", "é", "a\n", "../x", "a\0"])
def test_other_ids_are_refused(value: str) -> None:
    with pytest.raises(IdInvalidError) as raised:
        requests.check_id("turn_id", value)
    assert raised.value.metadata["field"] == "turn_id"


def test_messages_are_bounded_and_without_nul() -> None:
    limit = requests.MESSAGE_MAX_BYTES
    assert requests.check_message("x" * limit).length == limit
    with pytest.raises(MessageTooLargeError):
        requests.check_message("x" * (limit + 1))
    with pytest.raises(MessageTooLargeError):
        requests.check_message("é" * (limit // 2 + 1))
    with pytest.raises(MessageEmptyError):
        requests.check_message("")
    with pytest.raises(MessageHasNulError) as raised:
        requests.check_message("é\0")
    assert raised.value.metadata["offset"] == "2"
    assert requests.check_message(" ").length == 1


def test_agents_settings_and_when_busy_are_checked() -> None:
    assert requests.check_agent("claude-code", ("claude-code",)) == "claude-code"
    with pytest.raises(AgentUnknownError):
        requests.check_agent("Claude-Code", ("claude-code",))
    requests.check_settings("claude-sonnet-4-5", "auto", {}, ())
    requests.check_settings("", "", {"effort": "high"}, ("effort",))
    for model, mode, options in (
        ("-p", "", {}),
        ("a\nb", "", {}),
        ("x" * 257, "", {}),
        ("", "plan", {}),
        ("", "", {"x": "y"}),
    ):
        with pytest.raises(SettingUnknownError):
            requests.check_settings(model, mode, options, ())
    requests.check_when_busy("REJECT")
    for name in ("QUEUE", "STEER", "7"):
        with pytest.raises(WhenBusyUnsupportedError):
            requests.check_when_busy(name)


# --- ledger -------------------------------------------------------------------------------------------------------------
def test_a_replay_goes_on_where_the_record_ends() -> None:
    ledger = Ledger()
    assert [ledger.number(from_driver=it) for it in (False, True, False, True)] == [1, 2, 3, 4]
    again = Ledger(ledger.last_sequence, ledger.from_driver)
    again.begin_replay()
    assert [again.take_from_driver() for _ in range(4)] == [False, False, True, True]
    assert again.number(from_driver=True) == 5


@pytest.mark.parametrize(
    ("after", "first", "kept", "last", "expected"),
    [
        (0, 1, 0, 0, Resume.OK),
        (0, 1, 9, 9, Resume.OK),
        (9, 1, 9, 9, Resume.OK),
        (10, 1, 9, 9, Resume.GAP),
        (0, 2, 9, 9, Resume.GAP),
        (1, 2, 9, 9, Resume.OK),
        (3, 10, 9, 9, Resume.GAP),
        (9, 10, 9, 9, Resume.OK),
        (3, 1, 7, 9, Resume.GAP),
        (8, 1, 7, 9, Resume.GAP),
        (9, 1, 7, 9, Resume.OK),
    ],
)
def test_a_replay_says_whether_it_is_whole(after: int, first: int, kept: int, last: int, expected: Resume) -> None:
    found = resume_of(after_sequence=after, first_kept=first, last_kept=kept, last_sequence=last)
    assert found is expected


# --- the framer ---------------------------------------------------------------------------------------------------------
@given(
    st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b" "))),
    st.integers(1, 7),
    st.binary(max_size=3),
)
def test_lines_are_cut_at_0x0a_and_nowhere_else(lines: list[bytes], cut: int, rest: bytes) -> None:
    rest = rest.replace(b"\n", b" ")
    stream = b"".join(line + b"\n" for line in lines) + rest
    framer = LineFramer(start_offset=100)
    found = [line for start in range(0, len(stream), cut) for line in framer.feed(stream[start : start + cut])]
    assert [line.content for line in found] == lines
    offsets = [100 + len(b"".join(line + b"\n" for line in lines[: count + 1])) for count in range(len(lines))]
    assert [line.end_offset for line in found] == offsets
    last = framer.finish()
    assert (last.content if last is not None else b"") == rest
    assert framer.finish() is None


# --- reasons and RPCs ---------------------------------------------------------------------------------------------------
def test_every_reason_of_the_contract_has_its_code() -> None:
    names = {name.removeprefix("ERROR_REASON_") for name in error_reason_pb2.ErrorReason.DESCRIPTOR.values_by_name}
    names.discard("UNSPECIFIED")
    assert names <= set(status.CODES), sorted(names - set(status.CODES))


def test_every_rpc_of_the_service_answers_and_the_list_of_later_ones_is_whole() -> None:
    rpcs = {method.name for method in runner_pb2.DESCRIPTOR.services_by_name["RunnerService"].methods}
    later = set(service.NOT_BUILT)
    assert later == {
        "SendMessage",
        "AnswerQuestion",
        "AnswerPermission",
        "ForkConversation",
        "CompactConversation",
        "ListPendingRequests",
        "CancelQueued",
        "ReleaseQueue",
        "GetReceipt",
        "SetAgreements",
    }
    assert later <= rpcs
    for rpc in rpcs:
        assert rpc in vars(service.RunnerService), f"{rpc} has no handler"


def test_reasons_are_words() -> None:
    assert all(re.fullmatch(r"[A-Z][A-Z_]+", reason) for reason in status.CODES)
