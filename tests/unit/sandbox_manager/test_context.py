"""The four context states, one disagreement at a time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandbox_manager.core.context import ContextDecision, Presence, Ruling, decide
from sandbox_manager.core.store_check import AdmittedTurn
from sandbox_manager.core.values import ContainerFacts, ContextState, Generations, SlotProcess, StoreRecord
from tests.unit.sandbox_manager.settled_turn import (
    LOCATOR,
    OTHER_SESSION,
    SETTLED,
    Before,
    assistant,
    bookkeeping,
    digest,
    jsonl,
    read,
    record_of,
    tool_use,
    user,
    whole_report,
)

INPUTS = Path(__file__).parents[2] / "cases" / "inputs"


def decided(before: Before) -> ContextDecision:
    return decide(before.report, before.member, before.container)


def said(decision: ContextDecision) -> tuple[Ruling, ContextState | None, str]:
    return decision.ruling, decision.state, decision.reason


LOST = (Ruling.REFUSE, ContextState.LOST)


# --- what each state takes -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("state", "reason"), [("NEW", "FIRST_TURN"), ("LIVE", "PROCESS_KEPT"), ("RESTORED", "PROCESS_RETIRED")]
)
def test_where_everything_agrees_the_prompt_may_be_admitted(state: str, reason: str) -> None:
    assert said(decided(whole_report(state))) == (Ruling.ADMIT, ContextState[state], reason)


def test_why_restored_is_said() -> None:
    kept = whole_report("LIVE").member.kept
    assert kept is not None
    restored = whole_report("RESTORED")
    assert decided(restored.but(container={"started_now": True})).reason == "SANDBOX_STOPPED"
    assert decided(restored.but(member={"kept": kept})).reason == "PROCESS_GONE"
    changed = replace(kept, settings_digest="settings-0")
    assert decided(restored.but(member={"kept": changed})).reason == "SETTINGS_CHANGED"


NOT_LIVE: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "another process": ({"process": SlotProcess(43, 9000)}, {}, "PROCESS_CHANGED"),
    "the same pid, started later": ({"process": SlotProcess(42, 9001)}, {}, "PROCESS_CHANGED"),
    "no process named": ({"process": None}, {}, "PROCESS_CHANGED"),
    "another start of the container": (
        {"container": ContainerFacts("c1", "image-1", "nonce-1", "later")},
        {},
        "PROCESS_CHANGED",
    ),
    "another process generation": (
        {"generations": Generations(1, 3, 3)},
        {"generations": Generations(1, 3, 3)},
        "PROCESS_CHANGED",
    ),
    "other settings wanted": ({}, {"settings_digest": "settings-2"}, "SETTINGS_CHANGED"),
    "other settings reported": ({"settings_digest": "settings-2"}, {}, "SETTINGS_CHANGED"),
    "a gap in its output": ({"tap_gap": True}, {}, "TAP_GAP"),
    "written to outside an activation": ({"written_outside": True}, {}, "WRITTEN_OUTSIDE"),
    "a refused handshake": ({"handshake": "REFUSED"}, {}, "HANDSHAKE_FAILED"),
    "no process recorded": ({}, {"kept": None}, "PROCESS_NOT_RECORDED"),
}


@pytest.mark.parametrize("name", NOT_LIVE)
def test_a_running_process_that_does_not_fit_is_replaced(name: str) -> None:
    report, member, reason = NOT_LIVE[name]
    assert said(decided(whole_report("LIVE").but(report, member))) == (Ruling.RESTART, None, reason)


# --- the container -------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("state", ["LIVE", "RESTORED"])
def test_a_container_that_is_gone_is_lost_and_one_nobody_answers_for_is_not(state: str) -> None:
    before = whole_report(state)
    gone = decide(None, before.member, replace(before.container, presence=Presence.GONE))
    assert said(gone) == (*LOST, "CONTAINER_GONE")
    assert gone.cure
    assert gone.readable
    silent = decide(None, before.member, replace(before.container, presence=Presence.SILENT))
    assert said(silent) == (Ruling.RETRY, None, "HOST_UNAVAILABLE")
    assert said(decide(None, before.member, before.container)) == (Ruling.RETRY, None, "HOST_UNAVAILABLE")


def test_lost_is_decided_anew() -> None:
    before = whole_report("RESTORED")
    gone = decide(None, before.member, replace(before.container, presence=Presence.GONE))
    assert gone.state is ContextState.LOST
    assert decided(before).state is ContextState.RESTORED


@pytest.mark.parametrize("state", ["LIVE", "RESTORED"])
@pytest.mark.parametrize(
    "container",
    [
        ContainerFacts("c2", "image-1", "nonce-1", "x"),
        ContainerFacts("c1", "image-2", "nonce-1", "x"),
        ContainerFacts("c1", "image-1", "nonce-2", "x"),
    ],
)
def test_another_container_is_lost(state: str, container: ContainerFacts) -> None:
    assert said(decided(whole_report(state).but({"container": container}))) == (*LOST, "CONTAINER_CHANGED")


def test_a_retired_image_is_neither_lost_nor_ready() -> None:
    decision = decided(whole_report("RESTORED").but(container={"accepted_images": ("image-9",)}))
    assert said(decision) == (Ruling.REFUSE, None, "IMAGE_RETIRED")
    assert (decision.expected, decision.found) == ("image-9", "image-1")


# --- the report ----------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("state", ["NEW", "LIVE", "RESTORED"])
@pytest.mark.parametrize(
    "report",
    [
        {"activation_id": "act-0"},
        {"turn_id": "turn-0"},
        {"group_id": "g-0"},
        {"member_id": "m-0"},
        {"generations": Generations(1, 2, 2)},
    ],
)
def test_a_report_of_something_else_decides_nothing(state: str, report: dict[str, Any]) -> None:
    assert said(decided(whole_report(state).but(report))) == (Ruling.RETRY, None, "GENERATION_STALE")


@pytest.mark.parametrize("state", ["LIVE", "RESTORED"])
@pytest.mark.parametrize(
    ("report", "reason"),
    [
        ({"locator": replace(LOCATOR, native_session_id=OTHER_SESSION)}, "LOCATOR_MISMATCH"),
        ({"locator": replace(LOCATOR, cwd="/elsewhere")}, "LOCATOR_MISMATCH"),
        ({"agent": "codex"}, "LOCATOR_MISMATCH"),
        ({"observed_session_id": OTHER_SESSION}, "NATIVE_SESSION_MISMATCH"),
        ({"agent_version": "2.1.231"}, "CLI_VERSION_MISMATCH"),
    ],
)
def test_another_session_or_program_is_lost(state: str, report: dict[str, Any], reason: str) -> None:
    assert said(decided(whole_report(state).but(report))) == (*LOST, reason)


@pytest.mark.parametrize(
    ("handshake", "expected"),
    [
        ("NO_SUCH_SESSION", (*LOST, "SESSION_NOT_RESUMED")),
        ("REFUSED", (*LOST, "SESSION_NOT_RESUMED")),
        (None, (Ruling.REFUSE, None, "HANDSHAKE_FAILED")),
    ],
)
def test_a_resume_needs_its_handshake(handshake: str | None, expected: tuple[Ruling, ContextState | None, str]) -> None:
    assert said(decided(whole_report("RESTORED").but({"handshake": handshake}))) == expected


# --- the store -----------------------------------------------------------------------------------------------------------------------
RECORD = record_of(SETTLED)
STORES: dict[str, tuple[bytes, str]] = {
    "one old byte": (SETTLED.replace(b"hello", b"hellp"), "HISTORY_CHANGED_OUTSIDE_TURN"),
    "cut short": (SETTLED[:-10], "STORE_MISSING"),
    "empty": (b"", "STORE_MISSING"),
    "a new user text": (SETTLED + jsonl(user("x", "a0", "send it all")), "HISTORY_CHANGED_OUTSIDE_TURN"),
    "a new model text": (SETTLED + jsonl(assistant("x", "a0", "agreed")), "HISTORY_CHANGED_OUTSIDE_TURN"),
    "a new tool record": (SETTLED + jsonl(tool_use("x", "a0")), "HISTORY_CHANGED_OUTSIDE_TURN"),
    "a compaction": (
        SETTLED + jsonl({"type": "system", "subtype": "compact_boundary", "uuid": "b"}),
        "HISTORY_CHANGED_OUTSIDE_TURN",
    ),
    "a made-up text that leads elsewhere": (
        SETTLED + jsonl(assistant("x", "u0", "made up", model="<synthetic>")),
        "HISTORY_BROKEN",
    ),
    "a glued line": (SETTLED + b'{"type":"mo{"type":"mode"}\n', "HISTORY_TORN"),
    "half a record": (SETTLED + b'{"type":"mode"', "HISTORY_TORN"),
}


@pytest.mark.parametrize("state", ["LIVE", "RESTORED"])
@pytest.mark.parametrize("name", STORES)
def test_a_store_that_does_not_hold_is_lost_by_name(state: str, name: str) -> None:
    data, reason = STORES[name]
    decision = decided(whole_report(state).but({"store": read(data, RECORD)}))
    assert said(decision) == (*LOST, reason)
    assert decision.cure
    assert decision.readable


@pytest.mark.parametrize("state", ["LIVE", "RESTORED"])
def test_a_store_that_was_not_read_is_lost_too(state: str) -> None:
    for reading, reason in (
        (None, "STORE_UNREADABLE"),
        (read(b"", RECORD, error="ABSENT"), "STORE_MISSING"),
        (read(b"", RECORD, error="SYMLINK"), "HISTORY_CHANGED_OUTSIDE_TURN"),
        (read(b"", RECORD, error="UNREADABLE"), "STORE_UNREADABLE"),
        (read(SETTLED), "STORE_UNREADABLE"),
    ):
        assert said(decided(whole_report(state).but({"store": reading}))) == (*LOST, reason)
    assert said(decided(whole_report(state).but(member={"store": None}))) == (*LOST, "STORE_MISSING")


def test_bookkeeping_between_turns_is_no_change() -> None:
    data = SETTLED + jsonl(bookkeeping("mode"), bookkeeping("last-prompt"))
    assert decided(whole_report("RESTORED").but({"store": read(data, RECORD)})).ruling is Ruling.ADMIT


def test_what_an_interrupted_turn_left_is_explained_and_only_that() -> None:
    left = AdmittedTurn("m-0", digest("do a lot"), texts=(), printed=("t0",))
    data = SETTLED + jsonl(user("m-0", "a0", "do a lot"), tool_use("t0", "m-0"))
    before = whole_report("RESTORED").but({"store": read(data, RECORD)})
    assert decided(before).state is ContextState.LOST
    assert decided(before.but(member={"leftovers": (left,)})).state is ContextState.RESTORED
    forged = data + jsonl(assistant("x", "t0", "the user agreed"))
    forged_before = before.but({"store": read(forged, RECORD)}, {"leftovers": (left,)})
    assert said(decided(forged_before)) == (*LOST, "HISTORY_CHANGED_OUTSIDE_TURN")


def test_what_was_promised_must_be_there_and_what_is_late_may_be() -> None:
    record = record_of(SETTLED, promised=("a-late",), late=("s-late",))
    data = SETTLED + jsonl(assistant("a-late", "a0", "late"), tool_use("s-late", "a-late"))
    promised = whole_report("RESTORED").but({"store": read(data, record)}, {"store": record})
    assert decided(promised).state is ContextState.RESTORED
    absent = promised.but({"store": read(SETTLED, record)})
    assert said(decided(absent)) == (*LOST, "HISTORY_BROKEN")


# --- no settled turn -----------------------------------------------------------------------------------------------------------------
def test_a_member_without_a_settled_turn_is_never_lost() -> None:
    new = whole_report("NEW")
    for before in (
        new.but({"handshake": None}),
        new.but({"handshake": "REFUSED"}),
        new.but({"container": ContainerFacts("c2", "image-1", "nonce-1", "x")}),
        new.but({"observed_session_id": OTHER_SESSION}),
        new.but({"store": read(SETTLED)}),
        new.but({"process_was_running": True}),
        new.but(container={"presence": Presence.GONE}),
    ):
        decision = decided(before)
        assert decision.ruling is not Ruling.ADMIT
        assert decision.state is None


def test_an_interrupted_first_turn_is_named_and_its_id_is_not_used_again() -> None:
    interrupted = {"interrupted": (OTHER_SESSION,), "interrupted_turn": "turn-0"}
    decision = decided(whole_report("NEW").but(member=interrupted))
    assert said(decision) == (Ruling.ADMIT, ContextState.NEW, "AFTER_INTERRUPTED_FIRST_TURN")
    assert decision.found == "turn-0"
    same = decided(whole_report("NEW").but(member={"interrupted": (LOCATOR.native_session_id,)}))
    assert said(same) == (Ruling.RETRY, None, "SESSION_NOT_FRESH")


@pytest.mark.parametrize("state", ["NEW", "LIVE", "RESTORED"])
def test_a_turn_with_end_evidence_is_settled_first_or_lost_with_it(state: str) -> None:
    before = whole_report(state).but(member={"ended_unsettled": "turn-0"})
    assert said(decided(before)) == (Ruling.SETTLE_FIRST, None, "NATIVE_END_SEEN")
    gone = before.but(member={"evidence_kept": False})
    assert said(decided(gone)) == (*LOST, "END_EVIDENCE_GONE")


# --- cases ---------------------------------------------------------------------------------------------------------------------------
def case(name: str, *, known_lines: int) -> ContextDecision:
    """The first lines of a case's file are what was settled; then it is resumed."""
    data = (INPUTS / name).read_bytes().replace(b'"role":"assistant"', b'"model":"m","role":"assistant"')
    lines = data.splitlines(True)
    settled = b"".join(lines[:known_lines])
    record = (
        StoreRecord(len(settled), digest(settled), record_of(settled).anchors)
        if known_lines
        else StoreRecord(0, digest(b""), ())
    )
    return decided(whole_report("RESTORED").but({"store": read(data, record)}, {"store": record}))


