"""Claude Code's transcripts: those of the recordings, the cases, and single rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_manager.agents.registry import agent_named
from sandbox_manager.core.values import RecordKind, StoreSegment
from tests.native.sandbox_side.recording import as_lines, load

AGENT = agent_named("claude-code")
INPUTS = Path(__file__).parents[2] / "cases" / "inputs"
K = RecordKind


def read(data: bytes, *, from_start: bool = True) -> StoreSegment:
    return AGENT.read_segment(data, from_start=from_start)


def kinds(segment: StoreSegment) -> str:
    return "".join(record.kind.name[0] for record in segment.records)


def short(uuids: tuple[str, ...]) -> list[str]:
    return [uuid[-4:] for uuid in uuids]


# --- recordings ----------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "session", "expected_kinds", "unreached"),
    [
        ("plain_two_turns", None, "BBUBBABBUAB", []),
        ("error_400_turn", None, "BBUBBABBUBBBUAB", []),
        ("error_retries_exhausted", None, "BBUBBBB", []),
        ("interrupt_stream", None, "BBUBBABBUATBBUAB", []),
        ("retry_then_success_workaround", None, "BBUBBABBUAB", []),
        ("fork", "022", "BBBUBBAUAB", []),
        ("retry_defect", None, "BBUBBABBUABBBUAB", ["A one"]),
        ("retry_defect_background_hole", None, "BBUBBABBUATTABBBUAB", ["calling", "A one"]),
    ],
)
def test_a_recorded_transcript(name: str, session: str | None, expected_kinds: str, unreached: list[str]) -> None:
    records = load(name).transcript(session)
    segment = read(as_lines(records))
    assert kinds(segment) == expected_kinds
    assert (segment.bad_lines, segment.torn_tail, segment.dangling, segment.chain_exit) == ((), False, None, None)
    chain = set(segment.chain)
    texts = [
        block["text"]
        for record in records
        if record["type"] == "assistant" and record["uuid"] not in chain
        for block in record["message"]["content"]
        if block["type"] == "text"
    ]
    assert texts == unreached


def test_the_chain_ends_at_the_first_message_and_begins_at_the_leaf() -> None:
    segment = read(as_lines(load("plain_two_turns").transcript()))
    assert segment.leaf == segment.chain[0] == segment.hanging[0]
    assert segment.chain[-1] == "aaaaaaaa-0000-4000-8000-000000000001"


def test_a_later_part_leaves_at_its_parent() -> None:
    records = load("plain_two_turns").transcript()
    segment = read(as_lines(records[6:]), from_start=False)
    assert segment.chain_exit == records[5]["uuid"]
    assert segment.dangling is None


def test_below_a_failed_turn_hang_its_error_records() -> None:
    segment = read(as_lines(load("error_retries_exhausted").transcript()))
    assert short(segment.hanging) == ["0020", "bb9e", "1423", "d497"]


# --- cases ---------------------------------------------------------------------------------------------------------------------------
def test_case_chain_dangling_parent() -> None:
    segment = read((INPUTS / "chain-dangling-parent.jsonl").read_bytes())
    assert (segment.leaf, segment.chain, segment.dangling) == ("u6", ("u6", "u5"), "ghost-9")


def test_case_file_glued_records() -> None:
    segment = read((INPUTS / "file-glued-records.txt").read_bytes())
    assert segment.bad_lines == (3,)
    assert [record.uuid for record in segment.records] == ["u1", "u2", "u4"]
    assert segment.dangling == "u3"


def test_case_transcript_changed_between_turns_shows_a_new_user_text() -> None:
    data = (INPUTS / "inj-transcript-changed-between-turns.jsonl").read_bytes()
    known = sum(len(line) for line in data.splitlines(True)[:2])
    segment = read(data[known:], from_start=False)
    assert [record.kind for record in segment.records] == [K.USER]


# --- kinds ---------------------------------------------------------------------------------------------------------------------------
def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "user", "uuid": "x", "parentUuid": None, "message": {"role": "user", "content": content}, **more}


def model(content: Any, name: str = "m", **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "model": name, "content": content}
    return {"type": "assistant", "uuid": "x", "parentUuid": None, "message": message, **more}


TEXT = {"type": "text", "text": "t"}


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        (user("plain"), K.USER),
        (user([TEXT]), K.USER),
        (user([TEXT, {"type": "text", "text": ""}]), K.USER),
        (user([TEXT], origin={"kind": "task-notification"}), K.USER),
        (user([{"type": "tool_result", "tool_use_id": "t", "content": "x"}]), K.TOOL),
        (user([TEXT, {"type": "tool_result", "tool_use_id": "t", "content": "x"}]), K.TOOL),
        (user([TEXT], isMeta=True), K.TOOL),
        (user([TEXT], isCompactSummary=True), K.TOOL),
        (user([TEXT], isSidechain=True), K.TOOL),
        (user([{"type": "text", "text": "[Request interrupted by user]"}]), K.TOOL),
        (user([{"type": "text", "text": "[Request interrupted by user] and do this"}]), K.USER),
        (user([{"type": "image"}]), K.FOREIGN),
        (user([]), K.FOREIGN),
        (user(None), K.FOREIGN),
        (user([1]), K.FOREIGN),
        (model([TEXT]), K.ASSISTANT),
        (model("plain"), K.ASSISTANT),
        (model([{"type": "tool_use"}]), K.TOOL),
        (model([{"type": "thinking", "thinking": "x"}]), K.TOOL),
        (model([{"type": "text", "text": ""}]), K.TOOL),
        (model([{"type": "text", "text": " \n "}]), K.TOOL),
        (model([TEXT], "<synthetic>"), K.BOOKKEEPING),
        (model([TEXT], isSidechain=True), K.TOOL),
        (model(5), K.FOREIGN),
        ({**model([TEXT]), "message": {"role": "user", "content": [TEXT]}}, K.FOREIGN),
        ({"type": "system", "subtype": "api_error", "uuid": "x"}, K.BOOKKEEPING),
        ({"type": "system", "subtype": "compact_boundary", "uuid": "x"}, K.NEW_BASE),
        ({"type": "attachment", "uuid": "x"}, K.BOOKKEEPING),
        ({"type": "queue-operation"}, K.BOOKKEEPING),
        ({"type": "last-prompt"}, K.BOOKKEEPING),
        ({"type": "mode"}, K.BOOKKEEPING),
        ({"type": "user", "message": {"role": "user", "content": "no uuid"}}, K.FOREIGN),
        ({"type": "custom-title"}, K.FOREIGN),
        ({"type": "api-request-started", "uuid": "x"}, K.FOREIGN),
        ({"type": 5}, K.FOREIGN),
        ({}, K.FOREIGN),
    ],
)
def test_a_record_is_of_its_kind(record: dict[str, Any], kind: RecordKind) -> None:
    assert read(as_lines([record])).records[0].kind is kind


# --- chain ---------------------------------------------------------------------------------------------------------------------------
def test_records_of_one_answer_stay_together_when_tools_run_in_parallel() -> None:
    def block(uuid: str, parent: str, content: dict[str, Any]) -> dict[str, Any]:
        record = model([content], uuid=uuid, parentUuid=parent)
        record["message"]["id"] = "msg_1"
        return record

    records = [
        user([TEXT], uuid="u"),
        block("a1", "u", {"type": "tool_use", "id": "t1"}),
        block("a2", "a1", TEXT),
        user([{"type": "tool_result", "tool_use_id": "t1"}], uuid="r1", parentUuid="a1"),
        model([TEXT], uuid="a3", parentUuid="r1"),
    ]
    segment = read(as_lines(records))
    assert segment.chain == ("a3", "r1", "a1", "u", "a2")


def test_a_side_chain_record_is_no_leaf() -> None:
    records = [user([TEXT], uuid="u"), model([TEXT], uuid="side", parentUuid="u", isSidechain=True)]
    assert read(as_lines(records)).leaf == "u"


def test_a_loop_of_parents_reaches_no_beginning() -> None:
    records = [user([TEXT], uuid="u", parentUuid="a"), model([TEXT], uuid="a", parentUuid="u")]
    segment = read(as_lines(records))
    assert (segment.chain, segment.dangling) == (("a", "u"), "a")


def test_a_record_that_is_appended_again_counts_as_it_stands_last() -> None:
    records = [
        user([TEXT], uuid="u"),
        model([TEXT], uuid="a", parentUuid="ghost"),
        model([TEXT], uuid="a", parentUuid="u"),
    ]
    assert read(as_lines(records)).chain == ("a", "u")


def test_a_part_without_texts_has_no_leaf_and_nothing_hanging() -> None:
    segment = read(as_lines([{"type": "mode"}]), from_start=False)
    assert (segment.leaf, segment.chain, segment.hanging, segment.chain_exit) == (None, (), (), None)


# --- bytes ---------------------------------------------------------------------------------------------------------------------------
def test_a_torn_tail_is_said_and_not_read() -> None:
    data = as_lines([user([TEXT], uuid="u")])
    segment = read(data + data[:-1])
    assert segment.torn_tail
    assert len(segment.records) == 1
    assert not read(data).torn_tail
    assert not read(b"").torn_tail


def test_an_empty_or_binary_line_is_a_bad_line() -> None:
    good = as_lines([{"type": "mode"}])
    assert read(good + b"\n" + b"\xff\x00\n" + b"[]\n" + good).bad_lines == (2, 3, 4)


@given(st.binary(max_size=300), st.booleans())
def test_no_bytes_raise(data: bytes, from_start: bool) -> None:
    read(data, from_start=from_start)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["user", "assistant", "system", "u", "a", "text", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "uuid", "parentUuid", "message", "role", "content", "model", "id", "text", "isMeta"]
            ),
            inner,
            max_size=6,
        )
    ),
    max_leaves=12,
)


@given(st.lists(_VALUES, max_size=6))
def test_no_records_raise(values: list[Any]) -> None:
    read(b"".join(json.dumps(value).encode() + b"\n" for value in values))
