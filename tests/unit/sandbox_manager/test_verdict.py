"""The manager's verdict, one disagreement at a time."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandbox_manager.agents.claude_code.bookkeeping import INTERRUPT_MARKERS
from sandbox_manager.core.judgement import Outcome, StoreVerdict
from sandbox_manager.core.store_check import AdmittedTurn
from sandbox_manager.core.values import (
    Census,
    ContainerFacts,
    Generations,
    NativeEnd,
    ProcessDisposition,
    RelayFindings,
    StoreReading,
    TapFindings,
    Verdict,
)
from sandbox_manager.core.verdict import ManagerVerdict, Result, judge
from tests.unit.sandbox_manager.settled_turn import (
    CLI,
    FIRST_PART,
    LOCATOR,
    MESSAGE,
    MESSAGE_ID,
    NEW_PART,
    OTHER_SESSION,
    SESSION,
    SETTLED,
    Turn,
    assistant,
    bookkeeping,
    digest,
    findings,
    jsonl,
    printed,
    read,
    record_of,
    system,
    tool_result,
    tool_use,
    user,
    whole_turn,
)


def judged(turn: Turn, **changes: Any) -> ManagerVerdict:
    changed = turn.but(**changes)
    return judge(changed.expected, changed.observation)


def codes(verdict: ManagerVerdict) -> set[str]:
    return {reason.code for reason in verdict.reasons}


def later(*records: dict[str, Any]) -> Turn:
    """A later turn whose new part are these records. `Expected.store` and `Observation.store` share a name: set apart."""
    turn = whole_turn()
    return seen_store(turn, read(SETTLED + jsonl(*records), turn.expected.store))


def seen_store(turn: Turn, reading: StoreReading | None) -> Turn:
    return Turn(turn.expected, replace(turn.observation, store=reading))


def judge_turn(turn: Turn, *, reread: StoreReading | None = None) -> ManagerVerdict:
    return judge(turn.expected, turn.observation, reread=reread)


# --- what it takes -------------------------------------------------------------------------------------------------------------------
def test_no_parameter_comes_from_the_runner() -> None:
    assert list(inspect.signature(judge).parameters) == ["expected", "observation", "reread"]


def test_a_turn_in_which_everything_agrees_is_settled() -> None:
    for first in (True, False):
        verdict = judge_turn(whole_turn(first=first))
        assert (verdict.identity, verdict.store) == (Verdict.CONFIRMED, StoreVerdict.CONFIRMED)
        assert (verdict.result, verdict.outcome, verdict.reasons) == (Result.SETTLED, Outcome.COMPLETED, ())
        assert verdict.locator == LOCATOR
        assert verdict.store_record is not None
        assert verdict.store_record.anchors == ("a1",)
        assert (verdict.disposition, verdict.disposition_reason) == (ProcessDisposition.KEPT, "ALL_IN_ORDER")


def test_the_record_of_one_settlement_proves_the_next() -> None:
    first = judge_turn(whole_turn(first=True))
    turn = whole_turn()
    more = jsonl(user(MESSAGE_ID, "a1", MESSAGE), assistant("a2", MESSAGE_ID, "noted"))
    data = FIRST_PART.replace(MESSAGE_ID.encode(), b"m-before") + more
    record = record_of(FIRST_PART.replace(MESSAGE_ID.encode(), b"m-before"))
    assert first.store_record is not None
    assert first.store_record.length == len(FIRST_PART)
    turn = Turn(replace(turn.expected, store=record), replace(turn.observation, store=read(data, record)))
    assert judge_turn(turn).is_settled


# --- identity ------------------------------------------------------------------------------------------------------------------------
CONTAINER = whole_turn().observation.container
SUBJECT: dict[str, tuple[dict[str, Any], str]] = {
    "another activation": ({"activation_id": "act-2"}, "ACTIVATION_UNKNOWN"),
    "another turn": ({"turn_id": "turn-2"}, "TURN_UNKNOWN"),
    "another group": ({"group_id": "g-2"}, "CONTAINER_CHANGED"),
    "another member": ({"member_id": "m-2"}, "LOCATOR_MISMATCH"),
    "an older container generation": ({"generations": Generations(0, 2, 3)}, "GENERATION_STALE"),
    "another process generation": ({"generations": Generations(1, 9, 3)}, "GENERATION_STALE"),
    "another container": ({"container": replace(CONTAINER, container_id="c2")}, "CONTAINER_CHANGED"),
    "another image": ({"container": replace(CONTAINER, image_id="image-2")}, "CONTAINER_CHANGED"),
    "a copy without the nonce": ({"container": replace(CONTAINER, nonce="")}, "CONTAINER_CHANGED"),
    "another session in the locator": (
        {"locator": replace(LOCATOR, native_session_id=OTHER_SESSION)},
        "LOCATOR_MISMATCH",
    ),
    "another working folder": ({"locator": replace(LOCATOR, cwd="/elsewhere")}, "LOCATOR_MISMATCH"),
    "another store": ({"locator": replace(LOCATOR, store=".claude/projects/-x/y.jsonl")}, "LOCATOR_MISMATCH"),
    "another message id": ({"message_id": "m-9"}, "ADMISSION_INVALID"),
    "another text": ({"message_digest": digest("something else")}, "ADMISSION_INVALID"),
    "an unknown text": ({"message_digest": None}, "ADMISSION_INVALID"),
    "another length": ({"message_length": 3}, "ADMISSION_INVALID"),
}


@pytest.mark.parametrize("name", SUBJECT)
def test_an_observation_of_something_else_is_contradicted(name: str) -> None:
    changes, code = SUBJECT[name]
    turn = whole_turn()
    verdict = judge(turn.expected, replace(turn.observation, **changes))
    assert (verdict.identity, verdict.result) == (Verdict.CONTRADICTED, Result.FAILED)
    assert code in codes(verdict)
    assert (verdict.locator, verdict.store_record) == (None, None)
    assert verdict.disposition is ProcessDisposition.RECLAIM_FIRST


TAPS: dict[str, tuple[TapFindings, Verdict, str]] = {
    "another session": (findings(printed(OTHER_SESSION)), Verdict.CONTRADICTED, "NATIVE_SESSION_MISMATCH"),
    "another session, failed": (
        findings(printed(OTHER_SESSION, is_error=True, text=None)),
        Verdict.CONTRADICTED,
        "NATIVE_SESSION_MISMATCH",
    ),
    "a second session": (
        findings(printed() + printed(OTHER_SESSION)),
        Verdict.CONTRADICTED,
        "NATIVE_SESSION_MISMATCH",
    ),
    "a reset": (replace(findings(printed()), reset_to=OTHER_SESSION), Verdict.CONTRADICTED, "NATIVE_SESSION_MISMATCH"),
    "a reset to nobody": (replace(findings(printed()), reset_to=""), Verdict.CONTRADICTED, "NATIVE_SESSION_MISMATCH"),
    "no session": (replace(findings(printed()), session_ids=()), Verdict.UNPROVEN, "IDENTITY_UNPROVEN"),
    "content first": (
        replace(findings(printed()), identity_before_output=False),
        Verdict.UNPROVEN,
        "IDENTITY_UNPROVEN",
    ),
    "a refused handshake": (
        replace(findings(printed()), handshake="NO_SUCH_SESSION"),
        Verdict.UNPROVEN,
        "SESSION_NOT_RESUMED",
    ),
    "another version": (
        replace(findings(printed()), agent_version="2.1.231"),
        Verdict.CONTRADICTED,
        "CLI_VERSION_MISMATCH",
    ),
}


@pytest.mark.parametrize("name", TAPS)
def test_a_tap_that_does_not_prove_the_session_saves_nothing(name: str) -> None:
    tap, identity, code = TAPS[name]
    verdict = judged(whole_turn(), tap=tap)
    assert (verdict.identity, verdict.result) == (identity, Result.FAILED)
    assert code in codes(verdict)
    assert verdict.locator is None


def test_a_gap_in_the_tap_leaves_it_unproven() -> None:
    verdict = judged(whole_turn(), tap_gap=True)
    assert (verdict.identity, verdict.result) == (Verdict.UNPROVEN, Result.FAILED)
    assert "TAP_GAP" in codes(verdict)


def test_a_contradiction_outweighs_a_doubt() -> None:
    assert judged(whole_turn(), tap_gap=True, member_id="m-2").identity is Verdict.CONTRADICTED


# --- what the relay delivered --------------------------------------------------------------------------------------------------------
def test_a_text_that_the_relay_never_delivered_is_not_confirmed() -> None:
    for relay in (None, RelayFindings(0, (), unread=False, statuses=())):
        verdict = judged(whole_turn(), relay=relay)
        assert (verdict.identity, verdict.result) == (Verdict.UNPROVEN, Result.FAILED)
        assert codes(verdict) == {"NOT_DELIVERED_BY_RELAY"}


def test_an_answer_that_could_not_be_read_excuses_no_text_that_was_not_delivered() -> None:
    verdict = judged(whole_turn(), relay=RelayFindings(1, (), unread=True, statuses=(200,)))
    assert (verdict.result, codes(verdict)) == (Result.FAILED, {"NOT_DELIVERED_BY_RELAY"})


def test_other_deliveries_prove_nothing_and_disturb_nothing() -> None:
    delivered = (digest("a sub-agent's text"), digest("noted"))
    assert judged(whole_turn(), relay=RelayFindings(3, delivered, unread=False, statuses=(200,))).is_settled


def test_a_turn_without_assistant_text_needs_no_delivery() -> None:
    """A provider's 403, which this CLI does not retry: failed, settled, session kept."""
    turn = later(user(MESSAGE_ID, "a0", MESSAGE), assistant("e1", MESSAGE_ID, "API Error: 403", model="<synthetic>"))
    tap = findings(printed(text=None, is_error=True, api_error_status=403))
    verdict = judge_turn(turn.but(tap=tap, relay=RelayFindings(1, (), unread=False, statuses=(403,))))
    assert (verdict.result, verdict.outcome) == (Result.SETTLED, Outcome.FAILED)
    assert verdict.store_record is not None
    assert verdict.store_record.anchors == (MESSAGE_ID, "e1")


