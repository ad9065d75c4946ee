"""Every recorded stream of Claude Code 2.1.220, through the runner's driver."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest

from runner.core.answers import Answer, AnswerShapeError, PermissionAnswer, QuestionAnswer
from runner.core.events import (
    AssistantMessage,
    HandshakeAnswered,
    HandshakeRefused,
    MessageClosed,
    MessageStarted,
    NativeRequest,
    ProviderRetry,
    Question,
    QuestionOption,
    SessionReset,
    TextDelta,
    ToolCall,
    ToolResult,
    Usage,
    Warned,
)
from tests.native.runner_side.reading import read_activation
from tests.native.runner_side.recordings import CAPTURES, activations


@dataclass
class Expected:
    """What one activation of a recording must read as. `failed` None: it has no native end."""

    texts: list[str]
    failed: bool | None = False
    cancelled: bool = False
    reason: str | None = "completed"
    status: int | None = None
    closed: list[str] = field(default_factory=lambda: ["completed"])
    retire: list[str] = field(default_factory=list)
    tools: list[str] = field(default_factory=list)


RETRY = "API_RETRY_SEEN"
AUTONOMOUS = "AUTONOMOUS_TURN"
BACKGROUND = "BACKGROUND_TASK_PENDING"

# Recording by recording, activation by activation. Where the next message was written before the CLI had printed
# `completed` of this one, that line belongs to the next activation's stream, and is nobody's there.
EXPECTED: dict[str, list[Expected]] = {
    "ask_user_question": [Expected(["calling", "done ask"], tools=["AskUserQuestion"])],
    "background_bash_autonomous_turn": [
        Expected(["calling", "started it"], tools=["Bash"], retire=[BACKGROUND, AUTONOMOUS])
    ],
    "error_400_turn": [
        Expected(["A zero"], closed=[]),
        Expected([], failed=True, reason="api_error", status=400, closed=[]),
        Expected(["A two"]),
    ],
    "error_401": [Expected([], failed=True, reason="api_error", status=401, closed=["cancelled"], retire=[RETRY])],
    "error_retries_exhausted": [
        Expected([], failed=True, reason="api_error", status=500, closed=["cancelled"], retire=[RETRY])
    ],
    "fork": [Expected(["default reply 2"])],
    "interrupt_stream": [
        Expected(["A zero"], closed=[]),
        Expected(["A long partial "], failed=True, cancelled=True, reason="aborted_streaming", closed=["cancelled"]),
        Expected(["A two"]),
    ],
    "interrupt_tool": [
        Expected(["calling"], failed=True, cancelled=True, reason="aborted_tools", closed=[], tools=["Bash"]),
        Expected(["A two"]),
    ],
    "kill_right_after_result": [
        Expected(["A zero"], closed=[]),
        Expected(["A one"], closed=[]),
        Expected([], failed=None, closed=[]),
    ],
    "permission_can_use_tool": [
        Expected(["calling", "done1"], closed=[], tools=["Bash"]),
        Expected(["calling", "done2"], tools=["Bash"]),
    ],
    "plain_two_turns": [Expected(["Reply ONE «ü»"]), Expected(["Reply TWO"])],
    "resume": [Expected(["Reply THREE"])],
    "resume_missing_id": [],
    "resume_with_extra_result": [
        Expected(["calling", "A one"], tools=["Bash"], retire=[BACKGROUND]),
        Expected(["A two"]),
    ],
    "retry_defect": [
        Expected(["A zero"], closed=[]),
        Expected(["A one"], closed=[], retire=[RETRY]),
        Expected(["A two"]),
        Expected(["A three"]),
    ],
    "retry_defect_background_hole": [
        Expected(["A zero"], closed=[]),
        Expected(["calling", "A one"], tools=["Bash"], retire=[RETRY, BACKGROUND, AUTONOMOUS]),
        Expected(["A two"]),
    ],
    "retry_then_success_workaround": [
        Expected(["A zero"], closed=[]),
        Expected(["A one"], retire=[RETRY]),
        Expected(["A two"]),
    ],
    "slash_clear_changes_session": [
        Expected(["default reply 1"], closed=[]),
        Expected(["default reply 2"], closed=[]),
        Expected([], reason=None, closed=[]),
        Expected(["default reply 3"]),
    ],
    "stream_cut": [Expected(["Second try"])],
    "subagent_async_default": [
        Expected(["calling", "ROOT DONE"], tools=["Task", "Bash"], retire=[BACKGROUND, AUTONOMOUS])
    ],
    "subagent_retry": [Expected(["calling", "ROOT DONE"], tools=["Task"])],
    "subagent_sync": [Expected(["calling", "ROOT DONE"], tools=["Task", "Bash"])],
    "tool_bash": [Expected(["calling", "done"], tools=["Bash"])],
}


def test_every_recording_is_expected() -> None:
    assert sorted(EXPECTED) == sorted(path.stem for path in CAPTURES.glob("*.jsonl"))


@pytest.mark.parametrize("cut_every", [None, 1, 7, 4096])
@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_recording_reads_as_what_it_is_in_any_cuts(name: str, cut_every: int | None) -> None:
    found = activations(name)
    assert len(found) == len(EXPECTED[name])
    for activation, expected in zip(found, EXPECTED[name], strict=True):
        reading = read_activation(activation, cut_every=cut_every)
        assert reading.root_text == expected.texts
        assert [call.tool for call in reading.of(ToolCall)] == expected.tools
        assert [closed.state for closed in reading.of(MessageClosed)] == expected.closed
        assert sorted(reading.retirements) == sorted(expected.retire)
        assert reading.noise == 0
        if expected.failed is None:
            assert reading.ends == []
            continue
        [end] = reading.ends
        assert (end.failed, end.cancelled, end.reason, end.status) == (
            expected.failed,
            expected.cancelled,
            expected.reason,
            expected.status,
        )
        assert len(reading.of(MessageStarted)) == 1
        assert (end.error is not None) == end.failed


def test_a_good_resume_answers_the_handshake_and_names_no_session_yet() -> None:
    [activation] = activations("resume")
    answered = read_activation(activation).of(HandshakeAnswered)
    assert answered == [HandshakeAnswered(session_id=None)]


def test_a_resume_of_a_missing_session_is_a_refusal_with_no_identity() -> None:
    printed = b"".join((CAPTURES / "resume_missing_id.jsonl").read_bytes().splitlines(keepends=True)[:1])
    message = json.loads(printed)["msg"]
    activation = activations("resume")[0]
    activation.before, activation.after = [message], []
    reading = read_activation(activation)
    [refused] = reading.of(HandshakeRefused)
    assert refused.cause == "NO_SUCH_SESSION"
    assert "99999999-2222-4333-8444-555555555555" in refused.detail
    assert reading.session_ids == []
    assert reading.ends == []


def test_a_refusal_after_the_message_was_written_is_no_end_of_a_turn() -> None:
    reading = read_activation(activations("kill_right_after_result")[2])
    assert [refused.cause for refused in reading.of(HandshakeRefused)] == ["NO_SUCH_SESSION"]


def test_an_error_text_of_the_api_is_the_error_and_no_output() -> None:
    reading = read_activation(activations("error_400_turn")[1])
    assert reading.content == []
    assert reading.of(Warned) == []
    assert reading.ends[0].error == "API Error: 400 fixture error 400"


def test_retries_carry_attempt_delay_and_status() -> None:
    retries = read_activation(activations("error_retries_exhausted")[0]).of(ProviderRetry)
    assert retries == [ProviderRetry(1, 2, 572, 500, None), ProviderRetry(2, 2, 1017, 500, None)]


def test_a_sub_agents_retry_is_under_its_parent_and_keeps_the_process() -> None:
    reading = read_activation(activations("subagent_retry")[0])
    assert reading.of(ProviderRetry) == [ProviderRetry(1, 10, 573, 500, "toolu_task1")]
    assert reading.retirements == []


def test_a_sub_agents_events_are_under_their_parent_and_its_prompt_is_no_output() -> None:
    reading = read_activation(activations("subagent_sync")[0])
    children = [message for message in reading.of(AssistantMessage) if message.parent_id == "toolu_task1"]
    assert [message.text for message in children] == ["calling", "SUB DONE"]
    assert [call.parent_id for call in reading.of(ToolCall)] == [None, "toolu_task1"]
    assert [result.parent_id for result in reading.of(ToolResult)] == ["toolu_task1", None]
    assert not any("SUBPROMPT" in message.text for message in reading.of(AssistantMessage))


def test_what_a_background_sub_agent_prints_after_the_end_is_not_of_this_turn() -> None:
    reading = read_activation(activations("subagent_async_default")[0])
    end_at = reading.bodies.index(reading.ends[0])
    assert not any(isinstance(body, (AssistantMessage, ToolResult, ToolCall)) for body in reading.bodies[end_at:])
    assert "ROOT follow-up" not in reading.root_text


def test_an_extra_result_before_our_turn_is_not_ours() -> None:
    reading = read_activation(activations("resume_with_extra_result")[1])
    started_at = reading.bodies.index(MessageStarted())
    assert reading.bodies.index(reading.ends[0]) > started_at
    assert len(reading.ends) == 1


def test_clear_is_a_reset_to_another_session_and_its_note_is_no_output() -> None:
    reading = read_activation(activations("slash_clear_changes_session")[2])
    assert reading.of(SessionReset) == [SessionReset("d14ef086-8f3a-435f-aaa5-d6e9b3978c87")]
    assert len(reading.session_ids) == 2
    assert reading.content == []


def test_a_cut_stream_gives_its_deltas_and_then_the_whole_message() -> None:
    reading = read_activation(activations("stream_cut")[0])
    assert reading.content == [
        TextDelta("Partial t", None),
        AssistantMessage("msg_fx0002", "Second try", None, reading.of(AssistantMessage)[0].native_uuid),
    ]


def test_a_partial_answer_of_an_interrupted_turn_says_so() -> None:
    reading = read_activation(activations("interrupt_stream")[1])
    assert [message.aborted for message in reading.of(AssistantMessage)] == [True]


def test_questions_and_permissions_are_requests_with_their_ids() -> None:
    [question] = read_activation(activations("ask_user_question")[0]).of(NativeRequest)
    assert question.kind == "question"
    assert json.loads(question.payload_json)["input"]["questions"][0]["question"] == "Which colour?"
    assert question.questions == (
        Question(
            "Colour",
            "Which colour?",
            (QuestionOption("Red", "warm"), QuestionOption("Blue", "cold")),
            free_text=True,
        ),
    )
    [permission] = read_activation(activations("permission_can_use_tool")[0]).of(NativeRequest)
    assert (permission.kind, permission.request_id) == ("permission", "fa1b4973-52ab-48a1-aadf-5ec4551d9c13")
    assert (permission.tool, permission.parent_id) == ("Bash", None)


@pytest.mark.parametrize("name", ["ask_user_question", "permission_can_use_tool"])
def test_the_answers_we_write_are_the_recorded_ones(name: str) -> None:
    activation = activations(name)[0]
    answers: dict[str, Answer] = {
        "ask_user_question": QuestionAnswer((("Blue",),)),
        "permission_can_use_tool": PermissionAnswer(allow=True),
    }
    reading = read_activation(activation)
    [request] = reading.of(NativeRequest)
    [frame] = reading.driver.answer_frames(request.request_id, answers[name])
    rows = [json.loads(row) for row in (CAPTURES / f"{name}.jsonl").read_text().splitlines()]
    recorded = [row["msg"] for row in rows if row["dir"] == "in" and row["msg"]["type"] == "control_response"]
    assert json.loads(frame) == recorded[0]
    with pytest.raises(AnswerShapeError):
        reading.driver.answer_frames(request.request_id, answers[name])


def test_usage_counts_the_turn_and_not_the_process() -> None:
    second = read_activation(activations("plain_two_turns")[1])
    assert second.of(Usage) == [Usage(input_tokens=11, output_tokens=7, cache_read_tokens=0, cache_write_tokens=0)]


def test_an_assistant_message_carries_the_uuid_of_its_native_record() -> None:
    [message] = read_activation(activations("plain_two_turns")[0]).of(AssistantMessage)
    assert (message.message_id, message.native_uuid) == ("msg_fx0001", "19705f1f-8538-4762-b76f-078d09101893")


def test_the_frames_we_write_are_the_recorded_ones() -> None:
    for name in EXPECTED:
        for activation in activations(name):
            content = activation.frame["message"]["content"]
            if activation.text == "/clear" and len(content) == 1:
                continue  # the one frame that was recorded without the empty block, to show what it does
            reading = read_activation(activation)
            [frame] = reading.driver.user_frames(activation.text, message_id=activation.message_id)
            assert json.loads(frame) == activation.frame