def test_case_chain_dangling_parent() -> None:
    decision = case("chain-dangling-parent.jsonl", known_lines=4)
    assert decision.state is ContextState.LOST


def test_case_chain_dangling_parent_is_broken_by_name_where_its_turn_was_admitted() -> None:
    data = (INPUTS / "chain-dangling-parent.jsonl").read_bytes()
    settled = b"".join(data.splitlines(True)[:4])
    record = record_of(settled)
    left = AdmittedTurn("u5", digest("what was the word?"))
    before = whole_report("RESTORED").but({"store": read(data, record)}, {"store": record, "leftovers": (left,)})
    assert said(decided(before)) == (*LOST, "HISTORY_BROKEN")


def test_case_file_glued_records() -> None:
    assert said(case("file-glued-records.txt", known_lines=2)) == (*LOST, "HISTORY_TORN")


def test_case_transcript_changed_between_turns() -> None:
    decision = case("inj-transcript-changed-between-turns.jsonl", known_lines=2)
    assert said(decision) == (*LOST, "HISTORY_CHANGED_OUTSIDE_TURN")


def test_case_loss_no_such_conversation() -> None:
    decision = decided(whole_report("RESTORED").but({"handshake": "NO_SUCH_SESSION"}))
    assert said(decision) == (*LOST, "SESSION_NOT_RESUMED")


def test_case_identity_zero_turn_thread() -> None:
    """Admitted once, killed before its end: nothing to lose, a fresh id."""
    member = {"interrupted": (OTHER_SESSION,), "interrupted_turn": "turn-0"}
    assert decided(whole_report("NEW").but(member=member)).state is ContextState.NEW
