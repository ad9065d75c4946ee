"""The runner's driver of Pi reads every recorded stream right, and the failure cases that concern it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, TypeVar

import pytest

from runner.core.events import (
    AssistantMessage,
    ContentBeforeIdentity,
    DriverEvent,
    FramesDue,
    HandshakeAnswered,
    HandshakeRefused,
    MessageClosed,
    MessageStarted,
    NativeTurnEnded,
    NoiseLine,
    ProcessMustRetire,
    ProviderRetry,
    SessionSeen,
    TextDelta,
    ToolCall,
    ToolResult,
    Usage,
)
from runner.core.identity import IdentityJudge
from runner.core.verdict import Verdict
from runner.drivers.pi.driver import PiDriver
from runner.drivers.port import Opening
from runner.drivers.registry import find_agent
from tests.native.pi_recording import (
    OTHER_SESSION,
    SESSION,
    Prompt,
    accepted,
    lines,
    printed_in,
    prompts,
    state,
)
from tests.native.runner_side.recordings import case, case_input

T = TypeVar("T")
NEVER_ENDING = ("v0.74.2-error-500-exhausted", "v0.74.2-error-stream-cut", "v0.74.2-retry-then-success")


def read(data: bytes, message_id: str = "m1", *, cut_every: int = 1 << 30) -> list[Any]:
    """What the driver says after its message was written."""
    driver = PiDriver(Opening(native_session_id=SESSION))
    driver.user_frames("hello", message_id=message_id)
    pieces = [data[start : start + cut_every] for start in range(0, len(data), cut_every)]
    return bodies(event for piece in pieces for event in driver.feed(piece))


def bodies(events: Iterable[DriverEvent]) -> list[Any]:
    return [event.body for event in events]


def of(said: list[Any], kind: type[T]) -> list[T]:
    return [body for body in said if isinstance(body, kind)]


def texts(said: list[Any]) -> list[str]:
    return [message.text for message in of(said, AssistantMessage)]


def verdict(said: list[Any]) -> Verdict:
    entry = find_agent("pi")
    assert entry is not None
    judge = IdentityJudge(SESSION, naming=entry.naming_frames)
    for body in said:
        judge.observe(body)
    return judge.verdict().verdict


def test_a_plain_turn_and_one_with_a_tool() -> None:
    first, second = prompts("two-turns")
    said = read(first.stream(), first.message_id)
    assert texts(said) == ["Answer one"]
    assert "".join(delta.text for delta in of(said, TextDelta)) == "Answer one"
    assert of(said, NativeTurnEnded) == [NativeTurnEnded(False, False, "stop", None, None)]
    assert of(said, Usage) == [Usage(11, 7, 0, 0)]
    assert verdict(said) is Verdict.CONFIRMED
    said = read(second.stream(), second.message_id)
    assert texts(said) == ["calling ", "TOOLDONE[hello\n]"]
    [call], [result] = of(said, ToolCall), of(said, ToolResult)
    assert (call.tool, json.loads(call.input_json)["command"]) == ("bash", "echo hello")
    assert (result.call_id, result.text, result.is_error) == (call.call_id, "hello\n", False)
    assert of(said, Usage) == [Usage(22, 14, 0, 0)]
    assert len(of(said, NativeTurnEnded)) == 1


@pytest.mark.parametrize(
    ("name", "reason", "status", "cancelled", "error"),
    [
        ("error-401", "api_error", 401, False, "401"),
        ("error-500-exhausted", "api_error", 500, False, "500"),
        ("error-stream-cut", "api_error", None, False, "malformed server-sent event"),
        ("abort", "aborted", None, True, "aborted"),
    ],
)
def test_a_failure_is_read_from_the_last_stop_reason(
    name: str, reason: str, status: int | None, cancelled: bool, error: str
) -> None:
    prompt = prompts(name)[0]
    said = read(prompt.stream(), prompt.message_id)
    [end] = of(said, NativeTurnEnded)
    assert (end.failed, end.cancelled, end.reason, end.status) == (True, cancelled, reason, status)
    assert end.error is not None
    assert error in end.error
    assert verdict(said) is Verdict.CONFIRMED
    assert of(said, Usage) == [] or cancelled


def test_an_internal_retry_ends_nothing_and_is_told() -> None:
    [prompt] = prompts("retry-then-success")
    said = read(prompt.stream(), prompt.message_id)
    [retry] = of(said, ProviderRetry)
    assert (retry.attempt, retry.attempts_max, retry.delay_ms, retry.status) == (1, 2, 500, 500)
    assert texts(said) == ["recovered after 1"]
    assert [end.failed for end in of(said, NativeTurnEnded)] == [False]
    assert len(of(read(prompts("error-500-exhausted")[0].stream(), "c6"), ProviderRetry)) == 2


def test_what_was_cut_or_aborted_is_no_whole_message() -> None:
    cut = read(prompts("error-stream-cut")[0].stream(), "c8")
    assert texts(cut) == []
    assert "".join(delta.text for delta in of(cut, TextDelta)) == "partial text "
    [aborted] = of(read(prompts("abort")[0].stream(), "c9"), AssistantMessage)
    assert aborted.aborted


def test_the_session_is_usable_after_an_abort() -> None:
    after = prompts("abort")[1]
    said = read(after.stream(), after.message_id)
    assert texts(said) == ["usable again"]
    assert verdict(said) is Verdict.CONFIRMED


@pytest.mark.parametrize("name", NEVER_ENDING)
def test_a_stream_of_an_older_version_never_ends_a_turn(name: str) -> None:
    # Its `agent_end` does not say whether a retry follows: whoever takes it for the end reports a failure that recovers.
    [prompt] = prompts(name)
    assert of(read(prompt.stream(), prompt.message_id), NativeTurnEnded) == []


def test_a_resumed_process_names_its_session_in_the_handshake() -> None:
    driver = PiDriver(Opening(native_session_id=SESSION, resumes=True))
    [frame] = driver.handshake_frames(process_is_new=True)
    assert json.loads(frame) == {"id": "start", "type": "get_state"}
    recorded = next(frame for frame in printed_in("resume") if frame.get("command") == "get_state")
    said = bodies(driver.feed(lines({**recorded, "id": "start"})))
    [answered] = of(said, HandshakeAnswered)
    assert answered.session_id == SESSION
    assert answered.store is not None
    assert answered.store.endswith(f"_{SESSION}.jsonl")
    assert driver.handshake_frames(process_is_new=False) == []


def test_a_handshake_that_names_nothing_or_another_model_is_refused() -> None:
    failed = {"id": "start", "type": "response", "command": "get_state", "success": False, "error": "no"}
    for answer, word in ((failed, "no"), (state("start", model="m-2"), "m-2")):
        driver = PiDriver(Opening(model="m-1"))
        driver.handshake_frames(process_is_new=True)
        [refused] = of(bodies(driver.feed(lines(answer))), HandshakeRefused)
        assert word in refused.detail
    silent = PiDriver(Opening())
    silent.handshake_frames(process_is_new=True)
    assert len(of(bodies(silent.end_of_stream()), HandshakeRefused)) == 1


def test_a_forked_or_switched_session_is_another_one() -> None:
    for frame in printed_in("fork-switch"):
        if frame.get("command") == "get_state" and frame["data"]["sessionId"] != SESSION:
            assert verdict(read(lines(state("who-m1"), accepted("m1"), frame))) is Verdict.CONTRADICTED


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("name", ["two-turns", "error-401"])
def test_another_session_at_the_start_or_the_end_contradicts_good_and_failed_turns(name: str, place: str) -> None:
    prompt = prompts(name)[0]
    frames = [json.loads(line) for line in prompt.stream().splitlines()]
    frames[0 if place == "before" else -1]["data"]["sessionId"] = OTHER_SESSION
    assert verdict(read(lines(*frames), prompt.message_id)) is Verdict.CONTRADICTED


def test_content_that_no_question_named_is_held_back() -> None:
    first = prompts("two-turns")[0]
    said = read(first.stream(asked_before=False), first.message_id)
    assert texts(said) == []
    assert len(of(said, ContentBeforeIdentity)) == 1
    assert verdict(said) is Verdict.UNPROVEN


def test_the_question_before_the_message_opens_its_turn_and_the_fence_is_asked_for_once_it_is_settled() -> None:
    driver = PiDriver(Opening(native_session_id=SESSION))
    question, message = (json.loads(frame) for frame in driver.user_frames("hi", message_id="c2"))
    assert question == {"id": "who-c2", "type": "get_state"}
    assert message == {"id": "c2", "type": "prompt", "message": "hi"}
    said = bodies(driver.feed(prompts("two-turns")[0].stream()))
    assert of(said, SessionSeen)[0] == SessionSeen(SESSION, "get_state", opens_turn=True)
    [due] = of(said, FramesDue)
    assert [json.loads(frame) for frame in due.frames] == [{"id": "end-c2", "type": "get_state"}]
    kinds = [type(body) for body in said]
    assert kinds.index(MessageStarted) < kinds.index(NativeTurnEnded) < kinds.index(FramesDue)


def test_an_aborted_wait_for_a_retry_ends_the_turn_with_the_settled_mark() -> None:
    prompt = prompts("error-500-exhausted")[0]
    until_wait = prompt.printed[: 1 + next(i for i, f in enumerate(prompt.printed) if f["type"] == "auto_retry_start")]
    cancelled = {"type": "auto_retry_end", "success": False, "attempt": 1, "finalError": "Retry cancelled"}
    waiting = Prompt(prompt.message_id, prompt.text, (*until_wait, cancelled))
    assert of(read(waiting.stream(asked_after=False), "c6"), NativeTurnEnded) == []
    settled = Prompt(prompt.message_id, prompt.text, (*waiting.printed, {"type": "agent_settled", "aborted": True}))
    [end] = of(read(settled.stream(), "c6"), NativeTurnEnded)
    assert (end.failed, end.cancelled) == (True, True)


def test_a_prompt_that_is_refused_closes_the_message_and_ends_no_turn() -> None:
    refused = {**accepted("m1"), "success": False, "error": "Agent is already processing."}
    said = read(lines(state("who-m1"), refused))
    assert of(said, MessageClosed) == [MessageClosed("cancelled")]
    assert of(said, NativeTurnEnded) == []
    assert of(said, MessageStarted) == []


def test_a_queued_message_and_a_turn_of_its_own_retire_the_process() -> None:
    first = prompts("two-turns")[0]
    queued = Prompt(first.message_id, first.text, (*first.printed, state("end-c2", pending=1)))
    reasons = [retire.reason for retire in of(read(queued.stream(asked_after=False), "c2"), ProcessMustRetire)]
    assert reasons == ["QUEUE_NOT_EMPTY"]
    again = Prompt(first.message_id, first.text, (*first.printed, {"type": "agent_start"}, {"type": "agent_start"}))
    reasons = [retire.reason for retire in of(read(again.stream(), "c2"), ProcessMustRetire)]
    assert reasons == ["AUTONOMOUS_TURN"]


def test_what_another_prompt_left_is_not_of_this_one() -> None:
    first, second = prompts("two-turns")
    said = read(lines(*first.printed) + second.stream(), second.message_id)
    assert texts(said) == ["calling ", "TOOLDONE[hello\n]"]
    assert len(of(said, NativeTurnEnded)) == 1


# --- cases ---------------------------------------------------------------------------------------------------------------------------
def test_case_end_pi_error_with_empty_content() -> None:
    expected = case("end-pi-error-with-empty-content")["expected"]
    said = read(lines(state("who-m1"), accepted("m1")) + case_input("end-pi-error-with-empty-content"))
    [end] = of(said, NativeTurnEnded)
    assert (end.failed, end.error) == (True, expected["message"])
    assert "".join(texts(said)) == expected["output_text"]


@pytest.mark.parametrize("cut_every", [1, 7, 4096])
def test_cuts_change_nothing(cut_every: int) -> None:
    second = prompts("two-turns")[1]
    assert read(second.stream(), second.message_id, cut_every=cut_every) == read(second.stream(), second.message_id)


def test_case_frame_noise_lines_and_long_and_cut_characters() -> None:
    text = "读取 ✓ 🎉 \u2028\u2029\x85" + "x" * 3_000_000
    message = {"role": "assistant", "content": [{"type": "text", "text": text}], "stopReason": "stop", "timestamp": 1}
    data = b"Warning: noise\n{half\n[1]\n" + lines(
        state("who-m1"),
        accepted("m1"),
        {"type": "message_end", "message": message},
        {"type": "agent_end", "messages": [message], "willRetry": False},
    )
    said = read(data, cut_every=65_537)
    assert texts(said) == [text]
    assert len(of(said, NoiseLine)) == 3
    assert len(of(said, NativeTurnEnded)) == 1


def test_case_input_dash_slash_and_large() -> None:
    given = json.loads(case_input("input-dash-slash-and-large"))
    generated = given["generated"]
    for text in [*given["messages"], generated["repeat"] * generated["count"], "\u2028\x85\r\n\x00 🎉"]:
        _, frame = PiDriver(Opening()).user_frames(text, message_id="m1")
        assert len(frame.decode().splitlines()) == 1
        assert json.loads(frame)["message"].encode() == text.encode()


def test_steering_abort_and_refusal_are_frames_of_their_own() -> None:
    driver = PiDriver(Opening())
    driver.user_frames("hi", message_id="m1")
    [steer] = driver.steer_frames("more", message_id="m2") or []
    [abort], [again] = driver.interrupt_frames(), driver.interrupt_frames()
    [refusal] = driver.answer_unknown_frames("q1")
    assert json.loads(steer) == {"id": "m2", "type": "steer", "message": "more"}
    assert (json.loads(abort)["type"], json.loads(again)["type"]) == ("abort", "abort")
    assert json.loads(abort)["id"] != json.loads(again)["id"]
    assert json.loads(refusal) == {"type": "extension_ui_response", "id": "q1", "cancelled": True}
