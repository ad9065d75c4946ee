"""The session file: durable, append-only, one writer; half records are kept apart, damage is refused, what is unknown is kept."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from direct_agent.session import journal as journal_module
from direct_agent.session.errors import SessionError, SessionWriteError
from direct_agent.session.records import RawRecord, Record, compaction_data, decode, message_data
from direct_agent.session.session import Session, SessionFolder
from direct_agent.transcript import (
    AssistantMessage,
    Finish,
    Message,
    Opaque,
    Reasoning,
    ReasoningKind,
    ReasoningState,
    RunState,
    ToolCall,
    ToolResult,
    UserMessage,
)

ID = "s-1"
ANSWER = AssistantMessage(
    "text \ud800 \u2028",
    (Reasoning(ReasoningKind.THINKING, "why", "sig"), Reasoning(ReasoningKind.ITEM, raw_json='{"a":1}')),
    ReasoningState.COMPLETE,
    (ToolCall("c1", "write", '{"path":"a"}'),),
    (Opaque("search", '{"b":2}'),),
    Finish.TOOL_CALLS,
)


@pytest.fixture
def folder(tmp_path: Path) -> SessionFolder:
    return SessionFolder(tmp_path)


@pytest.fixture
def session(folder: SessionFolder) -> Iterator[Session]:
    made = folder.create(ID, cwd="/w", agent_version="1")
    yield made
    made.close()


async def add(session: Session, *messages: Message, **ids: str) -> tuple[str, ...]:
    return await session.append(*(("message", message_data(message), ids.get("id")) for message in messages))


async def turn(session: Session, message_id: str, text: str, outcome: str = "completed") -> None:
    await add(session, UserMessage(text), id=message_id)
    await add(session, AssistantMessage(f"answer to {text}"))
    await session.append(("end", {"message_id": message_id, "outcome": outcome}, None))


def texts_of(messages: Sequence[Message]) -> list[str]:
    """What persons and host said."""
    return [message.text for message in messages if isinstance(message, UserMessage)]


def reopened(folder: SessionFolder, session: Session) -> Session:
    session.close()
    return folder.open(ID)


# --- what is written is what is read -----------------------------------------------------------------------------------------------
async def test_a_load_gives_the_history_that_grew(folder: SessionFolder, session: Session) -> None:
    await add(session, UserMessage("hello"), id="m1")
    await add(session, ANSWER, ToolResult("c1", "write", "done", RunState.COMPLETED))
    await session.append(("intent", {"call_id": "c1", "intent": '{"version":99,"future":"…"}'}, None))
    await session.append(("repair", {"record": '{"version":7}'}, None))
    grown = session.history
    again = reopened(folder, session)
    assert again.history.transcript == grown.transcript
    assert again.history.turns == grown.turns
    assert again.history.repairs == grown.repairs == ['{"version":7}']
    calls = again.history.transcript[1]
    assert isinstance(calls, AssistantMessage)
    assert calls.tool_calls[0].intents == ('{"version":99,"future":"…"}',)
    again.close()


async def test_the_file_only_grows_and_each_record_names_the_one_before(session: Session) -> None:
    before = session.path.read_bytes()
    for number in range(3):
        await turn(session, f"m{number}", "x")
        after = session.path.read_bytes()
        assert after.startswith(before)
        before = after
    records = [json.loads(line) for line in before.splitlines()]
    assert [record["parent"] for record in records] == [None, *(record["id"] for record in records[:-1])]


async def test_an_append_is_on_disk_before_it_returns(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    real = os.fsync

    def noted(fd: int) -> None:
        order.append("fsync")
        real(fd)

    monkeypatch.setattr("direct_agent.session.journal.os.fsync", noted)
    await add(session, UserMessage("hello"), id="m1")
    order.append("returned")
    assert order == ["fsync", "returned"]


async def test_a_cancelled_append_is_whole_and_known(folder: SessionFolder, session: Session) -> None:
    task = asyncio.create_task(add(session, UserMessage("hello"), id="m1"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "m1" in session.history.turns
    again = reopened(folder, session)
    assert "m1" in again.history.turns
    again.close()


# --- half records ------------------------------------------------------------------------------------------------------------------
async def test_half_a_record_at_every_byte_is_kept_apart_and_never_glued(
    folder: SessionFolder, session: Session
) -> None:
    await turn(session, "m1", "hello")
    whole = session.path.read_bytes()
    await add(session, UserMessage("lost \N{PARTY POPPER}"), id="m2")
    line = session.path.read_bytes()[len(whole) :]
    session.close()
    for cut in range(1, len(line)):
        session.path.write_bytes(whole + line[:cut])
        opened = folder.open(ID)
        assert list(opened.history.turns) == ["m1"]
        await add(opened, UserMessage("next"), id="m3")
        opened.close()
        assert session.path.read_bytes().startswith(whole)
        again = folder.open(ID)
        assert list(again.history.turns) == ["m1", "m3"]
        again.close()
    kept = session.path.with_name(f"{session.path.name}.torn").read_text().splitlines()
    assert [json.loads(entry)["length"] for entry in kept] == list(range(1, len(line)))


async def test_a_complete_line_that_is_no_record_is_refused_and_left_alone(
    folder: SessionFolder, session: Session
) -> None:
    await turn(session, "m1", "hello")
    session.close()
    lines = session.path.read_bytes().splitlines(keepends=True)
    glued = b"".join([*lines[:2], lines[2][:20] + lines[3], *lines[4:]])
    session.path.write_bytes(glued)
    with pytest.raises(SessionError) as refused:
        folder.open(ID)
    assert refused.value.cause == "SESSION_DAMAGED"
    assert session.path.read_bytes() == glued


# --- versions ----------------------------------------------------------------------------------------------------------------------
def raw(kind: str, **more: Any) -> bytes:
    return json.dumps({"v": 9, "kind": kind, "id": "x", "parent": None, "new": "…", **more}).encode() + b"\n"


async def test_a_record_of_another_kind_or_version_is_kept_byte_for_byte(
    folder: SessionFolder, session: Session
) -> None:
    await turn(session, "m1", "hello")
    session.close()
    with session.path.open("ab") as file:
        file.write(raw("intent") + raw("plan"))
    opened = folder.open(ID)
    assert opened.history.unread == 2
    await turn(opened, "m2", "more")
    opened.close()
    child = folder.fork(ID, "s-2")
    for path in (opened.path, child.path):
        assert raw("intent") + raw("plan") in path.read_bytes()
    child.close()


@pytest.mark.parametrize("kind", ["message", "compaction"])
async def test_a_message_of_a_newer_version_is_not_skipped(folder: SessionFolder, session: Session, kind: str) -> None:
    session.close()
    with session.path.open("ab") as file:
        file.write(raw(kind))
    with pytest.raises(SessionError) as refused:
        folder.open(ID)
    assert refused.value.cause == "SESSION_TOO_NEW"


def test_an_unknown_key_in_a_message_is_not_dropped() -> None:
    line = {
        "v": 1,
        "kind": "message",
        "id": "a",
        "parent": None,
        "data": {"message": {"role": "user", "text": "x", "new": 1}},
    }
    assert isinstance(decode(json.dumps(line).encode(), 1), RawRecord)


# --- one writer, no space ----------------------------------------------------------------------------------------------------------
def test_a_session_has_one_writer(folder: SessionFolder, session: Session) -> None:
    with pytest.raises(SessionError) as refused:
        folder.open(ID)
    assert refused.value.cause == "SESSION_IN_USE"


@pytest.mark.parametrize("session_id", ["nobody", "", "../s-1", "a/b", "a\x00"])
def test_a_session_that_is_not_there_is_refused(folder: SessionFolder, session_id: str) -> None:
    with pytest.raises(SessionError) as refused:
        folder.open(session_id)
    assert refused.value.cause == "NO_SUCH_SESSION"


async def test_without_space_the_file_is_as_before_and_goes_on_when_there_is_some(
    folder: SessionFolder, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    await turn(session, "m1", "hello")
    before = session.path.read_bytes()
    real = journal_module._write_all

    def full(fd: int, content: bytes, *_: Any) -> None:
        os.write(fd, content[:10])
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(journal_module, "_write_all", full)
    with pytest.raises(SessionWriteError) as refused:
        await add(session, UserMessage("more"), id="m2")
    assert refused.value.cause == "STORAGE_FULL"
    assert session.path.read_bytes() == before
    assert "m2" not in session.history.turns
    monkeypatch.setattr(journal_module, "_write_all", real)
    await turn(session, "m3", "again")
    again = reopened(folder, session)
    assert list(again.history.turns) == ["m1", "m3"]
    again.close()


async def test_after_a_failed_write_that_cannot_be_taken_back_nothing_more_is_written(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patched:
        patched.setattr("direct_agent.session.journal.os.fsync", broken)
        with pytest.raises(SessionWriteError):
            await add(session, UserMessage("more"), id="m2")
    with pytest.raises(SessionWriteError):
        await add(session, UserMessage("even more"), id="m3")


# --- fork --------------------------------------------------------------------------------------------------------------------------
async def test_a_fork_copies_up_to_the_newest_ended_turn_and_leaves_the_source_alone(
    folder: SessionFolder, session: Session
) -> None:
    await turn(session, "m1", "one")
    await turn(session, "m2", "two")
    await add(session, UserMessage("cut off"), id="m3")
    session.close()
    source = session.path.read_bytes()
    child = folder.fork(ID, "child")
    assert session.path.read_bytes() == source
    assert list(child.history.turns) == ["m1", "m2"]
    assert child.history.header is not None
    assert child.history.header.forked_from == ID
    lines = child.path.read_bytes().splitlines()
    assert lines[1:] == source.splitlines()[1 : len(lines)]
    child.close()
    earlier = folder.fork(ID, "earlier", after="m1")
    assert list(earlier.history.turns) == ["m1"]
    earlier.close()


async def test_a_fork_asked_for_again_is_the_same_child_and_no_other(folder: SessionFolder, session: Session) -> None:
    await turn(session, "m1", "one")
    session.close()
    child = folder.fork(ID, "child")
    await turn(child, "m2", "the child's")
    child.close()
    again = folder.fork(ID, "child")
    assert list(again.history.turns) == ["m1", "m2"]
    again.close()
    folder.create("other", cwd="/w", agent_version="1").close()
    with pytest.raises(SessionError) as refused:
        folder.fork(ID, "other")
    assert refused.value.cause == "SESSION_EXISTS"


async def test_a_fork_of_a_turn_that_did_not_end_is_refused(folder: SessionFolder, session: Session) -> None:
    await add(session, UserMessage("cut off"), id="m1")
    session.close()
    with pytest.raises(SessionError):
        folder.fork(ID, "child", after="m1")
    assert not folder.path_of("child").exists()


# --- compaction --------------------------------------------------------------------------------------------------------------------
async def test_a_compaction_is_summary_and_tail_and_agreements_verbatim(
    folder: SessionFolder, session: Session
) -> None:
    for number in range(3):
        await turn(session, f"m{number}", f"text {number}")
    agreements = "never <b>touch</b>  prod\n\n· 20 % at most"
    await session.append(("compaction", compaction_data("what was", "m2", agreements), None))
    again = reopened(folder, session)
    for history in (session.history, again.history):
        texts = texts_of(history.transcript)
        assert texts[0].endswith("what was")
        assert texts[1:] == ["text 2"]
        assert history.agreements == agreements
        assert list(history.turns) == ["m0", "m1", "m2"], "what was delivered stays known"
    assert b"text 0" in again.path.read_bytes(), "nothing is taken out of the file"
    again.close()


# --- what an interruption leaves open ----------------------------------------------------------------------------------------------
async def test_unsettled_is_everything_since_the_last_completed_turn(session: Session) -> None:
    await turn(session, "m1", "one")
    assert session.history.unsettled == ()
    await turn(session, "m2", "two", outcome="failed")
    await add(session, UserMessage("three"), id="m3")
    assert texts_of(session.history.unsettled) == ["two", "three"]


async def test_a_call_counts_as_started_only_by_its_own_record(session: Session) -> None:
    call = ToolCall("c1", "shell", "{}")
    await add(session, UserMessage("go"), AssistantMessage(tool_calls=(call,)))
    assert not session.history.has_started(call)
    await session.append(("started", {"call_id": "c1"}, None))
    assert session.history.has_started(call)
    await add(session, AssistantMessage(tool_calls=(call,)))
    assert not session.history.has_started(call), "the newest call of that id has not begun"


def test_records_are_read_or_kept_and_never_guessed() -> None:
    good = {"v": 1, "kind": "started", "id": "a", "parent": None, "at_ms": 1, "data": {"call_id": "c"}}
    assert isinstance(decode(json.dumps(good).encode(), 1), Record)
    changes: list[dict[str, Any]] = [{"v": True}, {"v": "1"}, {"id": 1}, {"data": []}, {"data": {}}, {"kind": "other"}]
    for change in changes:
        assert isinstance(decode(json.dumps({**good, **change}).encode(), 1), RawRecord)
