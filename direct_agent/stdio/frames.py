"""The lines towards the agent: typed, or refused by name. Pure.

    {"type":"initialize","id":R}                                 first of all; answered by `initialized` or `initialize_failed`
    {"type":"user","message_id":U,"text":T}                      one message, its text verbatim
    {"type":"steer","message_id":U,"text":T}                     a further text into the running turn
    {"type":"interrupt","id":R}                                  ends the running turn
    {"type":"answer","request_id":Q,"allow":B,"message":T}       to a permission; the message may be left out
    {"type":"answer","request_id":Q,"answers":[[T,..],..]}       to a question, one list a question
    {"type":"answer","request_id":Q,"refused":T}                 to a question: nobody answers it
    {"type":"lookup","id":R,"message_id":U}                      was this message delivered? answered by `looked_up`
    {"type":"compact","id":R}                                    shortens the history; answered by `compacted`

Text is never looked into: there are no commands in it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from direct_agent.loop.requests import PermissionAnswer, QuestionAnswer

ID_CHARACTERS_MAX = 200


class FrameError(Exception):
    """A line that is none of these. The text names shapes, never content."""


@dataclass(frozen=True, slots=True)
class Initialize:
    id: str


@dataclass(frozen=True, slots=True)
class User:
    message_id: str
    text: str


@dataclass(frozen=True, slots=True)
class SteerText:
    message_id: str
    text: str


@dataclass(frozen=True, slots=True)
class Interrupt:
    id: str


@dataclass(frozen=True, slots=True)
class Answer:
    request_id: str
    answer: PermissionAnswer | QuestionAnswer


@dataclass(frozen=True, slots=True)
class Lookup:
    id: str
    message_id: str


@dataclass(frozen=True, slots=True)
class Compact:
    id: str


Frame = Initialize | User | SteerText | Interrupt | Answer | Lookup | Compact


def parse(line: bytes) -> Frame:
    """One line without its line end. Raises FrameError."""
    try:
        value = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        raise FrameError("expected one JSON object a line, found something else") from None
    if not isinstance(value, dict):
        raise FrameError("expected one JSON object a line, found another JSON value")
    match value.get("type"):
        case "initialize":
            return Initialize(_id(_only(value, "id"), "id"))
        case "user":
            fields = _only(value, "message_id", "text")
            return User(_id(fields, "message_id"), _text(fields, "text"))
        case "steer":
            fields = _only(value, "message_id", "text")
            return SteerText(_id(fields, "message_id"), _text(fields, "text"))
        case "interrupt":
            return Interrupt(_id(_only(value, "id"), "id"))
        case "answer":
            return _answer(value)
        case "lookup":
            fields = _only(value, "id", "message_id")
            return Lookup(_id(fields, "id"), _id(fields, "message_id"))
        case "compact":
            return Compact(_id(_only(value, "id"), "id"))
        case _:
            raise FrameError(
                "expected the type initialize, user, steer, interrupt, answer, lookup or compact, found another"
            )


def _answer(value: dict[str, Any]) -> Answer:
    request_id = _id(value, "request_id")
    if "allow" in value:
        fields = _only(value, "request_id", "allow", "message")
        if not isinstance(fields["allow"], bool):
            raise FrameError("expected true or false as allow, found another value")
        return Answer(request_id, PermissionAnswer(fields["allow"], _text(fields, "message", default="")))
    if "refused" in value:
        return Answer(request_id, QuestionAnswer(refused=_text(_only(value, "request_id", "refused"), "refused")))
    answers = _only(value, "request_id", "answers").get("answers")
    if not isinstance(answers, list) or not all(
        isinstance(each, list) and all(isinstance(text, str) for text in each) for each in answers
    ):
        raise FrameError("expected allow, refused, or answers as a list of lists of texts in an answer")
    return Answer(request_id, QuestionAnswer(tuple(tuple(each) for each in answers)))


def _only(value: dict[str, Any], *names: str) -> dict[str, Any]:
    if not set(value) <= {"type", *names}:
        raise FrameError(f"expected the keys type, {', '.join(names)}, found others")
    return value


def _id(value: dict[str, Any], name: str) -> str:
    found = value.get(name)
    if not isinstance(found, str) or not 0 < len(found) <= ID_CHARACTERS_MAX:
        raise FrameError(f"expected a text of 1 to {ID_CHARACTERS_MAX} characters as {name}")
    return found


def _text(value: dict[str, Any], name: str, *, default: str | None = None) -> str:
    found = value.get(name, default)
    if not isinstance(found, str):
        raise FrameError(f"expected a text as {name}, found another value")
    return found


def to_line(event: dict[str, Any]) -> bytes:
    """One event as one line. Characters that are line ends to some readers, and half surrogate pairs, are escaped."""
    written = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    for character in ("\x85", "\u2028", "\u2029"):
        written = written.replace(character, f"\\u{ord(character):04x}")
    try:
        return written.encode("utf-8") + b"\n"
    except UnicodeEncodeError:
        return json.dumps(event, separators=(",", ":")).encode("ascii") + b"\n"
