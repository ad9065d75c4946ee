"""What a recorded intent proves now, row by row, and what a call proves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from direct_agent.intents.observe import DiskWitness
from direct_agent.intents.pending import PendingCalls, key_of, unknown_calls, unresolved_calls
from direct_agent.intents.record import WriteIntent, decode, encode
from direct_agent.intents.verify import IntentState, Seen, prove, state_of
from direct_agent.tools.disk import Disk
from direct_agent.tools.workspace import Workspace
from direct_agent.transcript import AssistantMessage, RunState, ToolCall, ToolResult, UserMessage

SATISFIED, UNCHANGED, CONFLICT, UNKNOWN = IntentState
INTENT = WriteIntent("/w/a", "here", "disk", "/w/a", "before", "after", "utf-8", existed=True)
SEEN = Seen("here", "/w/a", "after", "utf-8")
OVERLAY = replace(INTENT, route="overlay", transport_id="editor-1")


@pytest.mark.parametrize(
    ("intent", "seen", "state"),
    [
        (INTENT, SEEN, SATISFIED),
        (INTENT, replace(SEEN, digest="before"), UNCHANGED),
        (INTENT, replace(SEEN, digest="other"), CONFLICT),
        (INTENT, replace(SEEN, encoding="utf-16-le"), CONFLICT),
        (INTENT, replace(SEEN, digest=None, encoding=None), UNKNOWN),
        (INTENT, replace(SEEN, host="there"), UNKNOWN),
        (INTENT, replace(SEEN, resolved_path="/w/b"), UNKNOWN),
        (INTENT, replace(SEEN, resolved_path=None), UNKNOWN),
        (replace(INTENT, version=2), SEEN, UNKNOWN),
        (replace(INTENT, path="a"), SEEN, UNKNOWN),
        (replace(INTENT, route="pigeon"), SEEN, UNKNOWN),
        (OVERLAY, replace(SEEN, transport_id="editor-1"), SATISFIED),
        (OVERLAY, replace(SEEN, transport_id="editor-2"), UNKNOWN),
        (OVERLAY, SEEN, UNKNOWN),
        (replace(OVERLAY, transport_id=""), replace(SEEN, transport_id=""), UNKNOWN),
        (replace(OVERLAY, transport_id=None), SEEN, UNKNOWN),
        (OVERLAY, replace(SEEN, transport_id="editor-1", digest=None), UNKNOWN),
    ],
)
def test_the_state_of_one_record(intent: WriteIntent, seen: Seen, state: IntentState) -> None:
    assert state_of(intent, seen) is state


def test_a_call_is_satisfied_only_if_every_path_is_by_its_later_record() -> None:
    one, two = INTENT, replace(INTENT, path="/w/b", resolved_path="/w/b")
    there = {"/w/a": SEEN, "/w/b": replace(SEEN, resolved_path="/w/b", digest="before")}
    proof = prove([encode(two), encode(one)], lambda intent: there[intent.path])
    assert not proof.is_satisfied
    assert proof.states == (("/w/a", SATISFIED), ("/w/b", UNCHANGED))
    later = replace(two, after="before")
    assert prove([encode(two), encode(one), encode(later)], lambda intent: there[intent.path]).is_satisfied


@pytest.mark.parametrize(
    "raw",
    [
        '{"version":99,"future":"x"}',
        "no json",
        "[]",
        *(json.dumps({**json.loads(encode(INTENT)), name: None}) for name in ("path", "host", "after")),
        json.dumps({**json.loads(encode(INTENT)), "version": True}),
    ],
)
def test_one_record_that_cannot_be_read_leaves_the_call_without_proof(raw: str) -> None:
    assert decode(raw) is None
    proof = prove([encode(INTENT), raw], lambda _: SEEN)
    assert not proof.is_satisfied
    assert proof.states == ()


def test_no_record_at_all_proves_nothing() -> None:
    assert not prove([], lambda _: SEEN).is_satisfied


def test_an_intent_is_read_back_as_it_was() -> None:
    assert decode(encode(OVERLAY)) == OVERLAY


# --- on a real disk ------------------------------------------------------------------------------------------------------------------
@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a.txt").write_text("old")
    return tmp_path / "work"


def witness_and_intent(work: Path, path: str = "a.txt", after: str = "new", **changes: Any) -> tuple[DiskWitness, str]:
    disk = Disk(Workspace(work), work.parent)
    witness = DiskWitness(disk, "here")
    return witness, encode(replace(witness.intent(disk.change(path, after)), **changes))


def test_the_disk_tells_before_after_and_neither(work: Path) -> None:
    witness, raw = witness_and_intent(work)
    states = []
    for text in ("old", "new", "else"):
        (work / "a.txt").write_text(text)
        states.append(prove([raw], witness.look).states[0][1])
    (work / "a.txt").unlink()
    states.append(prove([raw], witness.look).states[0][1])
    assert states == [UNCHANGED, SATISFIED, CONFLICT, UNKNOWN]


def test_a_link_that_now_leads_elsewhere_proves_nothing_even_with_the_right_text(work: Path) -> None:
    (work / "b.txt").write_text("new")
    (work / "link").symlink_to("a.txt")
    witness, raw = witness_and_intent(work, "link")
    (work / "link").unlink()
    (work / "link").symlink_to("b.txt")
    assert prove([raw], witness.look).states == ((str(work / "link"), UNKNOWN),)


def test_a_path_that_is_no_longer_permitted_proves_nothing(work: Path) -> None:
    witness, raw = witness_and_intent(work)
    (work / "a.txt").unlink()
    (work.parent / "outside.txt").write_text("new")
    (work / "a.txt").symlink_to("../outside.txt")
    assert prove([raw], witness.look).states[0][1] is UNKNOWN


def test_the_same_text_in_another_encoding_is_a_conflict(work: Path) -> None:
    witness, raw = witness_and_intent(work)
    (work / "a.txt").write_bytes(b"\xef\xbb\xbfnew")
    assert prove([raw], witness.look).states[0][1] is CONFLICT


# --- which calls are pending ---------------------------------------------------------------------------------------------------------
def test_the_same_call_is_known_whatever_the_order_of_its_arguments() -> None:
    one = ToolCall("c1", "write", '{"path": "a", "content": "x"}')
    pending = PendingCalls([one])
    assert pending.same_as(ToolCall("c9", "write", '{"content":"x","path":"a"}')) == (one,)
    assert pending.same_as(ToolCall("c9", "edit", one.arguments)) == ()
    assert pending.same_as(ToolCall("c9", "write", '{"content":"y","path":"a"}')) == ()
    assert key_of(ToolCall("c", "shell", '{"cut":')).arguments == '{"cut":'
    assert not PendingCalls()


def test_calls_without_a_result_and_calls_with_an_unknown_one_are_told_apart() -> None:
    calls = tuple(ToolCall(f"c{number}", "shell", "{}") for number in range(4))
    transcript = (
        UserMessage("go"),
        AssistantMessage(tool_calls=calls),
        ToolResult("c0", "shell", "done", RunState.COMPLETED),
        ToolResult("c1", "shell", "?", RunState.UNKNOWN),
        ToolResult("c2", "shell", "no", RunState.NOT_STARTED),
    )
    assert unresolved_calls(transcript) == (calls[3],)
    assert unknown_calls(transcript) == (calls[1],)


def test_an_id_that_comes_twice_is_two_calls() -> None:
    first, second = ToolCall("c0", "shell", '{"command":"a"}'), ToolCall("c0", "shell", '{"command":"b"}')
    transcript = (
        AssistantMessage(tool_calls=(first,)),
        ToolResult("c0", "shell", "done", RunState.COMPLETED),
        AssistantMessage(tool_calls=(second,)),
    )
    assert unresolved_calls(transcript) == (second,)
