"""Every recorded stream of Codex through the sandbox side's tap reader, and the reader's single rules."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from sandbox_manager.agents.codex.tap_reader import text_digest
from sandbox_manager.core.values import TapFindings
from tests.native.sandbox_side.codex_recording import AGENT, CAPTURES, activations, as_line, names

THREAD, TURN, MESSAGE = "th-1", "tu-1", "m-1"


@dataclass
class Expected:
    """What an activation of a recording proves. `is_error` None: no native end."""

    texts: list[str]
    is_error: bool | None = False
    reason: str | None = "completed"
    status: int | None = None
    retire: str | None = None
    retry: bool = False
    started: bool = True


EXPECTED: dict[str, list[Expected]] = {
    "approval_command": [Expected(["done"]), Expected(["done2"])],
    "code_mode_and_async_message": [Expected(["calling", "done"]), Expected(["default 4"])],
    "error_400_turn": [Expected(["A zero"]), Expected([], True, "other"), Expected(["A two"])],
    "error_401": [Expected([], True, "httpConnectionFailed", 401, retry=True)],
    "error_retries_exhausted": [Expected([], True, "internalServerError", retry=True), Expected(["A two"])],
    "fork": [Expected(["default reply 1"]), Expected(["default reply 2"]), Expected(["default reply 3"])],
    "goal_autonomous_turns": [Expected(["R1"], retire="AUTONOMOUS_TURN")],
    "interrupt_stream": [
        Expected(["A zero"]),
        Expected([], True, "interrupted", retire="CANCELLED"),
        Expected(["A two"]),
        Expected(["A three"]),
    ],
    "interrupt_tool": [Expected([], True, "interrupted", retire="CANCELLED"), Expected(["A two"])],
    "interrupt_tool_then_clean": [Expected([], True, "interrupted", retire="CANCELLED")],
    "plain_two_turns": [Expected(["Reply ONE «ü»"]), Expected(["Reply TWO"])],
    "request_user_input": [Expected(["done"])],
    "resume": [Expected(["Reply THREE"])],
    "resume_missing_id": [Expected([], None, None, retire="NO_NATIVE_END", started=False)],
    "resume_second_writer_refused": [Expected([], None, None, retire="NO_NATIVE_END", started=False)],
    "retry_429": [Expected(["A one"], retry=True)],
    "retry_http_500_silent": [Expected(["A one"])],
    "retry_stream_cut_then_success": [Expected(["A zero"]), Expected(["A one"], retry=True), Expected(["A two"])],
    "retry_two_replies_in_one_turn": [
        Expected(["A zero"]),
        Expected(["A whole reply, stream lost before response.completed", "A one"], retry=True),
        Expected(["A two"]),
    ],
    "subagent_outlives_turn": [Expected(["spawn", "PARENT DONE"]), Expected(["NEXT REPLY"])],
    "tool_shell": [Expected(["calling", "done"])],
    "turn_start_while_running": [
        Expected([], None, None, retire="NO_NATIVE_END"),
        Expected(["second"], retire="MERGED_TURN", started=False),
    ],
}


def test_every_recording_has_its_expectation() -> None:
    assert names() == sorted(EXPECTED)


@pytest.mark.parametrize("cut_every", [None, 61])
@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_recording_proves_what_is_expected_however_it_is_cut(name: str, cut_every: int | None) -> None:
    found = activations(name)
    assert len(found) == len(EXPECTED[name])
    for activation, expected in zip(found, EXPECTED[name], strict=True):
        findings = activation.findings(cut_every=cut_every)
        end = findings.end
        assert [text.text_digest for text in findings.assistant] == [text_digest(text) for text in expected.texts]
        assert (None if end is None else end.is_error) == expected.is_error
        assert (end and end.reason, end and end.status) == (expected.reason, expected.status)
        assert AGENT.must_retire(findings) == expected.retire
        assert (findings.retry_seen, findings.message_started) == (expected.retry, expected.started)
        assert (findings.noise_lines, findings.open_requests, findings.reset_to) == (0, (), None)


@pytest.mark.parametrize("name", sorted(set(EXPECTED) - {"resume_missing_id", "resume_second_writer_refused", "fork"}))
def test_every_activation_names_one_thread_the_handshakes(name: str) -> None:
    thread = None
    for activation in activations(name):
        findings = activation.findings()
        if findings.handshake is not None:
            assert (findings.handshake, findings.agent_version) == ("OK", "0.171.0")
            thread = findings.handshake_session_id
            assert (findings.handshake_store or "").endswith(f"{thread}.jsonl")
        assert findings.session_ids == (thread,)


def test_offsets_count_from_the_start_offset() -> None:
    first, second = activations("plain_two_turns")
    end = second.findings().end
    assert end is not None
    assert first.start_offset == 0
    assert second.start_offset < end.tap_offset <= second.start_offset + len(second.printed)


def test_nothing_in_the_recordings_is_anything_but_the_protocol() -> None:
    for path in CAPTURES.glob("*.jsonl"):
        for line in path.read_bytes().split(b"\n")[:-1]:
            assert json.loads(line)["dir"] in ("in", "out", "rollout", "api_request", "note")


# --- single rules ------------------------------------------------------------------------------------------------------------------
def event(method: str, *, turn: str = TURN, thread: str = THREAD, **params: Any) -> bytes:
    return as_line({"method": method, "params": {"threadId": thread, "turnId": turn, **params}})


def started(turn: str = TURN, thread: str = THREAD) -> bytes:
    return as_line({"method": "turn/started", "params": {"threadId": thread, "turn": {"id": turn}}})


def completed(turn: str = TURN, status: object = "completed", error: object = None) -> bytes:
    ended = {"id": turn, "status": status, "error": error}
    return as_line({"method": "turn/completed", "params": {"threadId": THREAD, "turn": ended}})


def item(kind: str, item_type: str, *, turn: str = TURN, **fields: Any) -> bytes:
    return event(f"item/{kind}", turn=turn, item={"type": item_type, **fields})


ANSWER = as_line({"id": f"turn-{MESSAGE}", "result": {"turn": {"id": TURN}}})


def read(*lines: bytes, message_id: str | None = MESSAGE) -> TapFindings:
    reader = AGENT.tap_reader(message_id=message_id, start_offset=0)
    reader.feed(b"".join(lines))
    return reader.findings()


def test_a_whole_turn_is_named_started_ended_and_printed() -> None:
    findings = read(ANSWER, started(), item("completed", "agentMessage", id="i1", text="hi"), completed())
    assert findings.session_ids == (THREAD,)
    assert findings.identity_before_output
    assert findings.message_started
    assert findings.lifecycle_closed
    assert findings.printed == ("tu-1/i1", "tu-1/end")
    assert AGENT.must_retire(findings) is None


def test_one_item_id_twice_in_a_turn_is_two_texts() -> None:
    text = item("completed", "agentMessage", id="i1", text="hi")
    assert [one.uuid for one in read(ANSWER, started(), text, text).assistant] == ["tu-1/i1", "tu-1/i1#2"]


def test_a_thread_that_changes_within_the_turn_is_seen() -> None:
    findings = read(ANSWER, started(), event("item/started", thread="th-2", item={"type": "reasoning"}), completed())
    assert findings.session_ids == (THREAD, "th-2")
    assert AGENT.must_retire(findings) == "SESSION_CHANGED"


def test_content_before_the_turns_beginning_is_not_named_first() -> None:
    findings = read(ANSWER, item("completed", "agentMessage", id="i", text="x"), started(), completed())
    assert not findings.identity_before_output


def test_a_turn_that_ran_before_ours_shows_that_the_process_works_by_itself() -> None:
    findings = read(started("tu-0"), ANSWER, started(), completed())
    assert findings.end is not None
    assert AGENT.must_retire(findings) == "AUTONOMOUS_TURN"


def test_another_turns_end_is_not_ours() -> None:
    findings = read(
        ANSWER, started(), completed("tu-0"), item("completed", "agentMessage", turn="tu-0", id="i", text="x")
    )
    assert findings.end is None
    assert findings.assistant == ()


def test_nothing_of_the_turn_counts_after_its_end() -> None:
    late = item("completed", "agentMessage", id="late", text="late")
    findings = read(ANSWER, started(), completed(), late, completed(status="failed"))
    assert findings.assistant == ()
    assert findings.end is not None
    assert not findings.end.is_error


@pytest.mark.parametrize("status", ["failed", "inProgress", None, 7])
def test_only_completed_is_good(status: object) -> None:
    end = read(ANSWER, started(), completed(status=status)).end
    assert end is not None
    assert end.is_error
    assert not end.cancelled


def test_the_cause_and_the_providers_status_are_read_from_the_turns_error() -> None:
    info = {"codexErrorInfo": {"responseTooManyFailedAttempts": {"httpStatusCode": 429}}}
    end = read(ANSWER, started(), completed(status="failed", error=info)).end
    assert end is not None
    assert (end.reason, end.status) == ("responseTooManyFailedAttempts", 429)


def test_our_message_id_stands_for_a_missing_answer() -> None:
    findings = read(started(), item("started", "userMessage", clientId=MESSAGE), completed())
    assert findings.message_started
    assert findings.end is not None


def test_a_message_merged_into_another_turn_is_not_started() -> None:
    findings = read(ANSWER, started(), item("started", "userMessage", clientId="m-0"), completed())
    assert not findings.message_started
    assert not findings.identity_before_output


def test_a_steered_message_is_not_taken_for_a_merge() -> None:
    findings = read(
        ANSWER,
        started(),
        item("started", "userMessage", clientId=MESSAGE),
        item("started", "userMessage", clientId="m-2"),
        completed(),
    )
    assert findings.message_started


def test_open_requests_are_named_until_they_are_resolved_or_the_turn_ends() -> None:
    ask = as_line(
        {"id": 0, "method": "item/commandExecution/requestApproval", "params": {"threadId": THREAD, "turnId": TURN}}
    )
    resolved = as_line({"method": "serverRequest/resolved", "params": {"threadId": THREAD, "requestId": 0}})
    outside = as_line({"id": 1, "method": "attestation/generate", "params": {}})
    stranger = as_line({"id": 2, "method": "item/tool/call", "params": {"threadId": "th-9", "turnId": "tu-9"}})
    assert read(ANSWER, started(), ask).open_requests == ("0",)
    assert read(ANSWER, started(), ask, resolved).open_requests == ()
    assert read(ANSWER, started(), ask, outside, stranger).open_requests == ("0", "1", "2")
    assert read(ANSWER, started(), ask, completed()).open_requests == ()


def test_a_compaction_is_printed_by_its_items_name() -> None:
    assert read(ANSWER, started(), item("completed", "contextCompaction", id="c1"), completed()).bases == ("tu-1/c1",)


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ("no rollout found for thread id x", "NO_SUCH_SESSION"),
        ("invalid session id x", "NO_SUCH_SESSION"),
        ("thread x already has an active writer", "SESSION_IN_USE"),
        ("failed to read thread /p", "REFUSED"),
    ],
)
def test_a_refused_handshake_is_told_in_short(said: str, word: str) -> None:
    assert read(as_line({"id": "thread-1", "error": {"code": -1, "message": said}})).handshake == word


def test_a_cut_line_and_stray_lines_say_nothing_and_are_counted() -> None:
    findings = read(ANSWER, b"warn: slow\n", b"[1]\n", started(), completed()[:-1])
    assert findings.noise_lines == 2
    assert findings.end is None


@pytest.mark.parametrize(
    "odd",
    [
        b'{"method":"turn/completed","params":7}\n',
        b'{"method":["x"],"params":{}}\n',
        b'{"method":"item/completed","params":{"threadId":7,"turnId":"tu-1","item":"x"}}\n',
        b'{"id":"turn-m-1","result":7}\n',
        b'{"id":{},"method":"x","params":{}}\n',
        b'{"method":"turn/completed","params":{"turn":{"id":7}}}\n',
    ],
)
def test_odd_fields_never_raise(odd: bytes) -> None:
    assert read(ANSWER, started(), odd, completed()).end is not None
