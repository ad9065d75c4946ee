"""What Claude Code asks and how it is answered, as its frames were seen on 2.1.220."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runner.core.answers import Answer, AnswerShapeError, PermissionAnswer, QuestionAnswer, RejectAnswer
from runner.core.events import NativeRequest, RequestWithdrawn
from runner.drivers.claude_code.driver import ClaudeCodeDriver
from sandbox_manager.agents.claude_code import gate_grammar
from sandbox_manager.agents.port import AnswerFrame, InterruptFrame

QUESTIONS = {
    "questions": [
        {
            "question": "Which colour?",
            "header": "Colour",
            "options": [{"label": "Red", "description": "warm"}],
            "multiSelect": False,
        },
        {"question": "Which fruits?", "header": "Fruit", "options": [{"label": "Apple, red"}], "multiSelect": True},
    ]
}


def asks(tool: str, tool_input: Any, request_id: str = "r1", **more: Any) -> dict[str, Any]:
    request = {"subtype": "can_use_tool", "tool_name": tool, "input": tool_input, "tool_use_id": "toolu_1", **more}
    return {"type": "control_request", "request_id": request_id, "request": request}


def reading(driver: ClaudeCodeDriver, *frames: dict[str, Any]) -> list[Any]:
    data = b"".join(json.dumps(frame).encode() + b"\n" for frame in frames)
    return [event.body for event in driver.feed(data) if isinstance(event.body, NativeRequest | RequestWithdrawn)]


def told(driver: ClaudeCodeDriver, answer: Answer, request_id: str = "r1") -> dict[str, Any]:
    """The answer as the CLI reads it. The host's gate knows it as one."""
    [frame] = driver.answer_frames(request_id, answer)
    assert gate_grammar.classify(frame) == AnswerFrame(request_id)
    response: dict[str, Any] = json.loads(frame)["response"]
    return response


def test_an_allowed_call_keeps_its_input_and_changes_no_rule() -> None:
    driver = ClaudeCodeDriver()
    tool_input = {"command": "echo \u2028 é \ud83d", "n": 1.0, "deep": [{"a": None}]}
    suggestions = [{"type": "setMode", "mode": "acceptEdits", "destination": "session"}]
    [request] = reading(driver, asks("Bash", tool_input, permission_suggestions=suggestions))
    assert (request.kind, request.tool, request.questions) == ("permission", "Bash", ())
    driver = ClaudeCodeDriver()
    tool_input["command"] = "echo \u2028 é"
    reading(driver, asks("Bash", tool_input))
    assert told(driver, PermissionAnswer(allow=True))["response"] == {
        "behavior": "allow",
        "updatedInput": tool_input,
    }


@pytest.mark.parametrize(("message", "said"), [("not here", "not here"), ("", "The user does not allow this call.")])
def test_a_denied_call_says_why(message: str, said: str) -> None:
    driver = ClaudeCodeDriver()
    reading(driver, asks("Bash", {}))
    assert told(driver, PermissionAnswer(allow=False, message=message))["response"] == {
        "behavior": "deny",
        "message": said,
    }


def test_each_question_gets_its_own_answer_and_the_input_stays() -> None:
    driver = ClaudeCodeDriver()
    [request] = reading(driver, asks("AskUserQuestion", QUESTIONS, requires_user_interaction=True))
    assert request.kind == "question"
    assert [question.multiple for question in request.questions] == [False, True]
    answer = QuestionAnswer((("Something else",), ("Apple, red", "Plum")))
    assert told(driver, answer)["response"] == {
        "behavior": "allow",
        "updatedInput": QUESTIONS
        | {"answers": {"Which colour?": "Something else", "Which fruits?": "Apple, red, Plum"}},
    }


def test_a_rejected_question_is_denied() -> None:
    driver = ClaudeCodeDriver()
    reading(driver, asks("AskUserQuestion", QUESTIONS))
    assert told(driver, RejectAnswer("Nobody answered in time."))["response"]["behavior"] == "deny"


@pytest.mark.parametrize(
    "frame",
    [
        asks("ExitPlanMode", {"plan": "x"}, requires_user_interaction=True),
        asks("AskUserQuestion", {}),
        asks("AskUserQuestion", {"questions": []}),
        asks("AskUserQuestion", {"questions": ["Which?"]}),
        asks("AskUserQuestion", {"questions": [{"question": "Same?"}, {"question": "Same?"}]}),
        {"type": "control_request", "request_id": "r1", "request": {"subtype": "mcp_message"}},
        {"type": "control_request", "request_id": "r1"},
    ],
)
def test_what_cannot_be_answered_one_to_one_is_refused_with_a_protocol_error(frame: dict[str, Any]) -> None:
    driver = ClaudeCodeDriver()
    [request] = reading(driver, frame)
    assert request.kind == "other"
    [refusal] = driver.answer_unknown_frames("r1")
    assert json.loads(refusal)["response"]["subtype"] == "error"
    assert gate_grammar.classify(refusal) == AnswerFrame("r1")


def test_a_sub_agents_request_is_told_apart_by_the_call_that_began_it() -> None:
    driver = ClaudeCodeDriver()
    began = {"type": "system", "subtype": "task_started", "task_id": "agent-1", "tool_use_id": "toolu_task"}
    root, sub, older = reading(
        driver,
        began,
        asks("Bash", {}, "r1"),
        asks("Bash", {}, "r2", agent_id="agent-1"),
        asks("Bash", {}, "r3", agent_id="agent-0"),
    )
    assert (root.parent_id, sub.parent_id, older.parent_id) == (None, "toolu_task", "agent-0")


def test_a_request_that_was_taken_back_cannot_be_answered() -> None:
    driver = ClaudeCodeDriver()
    withdrawal = {"type": "control_cancel_request", "request_id": "r1"}
    events = reading(driver, asks("Bash", {}), withdrawal, withdrawal)
    assert events[1:] == [RequestWithdrawn("r1")]
    with pytest.raises(AnswerShapeError):
        driver.answer_frames("r1", PermissionAnswer(allow=True))


def test_an_answer_that_does_not_fit_writes_nothing_and_can_be_given_anew() -> None:
    driver = ClaudeCodeDriver()
    reading(driver, asks("AskUserQuestion", QUESTIONS))
    with pytest.raises(AnswerShapeError):
        driver.answer_frames("r1", QuestionAnswer((("Red",),)))
    assert driver.answer_frames("r1", QuestionAnswer((("Red",), ("Apple, red",))))


def test_an_interrupt_cancels_what_the_cli_has_not_begun_on_and_passes_the_gate() -> None:
    [frame] = ClaudeCodeDriver().interrupt_frames()
    assert json.loads(frame)["request"] == {"subtype": "interrupt", "cancel_queued": True}
    assert isinstance(gate_grammar.classify(frame), InterruptFrame)


def test_this_cli_cannot_be_steered() -> None:
    assert ClaudeCodeDriver().steer_frames("more", message_id="m") is None
