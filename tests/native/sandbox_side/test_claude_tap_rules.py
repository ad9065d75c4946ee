"""Single rules of the tap reader, and the cases that are about Claude Code's output."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from sandbox_manager.agents import tap_lines
from sandbox_manager.agents.registry import agent_named
from sandbox_manager.core.values import TapFindings
from tests.native.sandbox_side.recording import as_lines

AGENT = agent_named("claude-code")
INPUTS = Path(__file__).parents[2] / "cases" / "inputs"
A = "aaaaaaaa-0000-4000-8000-000000000001"
B = "bbbbbbbb-0000-4000-8000-000000000002"
M = "11111111-0000-4000-8000-000000000001"


def read(data: bytes, message_id: str | None = M, *, piece: int | None = None) -> TapFindings:
    reader = AGENT.tap_reader(message_id=message_id, start_offset=0)
    for start in range(0, len(data), piece or max(len(data), 1)):
        reader.feed(data[start : start + (piece or len(data))])
    return reader.findings()


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def mark(state: str, uuid: str = M) -> dict[str, Any]:
    return {"type": "command_lifecycle", "command_uuid": uuid, "state": state, "session_id": A}


def init(**more: Any) -> dict[str, Any]:
    return {"type": "system", "subtype": "init", "session_id": A, **more}


def said(text: str, **more: Any) -> dict[str, Any]:
    message = {"model": "m", "content": [{"type": "text", "text": text}]}
    return {"type": "assistant", "uuid": f"u-{text[:9]}", "session_id": A, "message": message, **more}


def result(**more: Any) -> dict[str, Any]:
    return {"type": "result", "subtype": "success", "is_error": False, "session_id": A, **more}


# --- the cases -----------------------------------------------------------------------------------------------------------------------
def test_case_identity_resume_other_id_shows_only_the_other_id() -> None:
    found = read((INPUTS / "identity-resume-other-id.jsonl").read_bytes(), None)
    assert found.session_ids == (B,)
    assert found.end is not None
    assert not found.end.is_error


def test_case_identity_subagent_impostor_names_no_session_and_adds_no_text() -> None:
    found = read((INPUTS / "identity-subagent-impostor.jsonl").read_bytes(), None)
    assert found.session_ids == (A,)
    assert [text.text_digest for text in found.assistant] == [digest("Both files checked.")]
    assert found.end is not None
    assert not found.end.is_error


def test_case_end_claude_no_result_is_no_end() -> None:
    found = read((INPUTS / "end-claude-no-result.jsonl").read_bytes(), None)
    assert found.end is None
    assert len(found.assistant) == 1
    assert AGENT.must_retire(found) == "NO_NATIVE_END"


def test_case_end_claude_success_word_with_error_flag_is_a_failed_end() -> None:
    found = read((INPUTS / "end-claude-success-word-with-error-flag.jsonl").read_bytes(), None)
    assert found.end is not None
    assert (found.end.is_error, found.end.status, found.end.cancelled) == (True, 429, False)
    assert found.assistant == ()


def test_case_chain_retry_notice_retires_the_process() -> None:
    data = (INPUTS / "chain-retry-notice-retires-process.jsonl").read_bytes()
    found = read(data, None)
    assert found.end is not None
    assert not found.end.is_error
    assert AGENT.must_retire(found) == "API_RETRY_SEEN"
    without = b"".join(line for line in data.splitlines(True) if b"api_retry" not in line)
    assert not read(without, None).retry_seen
    # The control stream is an older one: it has no lifecycle, which is a reason of its own.
    assert AGENT.must_retire(read(without, None)) == "NO_LIFECYCLE"


def test_case_loss_no_such_conversation_is_a_refusal_and_no_end() -> None:
    case = json.loads((INPUTS / "loss-no-such-conversation.json").read_text())
    found = read(case["variant"]["stdout"].encode())
    assert (found.handshake, found.end, found.session_ids) == ("NO_SUCH_SESSION", None, ())
    assert read(case["stdout"].encode()).handshake is None


@pytest.mark.parametrize("piece", [None, 4096, 65536])
def test_case_frame_line_over_64k_is_one_line(piece: int | None) -> None:
    for recipe in json.loads((INPUTS / "frame-line-over-64k.json").read_text())["cases"]:
        line = recipe["line"]
        text = line["repeat"] * line["count"]
        data = as_lines(recipe["before"])
        data += f"{line['prefix']}{text}{line['suffix']}\n".encode() + as_lines(recipe["after"])
        found = read(data, None, piece=piece)
        assert [one.text_digest for one in found.assistant] == [digest(text)]
        assert found.end is not None
        assert found.end.tap_offset == len(data)
        assert found.noise_lines == 0


@pytest.mark.parametrize("piece", [None, 1, 7])
def test_case_frame_noise_lines_are_counted_and_joined_to_nothing(piece: int | None) -> None:
    found = read((INPUTS / "frame-noise-lines.txt").read_bytes(), None, piece=piece)
    assert found.noise_lines == 3
    assert [text.text_digest for text in found.assistant] == [digest("ok")]
    assert found.end is not None


@pytest.mark.parametrize("piece", [None, 1])
def test_case_frame_split_utf8_loses_no_character(piece: int | None) -> None:
    case = json.loads((INPUTS / "frame-split-utf8.json").read_text())
    chunks = [bytes.fromhex(chunk) for chunk in case["chunks_hex"]]
    reader = AGENT.tap_reader(message_id=None, start_offset=0)
    for chunk in chunks:
        for start in range(0, len(chunk), piece or len(chunk)):
            reader.feed(chunk[start : start + (piece or len(chunk))])
    assert [text.text_digest for text in reader.findings().assistant] == [digest("读取 ✓ 🎉")]
    assert reader.findings().end is not None


def test_case_cont_output_held_by_a_child_ends_at_the_result() -> None:
    case = json.loads((INPUTS / "cont-output-held-by-background-child.json").read_text())
    found = read(case["stdout"].encode(), None)
    assert found.end is not None
    assert not found.end.is_error


# --- the end -------------------------------------------------------------------------------------------------------------------------
def test_a_result_of_a_cron_turn_is_not_ours_though_it_has_no_origin() -> None:
    other = "22222222-0000-4000-8000-000000000002"
    stream = [mark("queued"), mark("started", other), init(), said("cron"), result(), mark("completed", other)]
    assert read(as_lines(stream)).end is None
    assert not read(as_lines(stream)).message_started
    ours = [mark("started"), init(), said("ours"), result(), mark("completed")]
    found = read(as_lines(stream + ours))
    assert found.end is not None
    assert [text.text_digest for text in found.assistant] == [digest("ours")]


def test_a_result_that_names_another_message_is_not_ours() -> None:
    stream = [mark("started"), init(), result(user_message_uuid="22222222-0000-4000-8000-000000000002")]
    assert read(as_lines(stream)).end is None
    assert read(as_lines([*stream, result(user_message_uuid=M)])).end is not None


def test_a_result_after_our_message_was_closed_is_not_ours() -> None:
    assert read(as_lines([mark("started"), init(), mark("completed"), result()])).end is None


def test_a_message_that_was_delivered_before_has_no_end() -> None:
    """The CLI drops a repeated uuid: only `completed` comes."""
    found = read(as_lines([mark("completed")]))
    assert (found.end, found.message_started, found.lifecycle_closed) == (None, False, True)


def test_a_stream_that_announces_lifecycle_is_never_read_by_order() -> None:
    announced = init(capabilities=["msg_lifecycle_v1"])
    assert read(as_lines([announced, said("x"), result()])).end is None
    assert read(as_lines([init(), said("x"), result()])).end is not None


def test_a_result_before_any_init_is_never_read_by_order() -> None:
    assert read(as_lines([result(), init()])).end is None


@pytest.mark.parametrize("flag", [None, "false", 0, True])
def test_anything_but_a_plain_false_is_an_error(flag: object) -> None:
    found = read(as_lines([mark("started"), init(), result(is_error=flag)]))
    assert found.end is not None
    assert found.end.is_error


def test_the_first_end_stays_the_end() -> None:
    stream = [mark("started"), init(), result(terminal_reason="completed"), result(terminal_reason="other")]
    found = read(as_lines(stream))
    assert found.end is not None
    assert found.end.reason == "completed"


def test_a_late_error_answer_after_the_handshake_is_no_refusal() -> None:
    answered = {"type": "control_response", "response": {"subtype": "success", "response": {"commands": []}}}
    found = read(as_lines([answered, result(is_error=True, errors=["No conversation found"])]))
    assert (found.handshake, found.end) == ("OK", None)


def test_the_receipt_of_an_interrupt_is_no_handshake() -> None:
    receipt = {"type": "control_response", "response": {"subtype": "success", "response": {"still_queued": []}}}
    assert read(as_lines([receipt])).handshake is None


def test_an_error_answer_before_anything_else_refuses_the_handshake() -> None:
    answer = {"type": "control_response", "response": {"subtype": "error", "error": "no"}}
    assert read(as_lines([answer])).handshake == "REFUSED"
    assert read(as_lines([mark("queued"), answer])).handshake is None
    assert read(as_lines([init(), answer])).handshake is None


def test_the_reason_of_an_end_is_the_clis_own_word() -> None:
    def reason(**more: Any) -> str | None:
        end = read(as_lines([mark("started"), init(), result(**more)])).end
        assert end is not None
        return end.reason

    assert reason(terminal_reason="max_turns", is_error=True, subtype="error_max_turns") == "max_turns"
    assert reason(is_error=True, subtype="error_during_execution") == "error_during_execution"
    assert reason(is_error=True) is None
    assert reason(subtype="odd") is None


# --- texts ---------------------------------------------------------------------------------------------------------------------------
def test_deltas_and_synthetic_texts_are_no_assistant_texts() -> None:
    delta = {"type": "stream_event", "session_id": A, "event": {"delta": {"type": "text_delta", "text": "half"}}}
    synthetic = said("API Error: 403")
    synthetic["message"]["model"] = "<synthetic>"
    found = read(as_lines([mark("started"), init(), delta, synthetic, said("whole"), result()]))
    assert [text.text_digest for text in found.assistant] == [digest("whole")]
    # The store must come to hold the synthetic record, too.
    assert found.printed == ("u-API Error", "u-whole")


def test_an_aborted_text_is_marked() -> None:
    found = read(
        as_lines([mark("started"), init(), said("par", aborted=True), result(terminal_reason="aborted_streaming")])
    )
    assert [text.aborted for text in found.assistant] == [True]
    assert found.end is not None
    assert found.end.cancelled


def test_texts_before_our_start_and_after_our_end_are_not_ours() -> None:
    found = read(as_lines([said("before"), mark("started"), init(), said("in"), result(), said("after")]))
    assert [text.text_digest for text in found.assistant] == [digest("in")]


def test_identity_must_come_before_the_first_content() -> None:
    assert not read(as_lines([mark("started"), said("x"), init(), result()])).identity_before_output
    assert not read(as_lines([init(), mark("started"), said("x"), result()])).identity_before_output
    assert read(as_lines([mark("started"), init(), said("x"), result()])).identity_before_output


# --- bytes ---------------------------------------------------------------------------------------------------------------------------
def test_a_half_line_says_nothing_until_its_end() -> None:
    data = as_lines([mark("started"), init(), result()])
    reader = AGENT.tap_reader(message_id=M, start_offset=500)
    reader.feed(data[:-1])
    assert reader.findings().end is None
    reader.feed(data[-1:])
    end = reader.findings().end
    assert end is not None
    assert end.tap_offset == 500 + len(data)


def test_nul_bytes_and_broken_utf8_are_noise() -> None:
    found = read(b'\x00\x00\n\xff\xfe\n[1,2]\n"text"\n{}\n' + as_lines([mark("started"), init(), result()]))
    assert found.noise_lines == 5
    assert found.end is not None


def test_deep_nesting_is_noise() -> None:
    found = read(b"[" * 100_000 + b"\n" + as_lines([mark("started"), init(), result()]))
    assert (found.noise_lines, found.end is not None) == (1, True)


def test_an_empty_line_is_nothing() -> None:
    assert read(b"\n\r\n \n").noise_lines == 0


def test_an_endless_line_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tap_lines, "LINE_LENGTH_MAX", 1000)
    tail = as_lines([mark("started"), init(), result()])
    found = read(b"x" * 5000 + b"\n" + tail, piece=100)
    assert found.noise_lines == 1
    assert found.end is not None
    assert found.end.tap_offset == 5001 + len(tail)


def test_half_a_surrogate_pair_keeps_its_own_digest() -> None:
    line = as_lines([mark("started"), init()]) + b'{"type":"assistant","uuid":"u","message":{"content":"\\ud83d"}}\n'
    found = read(line)
    assert found.assistant[0].text_digest == hashlib.sha256(b"\xed\xa0\xbd").hexdigest()


@pytest.mark.parametrize(
    "odd",
    [
        {"type": "assistant", "message": None},
        {"type": "assistant", "message": {"content": [1, {"type": "text", "text": 7}]}},
        {"type": "system", "subtype": ["x"]},
        {"type": "command_lifecycle", "command_uuid": 5},
        {"type": "control_response", "response": []},
        {"type": "control_request", "request_id": {}},
        {"type": "result", "session_id": {"a": 1}, "errors": 5, "is_error": True, "api_error_status": "x"},
        {"type": "system", "subtype": "background_tasks_changed"},
        {"type": "conversation_reset"},
        {"type": "user", "uuid": 1},
        {"type": "control_cancel_request"},
    ],
)
def test_odd_events_raise_nothing(odd: dict[str, Any]) -> None:
    read(as_lines([odd, mark("started"), init(), odd, result(), odd]))


def test_a_request_that_the_cli_takes_back_is_not_open() -> None:
    asked = {"type": "control_request", "request_id": "r1", "request": {"subtype": "can_use_tool"}}
    taken_back = {"type": "control_cancel_request", "request_id": "r1"}
    assert read(as_lines([mark("started"), init(), asked])).open_requests == ("r1",)
    assert read(as_lines([mark("started"), init(), asked, taken_back])).open_requests == ()


def test_a_compaction_is_named_by_the_uuid_of_the_roots_own_boundary() -> None:
    boundary = {"type": "system", "subtype": "compact_boundary", "session_id": A}
    found = read(
        as_lines(
            [
                mark("started"),
                init(),
                {**boundary, "uuid": "b-child", "parent_tool_use_id": "t1"},
                {**boundary, "uuid": "b1"},
                {**boundary, "uuid": None},
                result(),
            ]
        )
    )
    assert found.bases == ("b1",)
