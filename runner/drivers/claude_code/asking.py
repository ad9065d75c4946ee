"""What Claude Code asks in the middle of a turn, and the native answer to each. Pure.

All of it comes as the control request `can_use_tool` (only with `--permission-prompt-tool stdio`). A permission names the tool and
the input of this one call. `AskUserQuestion` is a question, in every permission mode: it is answered by allowing the call with
`answers` added to its input, the values of one question joined by ", ", and it is rejected by denying the call (all observed on
2.1.220). A sub-agent's request carries no `parent_tool_use_id`; its `agent_id` is the `task_id` of the `system/task_started` that
names the root's tool call. Another call that wants a person (`requires_user_interaction`) is none that can be answered here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from runner.core.answers import Answer, AnswerShapeError, PermissionAnswer, QuestionAnswer, RejectAnswer, check_answer
from runner.core.events import NativeRequest, Question, QuestionOption, RequestWithdrawn
from runner.drivers.claude_code import frames
from runner.drivers.claude_code.frames import Frame
from runner.drivers.json_fields import objects, read_list, read_object, read_text, to_json

QUESTION_TOOL = "AskUserQuestion"
_DENIED = "The user does not allow this call."


@dataclass(frozen=True, slots=True)
class _Open:
    request: NativeRequest
    tool_input: dict[str, Any]


class OpenRequests:
    """The requests of one activation that were not answered yet."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self._calls_of_agents: dict[str, str] = {}

    def note_task(self, frame: Frame) -> None:
        """A sub-agent began: `system/task_started`."""
        agent_id, call_id = frame.text("task_id"), frame.text("tool_use_id")
        if agent_id is not None and call_id is not None:
            self._calls_of_agents[agent_id] = call_id

    def ask(self, frame: Frame) -> list[NativeRequest]:
        """The request that this frame makes; none where it has no id, since nothing could be answered then."""
        request_id = frame.text("request_id")
        if request_id is None:
            return []
        asked = frame.object("request")
        tool_input = read_object(asked, "input")
        kind, tool, questions = _what(asked, tool_input)
        agent_id = read_text(asked, "agent_id")
        request = NativeRequest(
            request_id=request_id,
            kind=kind,
            payload_json=to_json(asked),
            tool=tool,
            questions=questions,
            # An agent that was begun by an earlier turn is known by its own id only.
            parent_id=None if agent_id is None else self._calls_of_agents.get(agent_id, agent_id),
        )
        self._open[request_id] = _Open(request, tool_input)
        return [request]

    def withdraw(self, frame: Frame) -> list[RequestWithdrawn]:
        """The CLI takes a request back: `control_cancel_request`."""
        request_id = frame.text("request_id")
        if request_id is None or self._open.pop(request_id, None) is None:
            return []
        return [RequestWithdrawn(request_id)]

    def answer(self, request_id: str, answer: Answer) -> bytes:
        """The native answer, once. Raises AnswerShapeError."""
        found = self._open.get(request_id)
        if found is None:
            raise AnswerShapeError("the id of an open request", "another")
        check_answer(found.request, answer)
        frame = self._frame(found, request_id, answer)
        del self._open[request_id]
        return frame

    def _frame(self, found: _Open, request_id: str, answer: Answer) -> bytes:
        match answer:
            case PermissionAnswer(allow=True):
                return frames.allow_frame(request_id, found.tool_input)
            case PermissionAnswer(message=message) | RejectAnswer(message):
                return frames.deny_frame(request_id, message or _DENIED)
            case QuestionAnswer(answers):
                told = {
                    question.text: ", ".join(values)
                    for question, values in zip(found.request.questions, answers, strict=True)
                }
                return frames.allow_frame(request_id, {**found.tool_input, "answers": told})


def _what(asked: dict[str, Any], tool_input: dict[str, Any]) -> tuple[str, str | None, tuple[Question, ...]]:
    """Kind, tool and questions."""
    tool = read_text(asked, "tool_name")
    if read_text(asked, "subtype") != "can_use_tool" or tool is None:
        return "other", None, ()
    if tool == QUESTION_TOOL:
        questions = _questions(tool_input)
        return ("question" if questions else "other"), tool, questions
    return ("other" if asked.get("requires_user_interaction") is True else "permission"), tool, ()


def _questions(tool_input: dict[str, Any]) -> tuple[Question, ...]:
    """None for a question that could not be answered one to one: the CLI tells answers apart by the questions' texts."""
    found = []
    listed = read_list(tool_input, "questions")
    for asked in objects(listed):
        text = asked.get("question")
        if not isinstance(text, str) or not text:
            return ()
        options = tuple(
            QuestionOption(read_text(option, "label") or "", read_text(option, "description") or "")
            for option in objects(read_list(asked, "options"))
        )
        found.append(
            Question(
                header=read_text(asked, "header") or "",
                text=text,
                options=options,
                multiple=asked.get("multiSelect") is True,
                free_text=True,  # its own screen offers "Other" with every question, and it takes any text (observed)
            )
        )
    if len(found) != len(listed) or len({question.text for question in found}) != len(found):
        return ()
    return tuple(found)
