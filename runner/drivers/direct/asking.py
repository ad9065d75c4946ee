"""What the built-in agent asks in the middle of a turn, and the answer to each. Pure.

A `request` names its kind; the agent takes exactly one answer of that kind, and says `request_closed` when it wants none any more.
"""

from __future__ import annotations

import json

from runner.core.answers import Answer, AnswerShapeError, PermissionAnswer, QuestionAnswer, RejectAnswer, check_answer
from runner.core.events import NativeRequest, Question, QuestionOption, RequestWithdrawn
from runner.drivers.direct import frames
from runner.drivers.direct.frames import Frame


class OpenRequests:
    """The requests of one activation that were not answered yet."""

    def __init__(self) -> None:
        self._open: dict[str, NativeRequest] = {}

    def ask(self, frame: Frame) -> list[NativeRequest]:
        """The request that this frame makes; none where it has no id, since nothing could be answered then."""
        request_id = frame.text("request_id")
        if request_id is None:
            return []
        questions = tuple(_question(each) for each in frame.objects("questions"))
        request = NativeRequest(
            request_id=request_id,
            kind=_kind(frame, questions),
            payload_json=json.dumps(frame.fields, separators=(",", ":")),
            tool=frame.text("tool"),
            questions=questions,
        )
        self._open[request_id] = request
        return [request]

    def close(self, frame: Frame) -> list[RequestWithdrawn]:
        """The agent wants no answer any more: `request_closed`, which also follows each answer."""
        request_id = frame.text("request_id")
        if request_id is None or self._open.pop(request_id, None) is None:
            return []
        return [RequestWithdrawn(request_id)]

    def answer(self, request_id: str, answer: Answer) -> bytes:
        """The native answer, once. Raises AnswerShapeError."""
        request = self._open.get(request_id)
        if request is None:
            raise AnswerShapeError("the id of an open request", "another")
        check_answer(request, answer)
        del self._open[request_id]
        match answer:
            case PermissionAnswer(allow, message):
                return frames.permission_frame(request_id, allow=allow, message=message)
            case QuestionAnswer(answers):
                return frames.question_frame(request_id, [list(values) for values in answers])
            case RejectAnswer(message):
                return frames.refused_question_frame(request_id, message)


def _kind(frame: Frame, questions: tuple[Question, ...]) -> str:
    """What could be shown to nobody (no tool, no question, one without a text) cannot be answered either."""
    match frame.text("kind"):
        case "permission" if frame.text("tool"):
            return "permission"
        case "question" if questions and all(question.text for question in questions):
            return "question"
        case _:
            return "other"


def _question(frame: Frame) -> Question:
    listed = frame.fields.get("options")
    options = [each for each in listed if isinstance(each, str)] if isinstance(listed, list) else []
    return Question(
        header=frame.text("header") or "",
        text=frame.text("text") or "",
        options=tuple(QuestionOption(label, "") for label in options),
        multiple=frame.fields.get("multiple") is True,
        free_text=frame.fields.get("free_text") is True,
    )