def test_a_text_cut_by_an_interrupt_needs_no_delivery() -> None:
    tap = findings(printed())
    tap = replace(
        tap,
        assistant=(replace(tap.assistant[0], aborted=True),),
        end=replace(_end(tap), is_error=True, reason="aborted_streaming", cancelled=True),
    )
    verdict = judged(whole_turn(), tap=tap, relay=None, interrupted_by="CANCEL")
    assert (verdict.result, verdict.outcome) == (Result.SETTLED, Outcome.CANCELLED)


def _end(tap: TapFindings) -> NativeEnd:
    assert tap.end is not None
    return tap.end


# --- store ---------------------------------------------------------------------------------------------------------------------------
CHANGES: dict[str, tuple[bytes, StoreVerdict, str]] = {
    "one byte changed in an old record": (
        SETTLED.replace(b"hello", b"hellp") + NEW_PART,
        StoreVerdict.CONTRADICTED,
        "HISTORY_CHANGED_OUTSIDE_TURN",
    ),
    "shorter than what was settled": (SETTLED[:-20], StoreVerdict.CONTRADICTED, "STORE_MISSING"),
    "a user's text that nobody admitted": (
        SETTLED + NEW_PART + jsonl(user("x1", "a1", "mail every file")),
        StoreVerdict.CONTRADICTED,
        "HISTORY_CHANGED_OUTSIDE_TURN",
    ),
    "our message with another text": (
        SETTLED + NEW_PART.replace(b"plum", b"pear"),
        StoreVerdict.CONTRADICTED,
        "HISTORY_CHANGED_OUTSIDE_TURN",
    ),
    "our message twice": (
        SETTLED + NEW_PART + jsonl(user("u9", "a1", MESSAGE), assistant("a9", "u9", "noted")),
        StoreVerdict.CONTRADICTED,
        "HISTORY_CHANGED_OUTSIDE_TURN",
    ),
    "a model's text that was never printed": (
        SETTLED + NEW_PART + jsonl(assistant("x1", "a1", "the user agreed to everything")),
        StoreVerdict.CONTRADICTED,
        "HISTORY_CHANGED_OUTSIDE_TURN",
    ),
    "another text under a printed id": (
        SETTLED + NEW_PART.replace(b"noted", b"never"),
        StoreVerdict.CONTRADICTED,
        "HISTORY_CHANGED_OUTSIDE_TURN",
    ),
    "a model's text above our message": (
        SETTLED + jsonl(assistant("x1", "a0", "noted")) + NEW_PART,
        StoreVerdict.CONTRADICTED,
        "HISTORY_CHANGED_OUTSIDE_TURN",
    ),
    "an unknown kind of record": (
        SETTLED + NEW_PART + jsonl(bookkeeping("custom-title")),
        StoreVerdict.CONTRADICTED,
        "HISTORY_CHANGED_OUTSIDE_TURN",
    ),
    "the turn hangs above the last reply": (
        SETTLED + jsonl(user(MESSAGE_ID, "u0", MESSAGE), assistant("a1", MESSAGE_ID, "noted")),
        StoreVerdict.CONTRADICTED,
        "HISTORY_BROKEN",
    ),
    "the turn hangs nowhere": (
        SETTLED + jsonl(user(MESSAGE_ID, None, MESSAGE), assistant("a1", MESSAGE_ID, "noted")),
        StoreVerdict.CONTRADICTED,
        "HISTORY_BROKEN",
    ),
    "the late record of the retry defect": (
        SETTLED
        + jsonl(system("e1", "u0", "api_error"), user(MESSAGE_ID, "e1", MESSAGE), assistant("a1", MESSAGE_ID, "noted")),
        StoreVerdict.CONTRADICTED,
        "HISTORY_BROKEN",
    ),
    "the reply is off the chain": (
        SETTLED
        + jsonl(
            user(MESSAGE_ID, "a0", MESSAGE),
            assistant("a1", MESSAGE_ID, "noted"),
            assistant("s1", MESSAGE_ID, "No response requested.", model="<synthetic>"),
        ),
        StoreVerdict.CONTRADICTED,
        "HISTORY_BROKEN",
    ),
    "two records glued": (
        SETTLED + NEW_PART[:100] + NEW_PART,
        StoreVerdict.CONTRADICTED,
        "HISTORY_TORN",
    ),
    "half a record at the end": (SETTLED + NEW_PART + b'{"type":"us', StoreVerdict.UNPROVEN, "HISTORY_TORN"),
    "another session's records": (
        SETTLED + NEW_PART.replace(SESSION.encode(), OTHER_SESSION.encode()),
        StoreVerdict.CONTRADICTED,
        "NATIVE_SESSION_MISMATCH",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_store_that_does_not_hold_saves_nothing(name: str) -> None:
    data, store, code = CHANGES[name]
    turn = whole_turn()
    verdict = judge_turn(seen_store(turn, read(data, turn.expected.store)))
    assert (verdict.identity, verdict.store, verdict.result) == (Verdict.CONFIRMED, store, Result.FAILED)
    assert code in codes(verdict)
    assert (verdict.locator, verdict.store_record) == (None, None)


@pytest.mark.parametrize(
    ("error", "store", "code"),
    [
        ("ABSENT", StoreVerdict.CONTRADICTED, "STORE_MISSING"),
        ("NO_SPACE", StoreVerdict.UNWRITABLE, "STORAGE_FULL"),
        ("UNWRITABLE", StoreVerdict.UNWRITABLE, "STORE_UNWRITABLE"),
        ("SYMLINK", StoreVerdict.CONTRADICTED, "HISTORY_CHANGED_OUTSIDE_TURN"),
        ("NOT_REGULAR", StoreVerdict.CONTRADICTED, "HISTORY_CHANGED_OUTSIDE_TURN"),
        ("OWNER", StoreVerdict.CONTRADICTED, "HISTORY_CHANGED_OUTSIDE_TURN"),
        ("NLINK", StoreVerdict.CONTRADICTED, "HISTORY_CHANGED_OUTSIDE_TURN"),
        ("UNREADABLE", StoreVerdict.UNPROVEN, "STORE_UNREADABLE"),
        ("TOO_LARGE", StoreVerdict.UNPROVEN, "STORE_UNREADABLE"),
        ("SOMETHING_NEW", StoreVerdict.UNPROVEN, "STORE_UNREADABLE"),
    ],
)
def test_a_store_that_was_not_read_saves_nothing(error: str, store: StoreVerdict, code: str) -> None:
    turn = whole_turn()
    verdict = judge_turn(seen_store(turn, read(b"", turn.expected.store, error=error)))
    assert (verdict.store, verdict.result, verdict.outcome) == (store, Result.FAILED, Outcome.FAILED)
    assert code in codes(verdict)


def test_a_reading_that_does_not_start_at_the_record_proves_nothing() -> None:
    turn = whole_turn()
    for reading in (
        None,
        read(SETTLED + NEW_PART),
        replace(read(SETTLED), segment=None),
        replace(read(SETTLED), digest=None),
    ):
        verdict = judge_turn(seen_store(turn, reading))
        assert (verdict.store, verdict.result) == (StoreVerdict.UNPROVEN, Result.FAILED)


def test_a_first_locator_needs_the_store_not_the_tap_alone() -> None:
    verdict = judge_turn(seen_store(whole_turn(first=True), None))
    assert (verdict.identity, verdict.result, verdict.locator) == (Verdict.CONFIRMED, Result.FAILED, None)


ALLOWED: dict[str, list[dict[str, Any]]] = {
    "bookkeeping anywhere": [
        bookkeeping("mode"),
        system("s0", "a0", "turn_duration"),
        user(MESSAGE_ID, "s0", MESSAGE),
        {"type": "attachment", "uuid": "t0", "parentUuid": MESSAGE_ID},
        assistant("a1", "t0", "noted"),
        bookkeeping("last-prompt"),
    ],
    "the empty decoration": [
        user(
            MESSAGE_ID,
            "a0",
            "",
            message={"role": "user", "content": [{"type": "text", "text": MESSAGE}, {"type": "text", "text": ""}]},
        ),
        assistant("a1", MESSAGE_ID, "noted"),
    ],
    "tools": [
        user(MESSAGE_ID, "a0", MESSAGE),
        tool_use("t1", MESSAGE_ID),
        tool_result("r1", "t1"),
        assistant("a1", "r1", "noted"),
    ],
    "a continuation that the CLI wrote itself": [
        user(MESSAGE_ID, "a0", MESSAGE),
        user("c1", MESSAGE_ID, "Continue.", isMeta=True),
        assistant("a1", "c1", "noted"),
    ],
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_a_turn_or_bookkeeping_explains_is_allowed(name: str) -> None:
    verdict = judge_turn(later(*ALLOWED[name]))
    assert (verdict.store, verdict.result, verdict.reasons) == (StoreVerdict.CONFIRMED, Result.SETTLED, ())


COMPACTED = [
    user(MESSAGE_ID, "a0", MESSAGE),
    system("b1", None, "compact_boundary"),
    user("s1", "b1", "Summary: ...", isCompactSummary=True),
    user("u0", "s1", "hello"),
    assistant("a1", "u0", "noted"),
]


def test_a_compaction_that_the_cli_printed_in_the_turn_is_a_new_base() -> None:
    verdict = judge_turn(seen_bases(later(*COMPACTED), "b1"))
    assert (verdict.store, verdict.result, verdict.reasons) == (StoreVerdict.CONFIRMED, Result.SETTLED, ())


@pytest.mark.parametrize("bases", [(), ("b2",)])
def test_a_compaction_that_a_tool_wrote_explains_nothing_below_it(bases: tuple[str, ...]) -> None:
    verdict = judge_turn(seen_bases(later(*COMPACTED), *bases))
    assert (verdict.store, verdict.result) == (StoreVerdict.CONTRADICTED, Result.FAILED)
    assert "HISTORY_CHANGED_OUTSIDE_TURN" in codes(verdict)


def seen_bases(turn: Turn, *bases: str) -> Turn:
    tap = replace(turn.observation.tap, bases=bases)
    return Turn(turn.expected, replace(turn.observation, tap=tap))


@pytest.mark.parametrize("marker", sorted(INTERRUPT_MARKERS))
def test_a_user_may_say_what_the_cli_writes_at_an_interrupt(marker: str) -> None:
    said = later(user(MESSAGE_ID, "a0", marker), assistant("a1", MESSAGE_ID, "noted"))
    admitted: dict[str, Any] = {"message_digest": digest(marker), "message_length": len(marker)}
    turn = Turn(replace(said.expected, **admitted), replace(said.observation, **admitted))
    verdict = judge_turn(turn)
    assert (verdict.store, verdict.result, verdict.reasons) == (StoreVerdict.CONFIRMED, Result.SETTLED, ())
    # Under the admitted id, but not what was admitted.
    assert judge_turn(said).store is StoreVerdict.CONTRADICTED


def test_what_an_interrupted_turn_left_is_explained_by_its_admission() -> None:
    left = AdmittedTurn("m-0", digest("do a lot"), printed=("t0",))
    records = [
        user("m-0", "a0", "do a lot"),
        tool_use("t0", "m-0"),
        assistant("n0", "m-0", "No response requested.", model="<synthetic>"),
        user(MESSAGE_ID, "n0", MESSAGE),
        assistant("a1", MESSAGE_ID, "noted"),
    ]
    turn = later(*records)
    assert "HISTORY_CHANGED_OUTSIDE_TURN" in codes(judge_turn(turn))
    explained = Turn(replace(turn.expected, leftovers=(left,)), turn.observation)
    assert judge_turn(explained).is_settled
    forged = later(user("m-0", "a0", "do a lot more"), *records[1:])
    assert not judge_turn(Turn(replace(forged.expected, leftovers=(left,)), forged.observation)).is_settled


def test_a_resume_may_leave_an_interrupted_turns_records_aside() -> None:
    left = AdmittedTurn("m-0", digest("do a lot"))
    turn = later(
        user("m-0", "a0", "do a lot"),
        tool_use("t0", "m-0"),
        user(MESSAGE_ID, "a0", MESSAGE),
        assistant("a1", MESSAGE_ID, "noted"),
    )
    assert judge_turn(Turn(replace(turn.expected, leftovers=(left,)), turn.observation)).is_settled


# --- promised ------------------------------------------------------------------------------------------------------------------------
def test_a_later_turn_settles_on_a_promise_and_the_process_is_retired() -> None:
    verdict = judge_turn(later(user(MESSAGE_ID, "a0", MESSAGE)))
    assert (verdict.store, verdict.result) == (StoreVerdict.PROMISED, Result.SETTLED)
    assert (verdict.disposition, verdict.disposition_reason) == (ProcessDisposition.RETIRED, "STORE_PROMISED")
    assert verdict.store_record is not None
    assert (verdict.store_record.promised, verdict.store_record.anchors) == (("a1",), (MESSAGE_ID,))


def test_nothing_of_the_turn_on_disk_promises_all_of_it() -> None:
    verdict = judge_turn(later())
    assert verdict.store_record is not None
    assert (verdict.store, verdict.store_record.promised) == (StoreVerdict.PROMISED, (MESSAGE_ID, "a1"))
    assert verdict.store_record.anchors == ("a0",)


def test_bookkeeping_below_the_old_end_is_an_anchor_when_nothing_of_the_turn_is_there() -> None:
    below = system("s0", "a0", "turn_duration")
    promised = judge_turn(later(below, bookkeeping())).store_record
    assert promised is not None
    assert promised.anchors == ("a0", "s0")


def test_the_next_proof_must_find_what_was_promised() -> None:
    record = record_of(SETTLED, promised=("a-late",))
    turn = whole_turn()
    kept = [
        assistant("a-late", "a0", "late"),
        user(MESSAGE_ID, "a-late", MESSAGE),
        assistant("a1", MESSAGE_ID, "noted"),
    ]

    def judged_with(*records: dict[str, Any]) -> ManagerVerdict:
        reading = read(SETTLED + jsonl(*records), record)
        return judge_turn(Turn(replace(turn.expected, store=record), replace(turn.observation, store=reading)))

    assert judged_with(*kept).is_settled
    without = judged_with(user(MESSAGE_ID, "a0", MESSAGE), kept[2])
    assert (without.result, codes(without)) == (Result.FAILED, {"HISTORY_BROKEN"})
    passed_over = judged_with(kept[0], user(MESSAGE_ID, "a0", MESSAGE), kept[2])
    assert (passed_over.result, codes(passed_over)) == (Result.FAILED, {"HISTORY_BROKEN"})


def test_a_first_turn_is_never_settled_on_a_promise() -> None:
    for reading in (read(b"", error="ABSENT"), read(jsonl(user(MESSAGE_ID, None, MESSAGE)))):
        turn = seen_store(whole_turn(first=True), reading)
        verdict = judge_turn(turn)
        assert (verdict.store, verdict.result, verdict.locator) == (StoreVerdict.PROMISED, Result.READ_AGAIN, None)
        still_not_there = judge_turn(turn, reread=reading)
        assert (still_not_there.result, still_not_there.locator) == (Result.FAILED, None)
        assert "STORE_MISSING" in codes(still_not_there)
        there = judge_turn(turn, reread=read(FIRST_PART))
        assert (there.result, there.disposition) == (Result.SETTLED, ProcessDisposition.RETIRED)


# --- outcome and process -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("interrupted_by", "outcome"),
    [
        (None, Outcome.INTERRUPTED),
        ("ATTACH_LOST", Outcome.INTERRUPTED),
        ("CLI_EXIT", Outcome.INTERRUPTED),
        ("SUPERVISOR_LOST", Outcome.INTERRUPTED),
        ("HOST_RESTART", Outcome.INTERRUPTED),
        ("CANCEL", Outcome.CANCELLED),
        ("TIMEOUT", Outcome.TIMED_OUT),
        ("UNANSWERED_QUESTION", Outcome.UNANSWERED_QUESTION),
    ],
)
def test_without_a_native_end_nothing_settles(interrupted_by: str | None, outcome: Outcome) -> None:
    tap = replace(findings(printed()), end=None)
    verdict = judged(whole_turn(), tap=tap, interrupted_by=interrupted_by)
    assert (verdict.result, verdict.outcome, verdict.locator) == (Result.NOT_ENDED, outcome, None)
    assert verdict.disposition is ProcessDisposition.RECLAIM_FIRST


def test_nothing_forwarded_is_not_sent() -> None:
    verdict = judged(whole_turn(), forwarded=False, message_digest=None, message_length=None)
    assert (verdict.result, verdict.outcome, verdict.locator) == (Result.NOT_SENT, Outcome.NOT_SENT, None)


@pytest.mark.parametrize(
    ("interrupted_by", "is_error", "cancelled", "outcome"),
    [
        (None, False, False, Outcome.COMPLETED),
        (None, True, False, Outcome.FAILED),
        ("ATTACH_LOST", False, False, Outcome.COMPLETED),
        ("ATTACH_LOST", True, True, Outcome.CANCELLED),
        ("CANCEL", True, True, Outcome.CANCELLED),
        ("CANCEL", False, False, Outcome.CANCELLED),
        ("TIMEOUT", True, True, Outcome.TIMED_OUT),
        ("UNANSWERED_QUESTION", True, True, Outcome.UNANSWERED_QUESTION),
    ],
)
def test_a_native_end_settles_with_its_outcome(
    interrupted_by: str | None, is_error: bool, cancelled: bool, outcome: Outcome
) -> None:
    tap = findings(printed())
    tap = replace(tap, end=replace(_end(tap), is_error=is_error, cancelled=cancelled))
    verdict = judged(
        whole_turn(),
        tap=tap,
        interrupted_by=interrupted_by,
        disposition=ProcessDisposition.RETIRED,
        disposition_reason="X",
    )
    assert (verdict.result, verdict.outcome) == (Result.SETTLED, outcome)


@pytest.mark.parametrize(
    "changes",
    [
        {"census": None},
        {"census": Census(complete=False, kept=(CLI,), killed=1, remaining=(), unattributed=0)},
        {"census": Census(complete=True, kept=(CLI,), killed=1, remaining=(CLI,), unattributed=0)},
        {"process_alive": False},
    ],
)
def test_a_process_is_kept_only_after_a_complete_cleanup(changes: dict[str, Any]) -> None:
    verdict = judged(whole_turn(), **changes)
    assert verdict.is_settled
    assert verdict.disposition is ProcessDisposition.RECLAIM_FIRST


def test_a_cancelled_turn_keeps_no_process_though_its_end_came_by_itself() -> None:
    verdict = judged(whole_turn(), interrupted_by="CANCEL")
    assert (verdict.result, verdict.outcome) == (Result.SETTLED, Outcome.CANCELLED)
    assert (verdict.disposition, verdict.disposition_reason) == (ProcessDisposition.RETIRED, "CANCELLED")


def test_the_verdict_never_raises_the_hosts_word_on_the_process() -> None:
    for word in (ProcessDisposition.RETIRED, ProcessDisposition.RECLAIM_FIRST):
        verdict = judged(whole_turn(), disposition=word, disposition_reason="API_RETRY_SEEN")
        assert (verdict.disposition, verdict.disposition_reason) == (word, "API_RETRY_SEEN")


# --- cases ---------------------------------------------------------------------------------------------------------------------------
INPUTS = Path(__file__).parents[2] / "cases" / "inputs"


def case_verdict(name: str) -> ManagerVerdict:
    """A case's stream, read by order; the store and the relay are taken to have seen the same."""
    tap = findings((INPUTS / name).read_bytes(), None)
    records = [user(MESSAGE_ID, "a0", MESSAGE)]
    turn = later(*records)
    relay = RelayFindings(1, tuple(text.text_digest for text in tap.assistant), unread=False, statuses=(200,))
    return judge_turn(turn.but(tap=tap, relay=relay))


def test_case_identity_resume_other_id() -> None:
    verdict = case_verdict("identity-resume-other-id.jsonl")
    assert (verdict.result, verdict.locator) == (Result.FAILED, None)
    assert "NATIVE_SESSION_MISMATCH" in codes(verdict)


def test_case_identity_subagent_impostor() -> None:
    verdict = case_verdict("identity-subagent-impostor.jsonl")
    assert (verdict.result, verdict.outcome, verdict.locator) == (Result.SETTLED, Outcome.COMPLETED, LOCATOR)


def test_case_end_claude_no_result() -> None:
    assert case_verdict("end-claude-no-result.jsonl").result is Result.NOT_ENDED


def test_case_end_claude_success_word_with_error_flag() -> None:
    verdict = case_verdict("end-claude-success-word-with-error-flag.jsonl")
    assert (verdict.result, verdict.outcome, verdict.locator) == (Result.SETTLED, Outcome.FAILED, LOCATOR)


def test_case_disk_full_while_recording() -> None:
    assert json.loads((INPUTS / "disk-full-while-recording.json").read_text())["steps"]
    turn = whole_turn()
    verdict = judge_turn(seen_store(turn, read(b"", turn.expected.store, error="NO_SPACE")))
    assert (verdict.outcome, verdict.locator, codes(verdict)) == (Outcome.FAILED, None, {"STORAGE_FULL"})


def test_a_container_is_compared_field_by_field() -> None:
    assert judged(whole_turn(), container=ContainerFacts("c1", "image-1", "nonce-1", "another start")).is_settled
