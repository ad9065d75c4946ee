"""Every recording of Claude Code through the tap reader, one row an activation."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import pytest

from sandbox_manager.agents.registry import agent_named
from sandbox_manager.core.values import TapFindings
from tests.native.sandbox_side.recording import as_lines, load, names

AGENT = agent_named("claude-code")


@dataclass(frozen=True)
class Row:
    """What one activation must be read as. `end` is (is_error, reason, status, cancelled)."""

    recording: str
    message: int | None  # the last two digits of its uuid
    proc: int = 1
    end: tuple[bool, str | None, int | None, bool] | None = (False, "completed", None, False)
    texts: int = 1
    retry: bool = False
    background: bool = False
    closed: bool = True
    printed: int = 1
    handshake: str | None = None
    reset: bool = False
    sessions: int = 1
    rule: str | None = None


ROWS = [
    Row("ask_user_question", 37, texts=2, printed=4),
    Row("background_bash_autonomous_turn", 27, texts=2, printed=4),
    Row("error_400_turn", 17, closed=False, rule="LIFECYCLE_NOT_CLOSED"),
    Row("error_400_turn", 18, end=(True, "api_error", 400, False), texts=0, closed=False, rule="LIFECYCLE_NOT_CLOSED"),
    Row("error_400_turn", 19),
    Row("error_401", 21, end=(True, "api_error", 401, False), texts=0, retry=True, rule="API_RETRY_SEEN"),
    Row("error_retries_exhausted", 20, end=(True, "api_error", 500, False), texts=0, retry=True, rule="API_RETRY_SEEN"),
    Row("fork", 39, proc=2),
    Row("interrupt_stream", 30, closed=False, rule="LIFECYCLE_NOT_CLOSED"),
    Row("interrupt_stream", 31, end=(True, "aborted_streaming", None, True), texts=1, printed=2, rule="CANCELLED"),
    Row("interrupt_stream", 32),
    Row(
        "interrupt_tool",
        33,
        end=(True, "aborted_tools", None, True),
        texts=1,
        printed=4,
        closed=False,
        rule="CANCELLED",
    ),
    Row("interrupt_tool", 34),
    Row("kill_right_after_result", 14, closed=False, rule="LIFECYCLE_NOT_CLOSED"),
    Row("kill_right_after_result", 15, closed=False, rule="LIFECYCLE_NOT_CLOSED"),
    Row(
        "kill_right_after_result",
        16,
        proc=2,
        end=None,
        texts=0,
        printed=0,
        closed=False,
        handshake="NO_SUCH_SESSION",
        sessions=0,
        rule="NO_NATIVE_END",
    ),
    Row("permission_can_use_tool", 35, texts=2, printed=4, closed=False, rule="LIFECYCLE_NOT_CLOSED"),
    Row("permission_can_use_tool", 36, texts=2, printed=4),
    Row("plain_two_turns", 1, handshake="OK"),
    Row("plain_two_turns", 2),
    Row("resume", 3, proc=2, handshake="OK"),
    Row(
        "resume_missing_id",
        None,
        end=None,
        texts=0,
        printed=0,
        closed=False,
        handshake="NO_SUCH_SESSION",
        sessions=0,
        rule="NO_NATIVE_END",
    ),
    Row("resume_with_extra_result", 28, texts=2, printed=4),
    Row("resume_with_extra_result", 29, proc=2),
    Row("retry_defect", 7, closed=False, rule="LIFECYCLE_NOT_CLOSED"),
    Row("retry_defect", 8, retry=True, closed=False, rule="API_RETRY_SEEN"),
    Row("retry_defect", 9),
    Row("retry_defect", 10, proc=2),
    Row("retry_defect_background_hole", 11, closed=False, rule="LIFECYCLE_NOT_CLOSED"),
    Row("retry_defect_background_hole", 12, texts=2, retry=True, printed=4, rule="API_RETRY_SEEN"),
    Row("retry_defect_background_hole", 13, proc=2),
    Row("retry_then_success_workaround", 4, closed=False, rule="LIFECYCLE_NOT_CLOSED"),
    Row("retry_then_success_workaround", 5, retry=True, rule="API_RETRY_SEEN"),
    Row("retry_then_success_workaround", 6, proc=2),
    Row("slash_clear_changes_session", 40, closed=False, rule="LIFECYCLE_NOT_CLOSED"),
    Row("slash_clear_changes_session", 41, closed=False, rule="LIFECYCLE_NOT_CLOSED"),
    Row(
        "slash_clear_changes_session",
        42,
        end=(False, None, None, False),
        texts=0,
        closed=False,
        reset=True,
        sessions=2,
        rule="SESSION_CHANGED",
    ),
    Row("slash_clear_changes_session", 43),
    Row("stream_cut", 22),
    Row("subagent_async_default", 25, texts=2, printed=4),
    Row("subagent_retry", 26, texts=2, printed=4),
    Row("subagent_sync", 24, texts=2, printed=4),
    Row("tool_bash", 23, texts=2, printed=4),
]


def _message_id(row: Row) -> str | None:
    return None if row.message is None else f"aaaaaaaa-0000-4000-8000-{row.message:012d}"


def _findings(row: Row) -> TapFindings:
    offset, data = load(row.recording).activation(row.proc, _message_id(row))
    reader = AGENT.tap_reader(message_id=_message_id(row), start_offset=offset)
    reader.feed(data)
    return reader.findings()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.recording}-{row.message}")
def test_an_activation_is_read_as_it_was(row: Row) -> None:
    found = _findings(row)
    end = found.end and (found.end.is_error, found.end.reason, found.end.status, found.end.cancelled)
    assert end == row.end
    assert len(found.assistant) == row.texts
    assert len(found.printed) == row.printed
    assert (found.retry_seen, found.background_pending, found.lifecycle_closed) == (
        row.retry,
        row.background,
        row.closed,
    )
    assert found.handshake == row.handshake
    assert (found.reset_to is not None, len(found.session_ids)) == (row.reset, row.sessions)
    assert found.identity_before_output is (row.end is not None)
    assert found.message_started is (row.end is not None)
    assert (found.noise_lines, found.open_requests) == (0, ())
    assert found.agent_version == (None if row.end is None else "2.1.220")
    assert AGENT.must_retire(found) == row.rule


def test_every_recorded_activation_has_its_row() -> None:
    recorded: set[tuple[str, int, str | None]] = set()
    for name in names():
        recording = load(name)
        procs = {row["proc"] for row in recording.rows if row["dir"] == "out"}
        for proc in procs:
            messages: list[str | None] = [*recording.messages(proc)]
            recorded |= {(name, proc, uuid) for uuid in messages or [None]}
    assert {(row.recording, row.proc, _message_id(row)) for row in ROWS} == recorded


@pytest.mark.parametrize("row", [row for row in ROWS if row.end], ids=lambda row: f"{row.recording}-{row.message}")
def test_the_end_evidence_is_the_line_at_its_offset(row: Row) -> None:
    offset, data = load(row.recording).activation(row.proc, _message_id(row))
    end = _findings(row).end
    assert end is not None
    line = data[: end.tap_offset - offset].splitlines()[-1]
    assert b'"type":"result"' in line
    assert hashlib.sha256(line).hexdigest() == end.evidence_digest


def test_a_background_task_is_pending_until_the_list_is_empty() -> None:
    recording = load("background_bash_autonomous_turn")
    events = recording.printed()
    upto = next(i for i, event in enumerate(events) if event["type"] == "result")
    reader = AGENT.tap_reader(message_id=recording.messages()[0], start_offset=0)
    reader.feed(as_lines(events[: upto + 2]))
    assert reader.findings().background_pending
    assert AGENT.must_retire(reader.findings()) == "BACKGROUND_PENDING"
    reader.feed(as_lines(events[upto + 2 :]))
    assert not reader.findings().background_pending


def test_a_question_is_open_from_its_request_to_the_end_of_the_turn() -> None:
    recording = load("ask_user_question")
    events = recording.printed()
    asked = next(i for i, event in enumerate(events) if event["type"] == "control_request")
    reader = AGENT.tap_reader(message_id=recording.messages()[0], start_offset=0)
    reader.feed(as_lines(events[: asked + 1]))
    assert reader.findings().open_requests == (events[asked]["request_id"],)
    reader.feed(as_lines(events[asked + 1 :]))
    assert reader.findings().open_requests == ()


@pytest.mark.parametrize("name", names())
def test_any_cut_gives_the_same_findings(name: str) -> None:
    recording = load(name)
    procs = {row["proc"] for row in recording.rows if row["dir"] == "out"}
    for proc in procs:
        message_id = next(reversed(recording.messages(proc)), None)
        offset, data = recording.activation(proc, message_id)
        whole = AGENT.tap_reader(message_id=message_id, start_offset=offset)
        whole.feed(data)
        pieces = AGENT.tap_reader(message_id=message_id, start_offset=offset)
        for start in range(0, len(data), 97):
            pieces.feed(data[start : start + 97])
        assert pieces.findings() == whole.findings()
