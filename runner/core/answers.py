"""Answers to native requests, and whether one has the shape that its request wants. Pure.

Nothing is added, cut or chosen: an answer that does not fit is refused, so that no CLI gets an empty or an invented one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runner.core.errors import RunnerError
from runner.core.events import NativeRequest, Question

MESSAGE_MAX_LENGTH = 4096
VALUE_MAX_LENGTH = 16384


@dataclass(frozen=True, slots=True)
class PermissionAnswer:
    """One call of a tool is allowed as it was shown, or it is not. `message` goes along with a refusal."""

    allow: bool
    message: str = ""


@dataclass(frozen=True, slots=True)
class QuestionAnswer:
    """One tuple of values a question, in the questions' order."""

    answers: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class RejectAnswer:
    """There will be no answer to a question; `message` says why."""

    message: str


Answer = PermissionAnswer | QuestionAnswer | RejectAnswer


class AnswerShapeError(RunnerError):
    """The answer is not of the shape that the request wants. Nothing was told to the CLI; the request stays open."""

    reason = "ANSWER_INVALID"

    def __init__(self, expected: str, found: str, metadata: Mapping[str, object] | None = None) -> None:
        facts = {"expected": expected, "found": found, **(metadata or {})}
        super().__init__(f"answer: expected {expected}; found {found}. The request stays open.", facts)


def check_answer(request: NativeRequest, answer: Answer) -> None:
    """Raises AnswerShapeError for an answer that does not fit."""
    match answer:
        case RejectAnswer(message):
            if request.kind != "question":
                raise AnswerShapeError(_WANTED.get(request.kind, "none"), "the rejection of a question")
            _check_length("a message", message, MESSAGE_MAX_LENGTH)
        case PermissionAnswer(_, message):
            if request.kind != "permission":
                raise AnswerShapeError(_WANTED.get(request.kind, "none"), "a permission's answer")
            _check_length("a message", message, MESSAGE_MAX_LENGTH)
        case QuestionAnswer(answers):
            if request.kind != "question":
                raise AnswerShapeError(_WANTED.get(request.kind, "none"), "a question's answer")
            _check_questions(request.questions, answers)


_WANTED = {
    "permission": "ALLOW or DENY, since a permission is asked for",
    "question": "one answer a question, or a rejection, since a question is asked",
    "other": "no answer, since the request is of a kind that is refused natively",
}


def _check_questions(questions: tuple[Question, ...], answers: tuple[tuple[str, ...], ...]) -> None:
    if len(answers) != len(questions):
        raise AnswerShapeError(f"{len(questions)} answers, one a question", f"{len(answers)}")
    for number, (question, values) in enumerate(zip(questions, answers, strict=True), 1):
        where = {"question": number}
        if not values:
            raise AnswerShapeError(f"a value for question {number}", "none", where)
        if len(values) > 1 and not question.multiple:
            raise AnswerShapeError(f"one value for question {number}", f"{len(values)}", where)
        if len(set(values)) != len(values):
            raise AnswerShapeError(f"each value once for question {number}", "one that is given twice", where)
        labels = {option.label for option in question.options}
        for value in values:
            if not value.strip():
                raise AnswerShapeError(f"a text as value of question {number}", "an empty one", where)
            _check_length(f"a value of question {number}", value, VALUE_MAX_LENGTH)
            if value not in labels and not question.free_text:
                known = ", ".join(sorted(labels))[:400] or "none"
                raise AnswerShapeError(f"one of the options of question {number}: {known}", repr(value[:80]), where)


def _check_length(what: str, text: str, most: int) -> None:
    if len(text) > most:
        raise AnswerShapeError(f"{what} of at most {most} characters", f"one of {len(text)}")
    if "\x00" in text:
        raise AnswerShapeError(f"{what} without NUL", "one in it")
