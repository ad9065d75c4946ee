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

from runner.core.answers import Answer, AnswerShapeError, PermissionAnswer, QuestionAnswer, RejectAnswer, check_answer
from runner.core.events import NativeRequest, Question, QuestionOption, RequestWithdrawn
from runner.drivers.codex import frames
from runner.drivers.codex.frames import Frame
from runner.drivers.json_fields import objects, read_list, read_text, to_json, whole_text

_TOOLS = {
    "item/commandExecution/requestApproval": "shell",
    "item/fileChange/requestApproval": "apply_patch",
}
_QUESTION = "item/tool/requestUserInput"


@dataclass(frozen=True, slots=True)
class _Asked:
    """One open request: as the client sees it, with the id as the CLI spells it and the ids of its questions."""

    request: NativeRequest
    native_id: int | str
    question_ids: tuple[str, ...] = ()


class OpenRequests:
    """The requests of one activation that were not answered yet."""

    def __init__(self) -> None:
        self._open: dict[str, _Asked] = {}

    def ask(self, frame: Frame, *, is_ours: bool) -> list[NativeRequest]:
        """The request that a frame with a method and an id makes. A stranger's is one that nobody can answer here."""
        native_id = frame.asks
        if native_id is None:
            return []
        asked = _asked(frame, native_id, is_ours=is_ours)
        self._open[asked.request.request_id] = asked
        return [asked.request]

    def withdraw(self, native_id: object) -> list[RequestWithdrawn]:
        """`serverRequest/resolved`: answered, or ended with its turn. After an answer it says nothing new."""
        request_id = _id_text(native_id)
        return [] if self._open.pop(request_id, None) is None else [RequestWithdrawn(request_id)]

    def answer(self, request_id: str, answer: Answer) -> bytes:
        """The native answer, once. Raises AnswerShapeError."""
        asked = self._open.get(request_id)
        if asked is None:
            raise AnswerShapeError("the id of an open request", "another")
        check_answer(asked.request, answer)
        frame = _answer_frame(asked, answer)
        del self._open[request_id]
        return frame

    def refuse(self, request_id: str) -> bytes | None:
        """The protocol's refusal. None for a question, which would be answered by it, and for one that is not open."""
        asked = self._open.pop(request_id, None)
        if asked is None or asked.request.kind == "question":
            return None
        return frames.error_frame(asked.native_id, "this client does not answer requests of this kind")


def is_known(frame: Frame) -> bool:
    """Whether it may be answered with more than a refusal. One that names no turn belongs to none."""
    if frame.turn_id is None:
        return False
    return frame.kind in _TOOLS or (frame.kind == _QUESTION and bool(_questions(frame)))


def _asked(frame: Frame, native_id: int | str, *, is_ours: bool) -> _Asked:
    request_id, payload = _id_text(native_id), to_json(frame.params)
    if is_ours and frame.kind in _TOOLS:
        return _Asked(NativeRequest(request_id, "permission", payload, tool=_TOOLS[frame.kind]), native_id)
    if is_ours and frame.kind == _QUESTION:
        found = _questions(frame)
        questions = tuple(question for _, question in found)
        request = NativeRequest(request_id, "question", payload, tool="request_user_input", questions=questions)
        return _Asked(request, native_id, tuple(question_id for question_id, _ in found))
    return _Asked(NativeRequest(request_id, "other", payload, tool=frame.kind), native_id)


def _answer_frame(asked: _Asked, answer: Answer) -> bytes:
    match answer:
        case PermissionAnswer(allow=allow):
            # A refusal's message has no place in this protocol.
            return frames.result_frame(asked.native_id, {"decision": "accept" if allow else "decline"})
        case QuestionAnswer(answers=answers):
            told = zip(asked.question_ids, answers, strict=True)
            return frames.result_frame(
                asked.native_id, {"answers": {question_id: {"answers": list(values)} for question_id, values in told}}
            )
        case RejectAnswer():
            raise AnswerShapeError(
                "an answer, or the turn's interrupt: this CLI cannot reject a question", "a rejection"
            )


def _id_text(native_id: object) -> str:
    """The request's id as text: the CLI counts in whole numbers from 0."""
    return native_id if isinstance(native_id, str) else to_json(native_id)


def _questions(frame: Frame) -> list[tuple[str, Question]]:
    """Each question with its id. One without an id, or two with the same, could not be answered one to one: none then."""
    found = []
    listed = read_list(frame.params, "questions")
    for fields in objects(listed):
        question_id = read_text(fields, "id")
        if question_id is None:
            return []
        options = _options(fields)
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


def _options(fields: dict[str, Any]) -> tuple[QuestionOption, ...]:
    """An option is an object with a label; a plain text is one as well."""
    found = []
    for option in read_list(fields, "options"):
        if isinstance(option, str):
            found.append(QuestionOption(whole_text(option), ""))
        elif isinstance(option, dict) and (label := read_text(option, "label")) is not None:
            found.append(QuestionOption(label, read_text(option, "description") or ""))
    return tuple(found)
