"""Codex's rollouts: those that were recorded, settled turn by turn, and single rules; and what no resume would have noticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_manager.agents.codex.tap_reader import end_uuid, item_uuid, text_digest
from sandbox_manager.core.store_check import AdmittedTurn, StoreCheck, check_store
from sandbox_manager.core.values import AssistantText, RecordKind, StoreReading, StoreRecord, StoreSegment
from tests.native.sandbox_side.codex_recording import (
    AGENT,
    CAPTURES,
    activations,
    as_line,
    as_lines,
    rollout,
    rows,
    uncut,
)

ROLLOUTS = CAPTURES / "rollouts"
K = RecordKind


def read(data: bytes, *, from_start: bool = True) -> StoreSegment:
    return AGENT.read_segment(data, from_start=from_start)


def records(name: str) -> list[dict[str, Any]]:
    return [uncut(json.loads(line)) for line in (ROLLOUTS / f"{name}.jsonl").read_bytes().split(b"\n")[:-1]]


def kinds(segment: StoreSegment) -> str:
    """One letter a record, bookkeeping left out."""
    return "".join(one.kind.name[0] for one in segment.records if one.kind is not K.BOOKKEEPING)


# --- recordings --------------------------------------------------------------------------------------------------------------------
RECORDED = {
    "plain_two_turns": "TTUAUA",
    # the list of tools, the instructions, the environment; a call and its result, twice
    "code_mode_and_async_message": "TTTTUATTTTAUA",
    "error_400_turn": "TTUAUUA",  # the failed turn's message stays, its partial reply does not
    "retry_two_replies_in_one_turn": "TTUAUAAUA",
}


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_rollout_is_whole_and_all_of_it_is_on_the_chain(name: str) -> None:
    segment = read(as_lines(rollout(name)))
    assert kinds(segment) == RECORDED[name]
    assert (segment.bad_lines, segment.torn_tail, segment.dangling, segment.chain_exit) == ((), False, None, None)
    assert len(segment.chain) == len(segment.records)
    assert segment.leaf == segment.chain[0]
    assert segment.hanging == (f"ordinal:{len(segment.records) - 1}",)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # m-1..m-3; m-4 with m-5 steered into it; a compaction of its own; m-7
        ("steer_compact", "TTUAUAUAUUANUA"),
        # a reply; a call that was too long; a compaction before the message, one between two calls
        ("compactions_in_turns", "TTUAUNUAUATTNAUA"),
        # one reply; an interrupt; a kill in a tool; a reply; SIGTERM; a tool that goes on; a failed call; a skill named in the text
        ("interrupt_kill_background", "TTUAUTUATUAUTUATTAUUTA"),
    ],
)
def test_what_was_tried_with_the_real_cli_reads_as_what_it_is(name: str, expected: str) -> None:
    segment = read(as_lines(records(name)))
    assert kinds(segment) == expected
    assert (segment.bad_lines, segment.dangling) == ((), None)


def test_a_printed_text_and_its_record_have_the_same_name_and_digest() -> None:
    for name in RECORDED:
        printed = {text.uuid: text.text_digest for one in activations(name) for text in one.findings().assistant}
        stored = {
            one.uuid: one.text_digests[0] for one in read(as_lines(rollout(name))).records if one.kind is K.ASSISTANT
        }
        assert printed == stored


def test_a_users_record_has_the_id_that_its_message_was_sent_with() -> None:
    users = [one.uuid for one in read(as_lines(rollout("plain_two_turns"))).records if one.kind is K.USER]
    assert users == ["msg-1", "msg-2"]


def test_every_recording_with_a_rollout_is_read_here() -> None:
    with_rollout = {
        path.stem for path in CAPTURES.glob("*.jsonl") if any(row["dir"] == "rollout" for row in rows(path.stem))
    }
    assert with_rollout == {*RECORDED, "fork"}


def test_a_fork_goes_on_where_its_source_was_left() -> None:
    source, fork = (rollout("fork", thread) for thread in _threads("fork"))
    assert (kinds(read(as_lines(source))), kinds(read(as_lines(fork)))) == ("TTUAUA", "UA")
    segment = read(as_lines(fork))
    assert segment.records[0].session_id != read(as_lines(source)).records[0].session_id
    assert (segment.dangling, len(segment.chain)) == (None, len(segment.records))
    segment = read(as_lines(records("fork_of_steer_compact")))
    assert (segment.dangling, segment.hanging) == (None, ("ordinal:66",))
    without_base = [{**fork[0], "payload": {**fork[0]["payload"], "history_base": None}}, *fork[1:]]
    assert read(as_lines(without_base)).dangling is not None


def _threads(name: str) -> list[str]:
    files = dict.fromkeys(row["file"] for row in rows(name) if row["dir"] == "rollout")
    return [file.removesuffix(".jsonl")[-36:] for file in files]


def test_what_is_printed_of_a_text_is_what_counts_of_it() -> None:
    segment = read(as_lines(records("texts")))
    found = {str(one.uuid).split("/")[1]: one.text_digests for one in segment.records if one.kind is K.ASSISTANT}
    assert found["w2"] == (text_digest("a  b"),)  # a citation is taken out before it is printed
    assert found["w3"] == (text_digest("part one part two"),)
    assert found["w9"] == (text_digest(""),)
    assert (found["wA"], found["wA#2"]) == ((text_digest("x"),), (text_digest("y"),))
    assert len({one.uuid for one in segment.records}) == len(segment.records)


# --- a conversation, settled turn by turn ------------------------------------------------------------------------------------------
@dataclass
class Settled:
    """A rollout as far as it was settled."""

    data: bytes = b""
    record: StoreRecord | None = None
    leftovers: tuple[AdmittedTurn, ...] = ()
    thread: str = ""

    def reading(self, data: bytes) -> StoreReading:
        known = len(self.data)
        return StoreReading(
            error=None,
            length=len(data),
            digest=hashlib.sha256(data).hexdigest(),
            prefix_length=known,
            prefix_digest=hashlib.sha256(data[:known]).hexdigest() if len(data) >= known else None,
            segment=read(data[known:], from_start=known == 0),
        )

    def check(self, data: bytes, current: AdmittedTurn | None = None) -> StoreCheck:
        return check_store(
            self.record, self.reading(data), session_id=self.thread, leftovers=self.leftovers, current=current
        )

    def settle(self, data: bytes, current: AdmittedTurn) -> StoreCheck:
        found = self.check(data, current)
        assert (found.reasons, found.promised, found.late) == ((), (), ())
        self.data, self.record, self.leftovers = data, found.record, ()
        return found


def turns_of(rows_: list[dict[str, Any]]) -> list[tuple[AdmittedTurn, int, bool]]:
    """Each turn of a rollout as it was admitted and printed, the number of records up to its end, and whether it has an end."""
    found = []
    starts = [n for n, row in enumerate(rows_) if row["payload"].get("type") == "task_started"]
    for number, start in enumerate(starts):
        stop = starts[number + 1] if number + 1 < len(starts) else len(rows_)
        part, turn_id = rows_[start:stop], rows_[start]["payload"]["turn_id"]
        items = [row["payload"]["item"] for row in part if row["payload"].get("type") == "item_completed"]
        users = [item for item in items if item["type"] == "UserMessage"]
        times: dict[str, int] = {}
        texts = []
        for item in items:
            if item["type"] == "AgentMessage" and item.get("delivery") is None:
                seen = times.get(item["id"], 0)
                times[item["id"]] = seen + 1
                text = "".join(one["text"] for one in item["content"])
                texts.append(AssistantText(item_uuid(turn_id, item["id"], seen), text_digest(text)))
        is_ended = any(row["payload"].get("type") in ("task_complete", "turn_aborted") for row in part)
        printed = [text.uuid for text in texts if text.uuid] + ([end_uuid(turn_id)] if is_ended else [])
        for user in users or [None]:
            message = user["client_id"] if user else "a native command"
            digest = text_digest(user["content"][0]["text"]) if user else "none"
            bases = tuple(item_uuid(turn_id, item["id"], 0) for item in items if item["type"] == "ContextCompaction")
            found.append((AdmittedTurn(message, digest, tuple(texts), tuple(printed), bases), stop, is_ended))
    return found


def test_every_turn_of_what_was_tried_settles_and_a_killed_one_is_explained_by_the_next() -> None:
    rows_ = records("interrupt_kill_background")
    settled = Settled(thread=rows_[0]["payload"]["id"])
    outcomes = []
    for turn, stop, is_ended in turns_of(rows_):
        data = as_lines(rows_[:stop])
        if is_ended:
            settled.settle(data, turn)
        else:
            settled.leftovers = (*settled.leftovers, turn)
            assert settled.check(data).reasons == ()  # what the kill left is no foreign history
        outcomes.append((turn.message_id, is_ended))
    assert outcomes == [(f"m-{n}", n != 3) for n in range(1, 9)]


def test_a_steered_message_and_a_compaction_are_explained_by_what_was_admitted_and_printed() -> None:
    rows_ = records("steer_compact")
    settled = Settled(thread=rows_[0]["payload"]["id"])
    for turn, stop, _ in turns_of(rows_):
        if turn.message_id == "m-4":
            settled.leftovers = (turn,)  # m-5 went into its turn: both are admitted, one end settles them
        elif turn.message_id == "a native command":
            compaction = turn
            settled.leftovers = (turn,)
            assert settled.check(as_lines(rows_[:stop])).reasons == ()
        else:
            settled.settle(as_lines(rows_[:stop]), turn)
    assert len(compaction.bases or ()) == 1


def test_a_list_of_tools_belongs_to_the_turn_it_stands_in() -> None:
    rows_ = rollout("code_mode_and_async_message")
    settled = Settled(thread=rows_[0]["payload"]["id"])
    for turn, stop, _ in turns_of(rows_):
        settled.settle(as_lines(rows_[:stop]), turn)
    (tools,) = [row for row in rows_ if row["payload"].get("type") == "additional_tools"]
    outside = as_lines([*rows_, {**tools, "ordinal": rows_[-1]["ordinal"] + 1}])
    assert [reason.code for reason in settled.check(outside).reasons] == ["HISTORY_CHANGED_OUTSIDE_TURN"]


def test_compactions_in_turns_settle_with_them() -> None:
    rows_ = records("compactions_in_turns")
    settled = Settled(thread=rows_[0]["payload"]["id"])
    turns = turns_of(rows_)
    for turn, stop, _ in turns:
        settled.settle(as_lines(rows_[:stop]), turn)
    assert [len(turn.bases or ()) for turn, _, _ in turns] == [0, 0, 1, 1, 0]


def test_an_answer_that_its_compaction_does_not_carry_on_is_a_models_text() -> None:
    rows_ = records("compactions_in_turns")
    at = next(n for n, row in enumerate(rows_) if row["type"] == "compacted")
    changed = {**rows_[at], "payload": {**rows_[at]["payload"], "message": "another summary"}}
    segment = read(as_lines([*rows_[:at], changed]))
    assert kinds(segment) == "TTUAUAN"


def test_a_compaction_that_was_not_printed_explains_nothing() -> None:
    rows_ = records("steer_compact")
    stop = next(n for n, row in enumerate(rows_) if row["type"] == "compacted") + 1
    settled = Settled(thread=rows_[0]["payload"]["id"])
    for turn, end, _ in turns_of(rows_)[:3]:
        settled.settle(as_lines(rows_[:end]), turn)
    settled.leftovers = tuple(turn for turn, _, _ in turns_of(rows_)[3:5])
    found = settled.check(as_lines(rows_[:stop]))
    assert [reason.code for reason in found.reasons] == ["HISTORY_CHANGED_OUTSIDE_TURN"]


# --- what thread/resume would not have said ------------------------------------------------------------------------------------------
def two_turns() -> tuple[Settled, list[dict[str, Any]]]:
    rows_ = rollout("plain_two_turns")
    settled = Settled(thread=rows_[0]["payload"]["id"])
    for turn, stop, _ in turns_of(rows_):
        settled.settle(as_lines(rows_[:stop]), turn)
    return settled, rows_


def _drop(match: Callable[[dict[str, Any]], bool]) -> Callable[[list[dict[str, Any]]], bytes]:
    def change(rows_: list[dict[str, Any]]) -> bytes:
        at = max(n for n, row in enumerate(rows_) if match(row))
        return as_lines(rows_[:at] + rows_[at + 1 :])

    return change


def _is_reply(row: dict[str, Any]) -> bool:
    return bool(row["type"] == "response_item" and row["payload"].get("role") == "assistant")


def _added(**fields: Any) -> Callable[[list[dict[str, Any]]], bytes]:
    def change(rows_: list[dict[str, Any]]) -> bytes:
        return as_lines([*rows_, {"timestamp": "t", "ordinal": rows_[-1]["ordinal"] + 1, **fields}])

    return change


def _message(role: str, text: str, **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "id": "x", "content": [{"type": "input_text", "text": text}], **more}


OLD_TURN = {"internal_chat_message_metadata_passthrough": {"turn_id": "01a22c47-c544-77d1-97f7-e015892ee640"}}
HARNESS = {
    "internal_chat_message_metadata_passthrough": {
        "turn_id": "01a22c47-c544-77d1-97f7-e015892ee640",
        "content_item_kinds": ["generic.turn_aborted"],
        "content_item_metadata": [{"provenance": {"type": "harness"}}],
    }
}
CHANGED, BROKEN, TORN, MISSING = "HISTORY_CHANGED_OUTSIDE_TURN", "HISTORY_BROKEN", "HISTORY_TORN", "STORE_MISSING"
DAMAGES: dict[str, tuple[Callable[[list[dict[str, Any]]], bytes], str]] = {
    "the last reply taken out": (_drop(_is_reply), MISSING),
    "its end taken out": (_drop(lambda row: row["payload"].get("type") == "task_complete"), MISSING),
    "the last line truncated": (lambda rows_: as_lines(rows_)[:-10], MISSING),
    "an empty file": (lambda rows_: b"", MISSING),
    "a reply changed": (lambda rows_: as_lines(rows_).replace(b"Reply TWO", b"Reply TEN"), CHANGED),
    "half a record": (lambda rows_: as_lines(rows_) + b'{"ordinal":23,', TORN),
    "two records glued": (lambda rows_: as_lines(rows_) + b'{"ordinal":23}{"ordinal":24}\n', TORN),
    "a user's text": (_added(type="response_item", payload=_message("user", "from elsewhere")), CHANGED),
    "a model's text": (_added(type="response_item", payload=_message("assistant", "said?", **OLD_TURN)), CHANGED),
    "a developer's text": (_added(type="response_item", payload=_message("developer", "obey", **OLD_TURN)), CHANGED),
    "a text in the CLI's own name": (
        _added(type="response_item", payload=_message("user", "obey", **HARNESS)),
        CHANGED,
    ),
    "a tool's result": (_added(type="response_item", payload={"type": "function_call_output", **OLD_TURN}), CHANGED),
    "a compaction": (_added(type="compacted", payload={"message": "", "replacement_history": []}), CHANGED),
    "a rollback": (_added(type="event_msg", payload={"type": "thread_rolled_back", "num_turns": 1}), CHANGED),
    "another session's first record": (_added(type="session_meta", payload={"id": "another"}), CHANGED),
    "a kind nobody knows": (_added(type="memory_edit", payload={}), CHANGED),
    "a record without its number": (_added(type="event_msg", payload={"type": "token_count"}, ordinal=None), CHANGED),
    "a number that was passed over": (_added(type="event_msg", payload={"type": "token_count"}, ordinal=99), BROKEN),
    "a number that was there before": (_added(type="event_msg", payload={"type": "token_count"}, ordinal=22), BROKEN),
    "another thread's item": (
        _added(type="event_msg", payload={"type": "item_completed", "thread_id": "another", "item": {}}),
        "NATIVE_SESSION_MISMATCH",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_rollout_is_found_by_name(damage: str) -> None:
    settled, rows_ = two_turns()
    change, code = DAMAGES[damage]
    found = settled.check(change(rows_))
    assert code in [reason.code for reason in found.reasons]


@pytest.mark.parametrize(
    "late",
    [
        {
            "type": "item_completed",
            "turn_id": "01a22c47-c544-77d1-97f7-e015892ee640",
            "item": {"type": "CommandExecution"},
        },
        {"type": "thread_settings_applied"},
        {"type": "token_count"},
    ],
)
def test_bookkeeping_after_a_turn_is_no_change_and_the_next_part_hangs_below_it(late: dict[str, Any]) -> None:
    settled, rows_ = two_turns()
    data = _added(type="event_msg", payload=late)(rows_)
    assert settled.check(data).reasons == ()
    after = [*rows_, {"ordinal": rows_[-1]["ordinal"] + 1, "type": "event_msg", "payload": late}]
    more = _added(type="event_msg", payload={"type": "token_count"})(after)
    assert settled.check(more).reasons == ()


def test_a_reply_whose_turn_was_not_closed_is_not_reached() -> None:
    rows_ = rollout("plain_two_turns")
    settled = Settled(thread=rows_[0]["payload"]["id"])
    (first, stop, _), _ = turns_of(rows_)
    found = settled.check(as_lines(rows_[: stop - 1]), first)
    assert [reason.code for reason in found.reasons] == [BROKEN]
    assert settled.check(as_lines(rows_[:stop]), first).reasons == ()


def test_a_text_that_was_printed_and_is_not_written_yet_is_promised() -> None:
    rows_ = rollout("plain_two_turns")
    settled = Settled(thread=rows_[0]["payload"]["id"])
    (first, _, _), _ = turns_of(rows_)
    at = next(n for n, row in enumerate(rows_) if _is_reply(row))
    found = settled.check(as_lines(rows_[:at]), first)
    assert (found.reasons, found.promised) == ((), tuple(text.uuid for text in first.texts or ()))


def test_a_text_that_differs_from_what_was_printed_is_found() -> None:
    rows_ = rollout("plain_two_turns")
    settled = Settled(thread=rows_[0]["payload"]["id"])
    (first, stop, _), _ = turns_of(rows_)
    data = as_lines(rows_[:stop]).replace(b'"text":"Reply ONE', b'"text":"Reply TWO')
    assert CHANGED in [reason.code for reason in settled.check(data, first).reasons]


def test_a_message_whose_two_records_differ_is_not_the_admitted_one() -> None:
    """The model's history says another text than the user interface's, which carries our id."""
    rows_ = rollout("plain_two_turns")
    at = next(n for n, row in enumerate(rows_) if row["type"] == "response_item" and "Hello ONE" in json.dumps(row))
    changed = json.loads(json.dumps(rows_[at]).replace("Hello ONE", "Hello TEN"))
    settled = Settled(thread=rows_[0]["payload"]["id"])
    (first, stop, _), _ = turns_of(rows_)
    found = settled.check(as_lines([*rows_[:at], changed, *rows_[at + 1 : stop]]), first)
    assert CHANGED in [reason.code for reason in found.reasons]


def test_two_equal_messages_are_two() -> None:
    rows_ = records("texts")
    users = [one.uuid for one in read(as_lines(rows_)).records if one.kind is K.USER]
    assert users[-2:] == ["a", "b"]
    assert len(set(users)) == len(users)


@given(st.binary(max_size=400), st.booleans())
def test_no_bytes_make_it_raise(data: bytes, from_start: bool) -> None:
    read(data, from_start=from_start)


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["type", "ordinal", "payload", "metadata"]),
            st.none() | st.integers() | st.text() | st.lists(st.none()) | st.dictionaries(st.text(), st.none()),
        ),
        max_size=4,
    )
)
def test_no_records_make_it_raise(found: list[dict[str, Any]]) -> None:
    segment = read(b"".join(as_line(one) for one in found))
    assert len(segment.records) + len(segment.bad_lines) == len(found)
