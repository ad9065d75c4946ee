"""The runner's driver of the built-in agent, on recorded streams of a real process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

import pytest

from runner.core.answers import Answer, AnswerShapeError, PermissionAnswer, QuestionAnswer, RejectAnswer
from runner.core.events import (
    AlreadyDelivered,
    AssistantMessage,
    DriverEvent,
    FrameRead,
    HandshakeAnswered,
    HandshakeRefused,
    MessageStarted,
    NativeRequest,
    NativeTurnEnded,
    NoiseLine,
    ProcessMustRetire,
    ProviderRetry,
    RequestWithdrawn,
    TextDelta,
    ToolCall,
    ToolResult,
    Usage,
)
from runner.core.identity import IdentityJudge
from runner.core.verdict import Verdict
from runner.drivers.direct.driver import DirectDriver
from runner.drivers.port import Opening
from runner.drivers.registry import find_agent

T = TypeVar("T")
CAPTURES = Path(__file__).parents[2] / "captures" / "direct_agent"
SESSION = "11111111-0000-4000-8000-000000000001"
OTHER = "bbbbbbbb-0000-4000-8000-000000000002"
IDS = {
    name: f"22222222-0000-4000-8000-00000000000{number}"
    for number, name in enumerate(("first", "second", "cancelled", "failed"), start=1)
}


def printed(name: str) -> bytes:
    return (CAPTURES / f"{name}.jsonl").read_bytes()


def frame(kind: str, **fields: Any) -> bytes:
    return json.dumps({"type": kind, "session_id": SESSION, **fields}).encode() + b"\n"


def read(data: bytes, message_id: str, *, process_is_new: bool = False, step: int | None = None) -> list[DriverEvent]:
    driver = DirectDriver(Opening())
    driver.expect(process_is_new=process_is_new, message_id=message_id)
    events: list[DriverEvent] = []
    for start in range(0, len(data), step or len(data) or 1):
        events += driver.feed(data[start : start + (step or len(data))])
    return events + driver.end_of_stream()


def of(events: list[DriverEvent], kind: type[T]) -> list[T]:
    return [event.body for event in events if isinstance(event.body, kind)]


def verdict(events: list[DriverEvent], expected: str = SESSION) -> Verdict:
    entry = find_agent("direct")
    assert entry is not None
    judge = IdentityJudge(expected, naming=entry.naming_frames)
    for event in events:
        judge.observe(event.body)
    return judge.verdict().verdict


def test_a_first_turn_with_tools() -> None:
    events = read(printed("first"), IDS["first"], process_is_new=True)
    (answered,) = of(events, HandshakeAnswered)
    assert (answered.session_id, answered.store) == (
        SESSION,
        f"/members/1/home/.standfast-direct/sessions/{SESSION}.jsonl",
    )
    (request,) = of(events, NativeRequest)
    assert request.request_id == f"{IDS['first']}-r1"
    assert [call.tool for call in of(events, ToolCall)] == ["write", "read"]
    assert [result.is_error for result in of(events, ToolResult)] == [False, False]
    (message,) = of(events, AssistantMessage)
    assert message.text == "".join(delta.text for delta in of(events, TextDelta))
    assert message.native_uuid
    assert [(end.failed, end.cancelled, end.error) for end in of(events, NativeTurnEnded)] == [(False, False, None)]
    (usage,) = of(events, Usage)
    assert usage.input_tokens is not None
    assert usage.cache_write_tokens is None
    assert of(events, ProcessMustRetire) == []
    assert verdict(events) is Verdict.CONFIRMED


def test_a_later_turn_of_the_same_process() -> None:
    events = read(printed("second"), IDS["second"])
    assert len(of(events, MessageStarted)) == 1
    assert verdict(events) is Verdict.CONFIRMED


def test_a_cancelled_and_a_failed_turn_are_ends_of_their_own() -> None:
    (cancelled,) = of(read(printed("cancelled"), IDS["cancelled"]), NativeTurnEnded)
    assert (cancelled.failed, cancelled.cancelled) == (True, True)
    (failed,) = of(read(printed("failed"), IDS["failed"]), NativeTurnEnded)
    assert (failed.failed, failed.cancelled, failed.reason, failed.status) == (True, False, "auth", 401)


@pytest.mark.parametrize("name", list(IDS))
def test_the_cuts_between_reads_do_not_matter(name: str) -> None:
    data = printed(name)
    whole = read(data, IDS[name], process_is_new=name == "first")
    for step in (1, 7, 64):
        assert read(data, IDS[name], process_is_new=name == "first", step=step) == whole


def test_a_refused_resume() -> None:
    events = read(printed("refused"), IDS["first"], process_is_new=True)
    (refused,) = of(events, HandshakeRefused)
    assert refused.cause == "NO_SUCH_SESSION"
    assert verdict(events) is Verdict.UNPROVEN


def test_a_process_that_ends_before_its_handshake_refused_it() -> None:
    assert [refused.cause for refused in of(read(b"", IDS["first"], process_is_new=True), HandshakeRefused)] == [
        "OTHER"
    ]


@pytest.mark.parametrize(
    "kind", ["initialized", "accepted", "text_delta", "assistant", "turn_end", "tool_result", "countdown"]
)
def test_any_frame_that_names_another_session_contradicts(kind: str) -> None:
    lines = [
        frame("initialized", id="init-1"),
        frame("accepted", message_id="m1"),
        frame("text_delta", text="x"),
        frame("assistant", uuid="a1", text="x", tool_calls=[]),
        frame("tool_result", call_id="c", text="x", is_error=False),
        frame("countdown", remaining_s=1.0),
        frame("turn_end", message_id="m1", outcome="completed"),
    ]
    assert verdict(read(b"".join(lines), "m1", process_is_new=True)) is Verdict.CONFIRMED
    changed = [
        line.replace(SESSION.encode(), OTHER.encode()) if f'"{kind}"'.encode() in line else line for line in lines
    ]
    assert verdict(read(b"".join(changed), "m1", process_is_new=True)) is Verdict.CONTRADICTED


def test_an_end_of_another_message_is_not_ours_and_its_text_is_not_passed_on() -> None:
    data = (
        frame("text_delta", text="not ours")
        + frame("turn_end", message_id="m0", outcome="completed")
        + frame("accepted", message_id="m1")
        + frame("turn_end", message_id="m1", outcome="completed")
        + frame("text_delta", text="late")
    )
    events = read(data, "m1")
    assert of(events, TextDelta) == []
    assert len(of(events, NativeTurnEnded)) == 1
    assert [retire.reason for retire in of(events, ProcessMustRetire)] == ["AUTONOMOUS_OUTPUT"]


@pytest.mark.parametrize("outcome", ["failed", "splendid", None, 1])
def test_only_the_word_completed_is_a_good_end(outcome: object) -> None:
    data = frame("accepted", message_id="m1") + frame("turn_end", message_id="m1", outcome=outcome)
    assert [end.failed for end in of(read(data, "m1"), NativeTurnEnded)] == [True]


def test_a_message_that_was_there_before_is_no_turn() -> None:
    events = read(frame("already_delivered", message_id="m1", outcome="completed"), "m1")
    assert len(of(events, AlreadyDelivered)) == 1
    assert of(events, NativeTurnEnded) == []


def test_a_message_that_could_not_be_stored_ends_and_retires_the_process() -> None:
    data = frame("turn_end", message_id="m1", outcome="failed", reason="STORAGE_FULL", error="no space")
    events = read(data, "m1")
    assert [end.reason for end in of(events, NativeTurnEnded)] == ["STORAGE_FULL"]
    assert [retire.reason for retire in of(events, ProcessMustRetire)] == ["SESSION_NOT_WRITTEN"]


def test_a_retry_is_shown_with_its_delay_and_status() -> None:
    fields = {"attempt": 2, "limit": 3, "delay_s": 4.0, "status": 503, "waiting": False}
    data = frame("accepted", message_id="m1") + frame("retrying", **fields)
    assert of(read(data, "m1"), ProviderRetry) == [ProviderRetry(2, 3, 4000, 503, None)]


@pytest.mark.parametrize("line", [b"no json\n", b"[]\n", b"\xff\n", b"half"])
def test_what_is_no_frame_is_noise_and_joins_nothing(line: bytes) -> None:
    events = read(frame("accepted", message_id="m1") + line, "m1")
    assert len(of(events, NoiseLine)) == 1
    assert len(of(events, FrameRead)) == 1


@pytest.mark.parametrize("text", ["/clear", "--x", "a\nb\u2028c\x85", "\ud800", "☃" * 1000, ""])
def test_the_user_frame_is_one_line_with_the_text_as_it_is(text: str) -> None:
    (line,) = DirectDriver(Opening()).user_frames(text, message_id="m1")
    assert line.endswith(b"\n")
    assert len(line.decode().splitlines()) == 1
    assert json.loads(line) == {"type": "user", "message_id": "m1", "text": text}


def test_interrupts_of_two_activations_have_ids_of_their_own() -> None:
    driver = DirectDriver(Opening())
    driver.user_frames("x", message_id="m1")
    ids = [json.loads(line)["id"] for line in (*driver.interrupt_frames(), *driver.interrupt_frames())]
    assert ids == ["int-m1-1", "int-m1-2"]


# --- answers -----------------------------------------------------------------------------------------------------------------------
def asked(**fields: Any) -> tuple[DirectDriver, NativeRequest]:
    driver = DirectDriver(Opening())
    driver.user_frames("x", message_id="m")
    printed_frame = {"type": "request", "request_id": "m-r1", "session_id": SESSION, **fields}
    (request,) = of(driver.feed(json.dumps(printed_frame).encode() + b"\n"), NativeRequest)
    return driver, request


def answered(driver: DirectDriver, answer: Answer) -> dict[str, Any]:
    (frame,) = driver.answer_frames("m-r1", answer)
    with pytest.raises(AnswerShapeError):
        driver.answer_frames("m-r1", answer)
    found: dict[str, Any] = json.loads(frame)
    return found


def test_a_permission_is_answered_once_and_only_as_one() -> None:
    driver, request = asked(kind="permission", tool="shell")
    assert (request.kind, request.tool) == ("permission", "shell")
    with pytest.raises(AnswerShapeError):
        driver.answer_frames("m-r1", QuestionAnswer((("a",),)))
    told = answered(driver, PermissionAnswer(False, "not now"))
    assert told == {"type": "answer", "request_id": "m-r1", "allow": False, "message": "not now"}


def test_a_question_is_answered_in_its_own_number_or_refused() -> None:
    questions = [{"header": "H", "text": "Which?", "options": ["a", "b"], "multiple": False, "free_text": False}]
    driver, request = asked(kind="question", questions=questions)
    assert [option.label for option in request.questions[0].options] == ["a", "b"]
    for wrong in ((), (("a",), ("b",)), (("c",),), (("a", "b"),), ((),)):
        with pytest.raises(AnswerShapeError):
            driver.answer_frames("m-r1", QuestionAnswer(wrong))
    assert answered(driver, QuestionAnswer((("b",),)))["answers"] == [["b"]]
    driver, _ = asked(kind="question", questions=questions)
    assert answered(driver, RejectAnswer("nobody is here"))["refused"] == "nobody is here"


def test_a_request_that_the_agent_closed_takes_no_answer() -> None:
    driver, _ = asked(kind="permission", tool="shell")
    closed = {"type": "request_closed", "request_id": "m-r1", "how": "withdrawn", "session_id": SESSION}
    assert len(of(driver.feed(json.dumps(closed).encode() + b"\n"), RequestWithdrawn)) == 1
    with pytest.raises(AnswerShapeError):
        driver.answer_frames("m-r1", PermissionAnswer(True))


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "payment"},
        {"kind": "permission"},
        {"kind": "question", "questions": []},
        {"kind": "question", "questions": [{"header": "H", "options": ["a"]}]},
    ],
)
def test_a_request_that_could_be_shown_to_nobody_takes_no_answer_but_the_refusal(fields: dict[str, Any]) -> None:
    driver, request = asked(**fields)
    assert request.kind == "other"
    with pytest.raises(AnswerShapeError):
        driver.answer_frames("m-r1", PermissionAnswer(True))
    assert len(driver.answer_unknown_frames("m-r1")) == 1
