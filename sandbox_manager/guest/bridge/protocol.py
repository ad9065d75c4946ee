"""Bridge protocol 4: one JSON object a line, UTF-8, both ways. What a line must look like, and nothing else.

Towards the bridge (every line has `v` 4 and an `op`):

    open         id, session (null: make one), directory
    prompt       id (the message's), text
    permission   id (of the request), allow, message
    answers      id, answers: one list of texts for each question, in order
    reject       id, message: of a question
    abort        id

From the bridge (`v`, `ev`; each line about a session names it in `session`, and in `parent` the Task call where it is a child's):

    opened       id, session, directory, is_new, messages, has_more, server
    refused      id, cause, detail: what was asked for did not happen, and nothing of it was sent
    accepted     id, session, native_id       the server took the prompt
    started      id, session, native_id       the server works on it
    delta        session, parent, message, part, text
    text         session, parent, message, part, text: one whole text of the assistant
    tool         session, parent, call, tool, input
    tool_result  session, parent, call, tool, text, is_error
    retry        session, attempt, delay_ms, detail
    ask          session, parent, id, kind permission|question, tool, questions, payload
    asked        id, how: the request is closed: allowed, denied, answered, rejected, gone
    warning      code, detail
    settled      id, session, native_id, outcome completed|failed|cancelled, reason, error, status, finish, last_message, usage
    broken       id, session, cause, detail: this turn will have no native end; the native turn was told to stop
    retire       reason: this process should serve no other turn
"""

import json
from dataclasses import dataclass
from typing import Any

from . import PROTOCOL

_ID_LENGTH_MAX = 200


class LineRefusedError(ValueError):
    """A line that is not of this protocol. Its text names shapes, never content."""

    def __init__(self, expected: str, request_id: str | None = None) -> None:
        super().__init__(expected)
        self.request_id = request_id


@dataclass(frozen=True)
class Open:
    """Make or resume the session."""

    id: str
    session: str | None
    directory: str


@dataclass(frozen=True)
class Prompt:
    """Send this text, as it is."""

    id: str
    text: str


@dataclass(frozen=True)
class PermissionAnswer:
    """Allow once, or refuse with a message for the model."""

    id: str
    allow: bool
    message: str


@dataclass(frozen=True)
class QuestionAnswers:
    """One list of texts for each question, in order."""

    id: str
    answers: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class QuestionReject:
    """The question stays unanswered; natively that ends the turn."""

    id: str
    message: str


@dataclass(frozen=True)
class Abort:
    """End the running turn."""

    id: str


Line = Open | Prompt | PermissionAnswer | QuestionAnswers | QuestionReject | Abort


def parse(line: bytes) -> Line:
    """Reads one line without its line end. Raises LineRefusedError."""
    try:
        value = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        raise LineRefusedError("expected one JSON object a line, found something else") from None
    if not isinstance(value, dict):
        raise LineRefusedError("expected one JSON object a line, found another JSON value")
    request_id = value.get("id")
    if not isinstance(request_id, str) or not 0 < len(request_id) <= _ID_LENGTH_MAX:
        raise LineRefusedError("expected a short text as id")
    try:
        if value.pop("v", None) != PROTOCOL:
            raise LineRefusedError(f"expected v to be {PROTOCOL}, found another version of the protocol")
        return _line(value.pop("op", None), value)
    except LineRefusedError as refused:
        raise LineRefusedError(str(refused), request_id) from None


def _line(op: object, value: dict[str, Any]) -> Line:
    match op:
        case "open":
            _keys(value, "id", "session", "directory")
            session = value["session"]
            if session is not None and not isinstance(session, str):
                raise LineRefusedError("expected session to be a text or null")
            return Open(value["id"], session, _text(value, "directory"))
        case "prompt":
            _keys(value, "id", "text")
            return Prompt(value["id"], _text(value, "text"))
        case "permission":
            _keys(value, "id", "allow", "message")
            if not isinstance(value["allow"], bool):
                raise LineRefusedError("expected allow to be true or false")
            return PermissionAnswer(value["id"], value["allow"], _text(value, "message"))
        case "answers":
            _keys(value, "id", "answers")
            return QuestionAnswers(value["id"], _answers(value["answers"]))
        case "reject":
            _keys(value, "id", "message")
            return QuestionReject(value["id"], _text(value, "message"))
        case "abort":
            _keys(value, "id")
            return Abort(value["id"])
        case _:
            raise LineRefusedError("expected op to be open, prompt, permission, answers, reject or abort")


def _keys(value: dict[str, Any], *names: str) -> None:
    if set(value) != set(names):
        raise LineRefusedError(f"expected exactly the keys v, op, {', '.join(names)}")


def _text(value: dict[str, Any], name: str) -> str:
    found = value[name]
    if not isinstance(found, str):
        raise LineRefusedError(f"expected {name} to be a text")
    return found


def _answers(value: object) -> tuple[tuple[str, ...], ...]:
    if not isinstance(value, list) or not all(
        isinstance(one, list) and all(isinstance(text, str) for text in one) for one in value
    ):
        raise LineRefusedError("expected answers to be a list with one list of texts for each question")
    return tuple(tuple(one) for one in value)


def encode(event: dict[str, Any]) -> bytes:
    """One line from the bridge. ASCII only, so that no text in it can be taken for a line end by anyone."""
    return json.dumps({"v": PROTOCOL, **event}, separators=(",", ":")).encode("ascii") + b"\n"
