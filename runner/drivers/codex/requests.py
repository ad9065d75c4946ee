"""Requests of Codex to its client, and the answers to them. Pure.

    permission   item/commandExecution/requestApproval, item/fileChange/requestApproval
                 {"decision":"accept"} or {"decision":"decline"}: a declined call fails and the turn goes on (observed)
    question     item/tool/requestUserInput   {"answers":{<question id>:{"answers":[text]}}}
    other        anything else, and anything that is not our turn's: refused by a JSON-RPC error, which the CLI takes as
                 a call that failed (observed for a file change)

A question has no native refusal: a JSON-RPC error is taken as the empty answer {"answers":{}} and the model goes on with
it (observed), so none is ever sent for one; a question that nobody answers is ended by an interrupt, which resolves it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from runner.core.events import NativeRequest, Question
from runner.drivers.codex import frames
from runner.drivers.codex.frames import Frame, objects, read_list, read_text, to_json, whole_text
from runner.drivers.port import (
    Answer,
    AnswerShapeError,
    PermissionAnswer,
    QuestionAnswer,
    RejectAnswer,
)

_TOOLS = {
    "item/commandExecution/requestApproval": "shell",
    "item/fileChange/requestApproval": "apply_patch",
}
_QUESTION = "item/tool/requestUserInput"


@dataclass(frozen=True, slots=True)
class Asked:
    """One open request: as the client sees it, with the id as the CLI spells it and the ids of its questions."""

    request: NativeRequest
    native_id: int | str
    question_ids: tuple[str, ...] = ()


def id_text(native_id: object) -> str:
    """The request's id as text: the CLI counts in whole numbers."""
    return native_id if isinstance(native_id, str) else to_json(native_id)


def is_known(frame: Frame) -> bool:
    """Whether this driver may answer it with more than a refusal. One that names no turn belongs to none."""
    if frame.turn_id is None:
        return False
    return frame.kind in _TOOLS or (frame.kind == _QUESTION and bool(_questions(frame)))


def read(frame: Frame, *, is_ours: bool) -> Asked:
    """The request that a frame with a method and an id makes."""
    native_id = frame.asks
    assert native_id is not None
    request_id, payload = id_text(native_id), to_json(frame.params)
    if is_ours and frame.kind in _TOOLS:
        tool = _TOOLS[frame.kind]
        return Asked(NativeRequest(request_id, "permission", payload, tool=tool), native_id)
    if is_ours and frame.kind == _QUESTION:
        found = _questions(frame)
        ids = tuple(question_id for question_id, _ in found)
        questions = tuple(question for _, question in found)
        tool = "request_user_input"
        return Asked(NativeRequest(request_id, "question", payload, tool=tool, questions=questions), native_id, ids)
    return Asked(NativeRequest(request_id, "other", payload, tool=frame.kind), native_id)


def answer_frame(asked: Asked, answer: Answer) -> bytes:
    """The one frame of an answer. Raises AnswerShapeError when it does not fit the request."""
    kind = asked.request.kind
    match answer:
        case PermissionAnswer(allow=allow) if kind == "permission":
            return frames.result_frame(asked.native_id, {"decision": "accept" if allow else "decline"})
        case RejectAnswer() if kind == "permission":
            return frames.result_frame(asked.native_id, {"decision": "decline"})
        case QuestionAnswer(answers=answers) if kind == "question":
            return frames.result_frame(asked.native_id, {"answers": _answers(asked, answers)})
        case RejectAnswer() if kind == "question":
            raise AnswerShapeError(
                "expected an answer: this CLI has no refusal of a question; interrupt the turn instead"
            )
        case RejectAnswer(message=message):
            return frames.error_frame(asked.native_id, message)
        case _:
            raise AnswerShapeError(f"expected an answer to a {kind}, found {type(answer).__name__}")


def _answers(asked: Asked, answers: tuple[tuple[str, ...], ...]) -> dict[str, Any]:
    questions = asked.request.questions
    if len(answers) != len(questions):
        raise AnswerShapeError(f"expected {len(questions)} answers, one a question, found {len(answers)}")
    for number, (question, chosen) in enumerate(zip(questions, answers, strict=True), start=1):
        if len(chosen) != 1 or not chosen[0].strip():
            raise AnswerShapeError(f"expected one answer to question {number}, found {len(chosen)}, or a blank one")
        if not question.free_text and chosen[0] not in question.options:
            raise AnswerShapeError(
                f"expected one of the {len(question.options)} options of question {number}, found another text"
            )
    return {
        question_id: {"answers": list(chosen)} for question_id, chosen in zip(asked.question_ids, answers, strict=True)
    }


def _questions(frame: Frame) -> list[tuple[str, Question]]:
    """Each question with its id. One without an id, or two with the same, could not be answered one to one: none then."""
    found = []
    listed = read_list(frame.params, "questions")
    for fields in objects(listed):
        question_id = read_text(fields, "id")
        if question_id is None:
            return []
        options = tuple(_options(fields))
        question = Question(
            header=read_text(fields, "header") or "",
            text=read_text(fields, "question") or "",
            options=options,
            multiple=False,
            free_text=fields.get("isOther") is True or not options,
        )
        found.append((question_id, question))
    is_whole = len(found) == len(listed) and len({question_id for question_id, _ in found}) == len(found)
    return found if is_whole else []


def _options(fields: dict[str, Any]) -> list[str]:
    """The options' labels. An option is an object with a label; a plain text is one as well."""
    labels = []
    for option in read_list(fields, "options"):
        if isinstance(option, dict):
            option = read_text(option, "label")
        if isinstance(option, str):
            labels.append(whole_text(option))
    return labels
