"""The grammar of lines towards the built-in agent: what the last gate may recognise. Everything that is not listed is forbidden.

    handshake   {"type":"initialize","id":R}
    message     {"type":"user","message_id":U,"text":T}
    interrupt   {"type":"interrupt","id":R}
    fence       {"type":"lookup","id":R,"message_id":U}          reads only
    answer      {"type":"answer","request_id":Q,"allow":B} with or without "message":M
                {"type":"answer","request_id":Q,"answers":[[T,..],..]}
                {"type":"answer","request_id":Q,"refused":M}

Keys may come in any order and no other key may be there. A repeated key is refused: two parsers may read it differently, and then the
text that was compared is not the text that the agent sees. The same goes for NaN, for raw control bytes, and for half a surrogate pair.
Text is text: this agent has no commands in it, so every message is literal.
"""

from __future__ import annotations

import json
from typing import Any

from sandbox_manager.agents.port import (
    AnswerFrame,
    FenceFrame,
    ForbiddenFrame,
    GateFrame,
    HandshakeFrame,
    InterruptFrame,
    UserFrame,
)

_ID_LENGTH_MAX = 200


class _RefusedError(Exception):
    """A line that the grammar does not know. Its text names shapes only, never content."""


def classify(frame: bytes) -> GateFrame:
    """What this line is. Never raises; what it cannot read is a ForbiddenFrame."""
    try:
        return _frame(_one_object(frame))
    except _RefusedError as refused:
        return ForbiddenFrame(str(refused))
    except RecursionError:
        return ForbiddenFrame("expected one flat JSON object, found one nested too deeply")


def interrupt_frame(request_id: str) -> bytes:
    """The native interrupt of the running turn."""
    return json.dumps({"type": "interrupt", "id": request_id}, separators=(",", ":")).encode("ascii") + b"\n"


def _one_object(frame: bytes) -> dict[str, Any]:
    if not frame.endswith(b"\n"):
        raise _RefusedError("expected one line with its line end, found no line end")
    body = frame[:-1]
    if any(byte < 0x20 for byte in body):
        raise _RefusedError("expected one line without raw control bytes, found one in it")
    try:
        value = json.loads(body.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except ValueError:
        raise _RefusedError("expected one JSON object in UTF-8, found something else") from None
    if not isinstance(value, dict):
        raise _RefusedError("expected one JSON object, found another JSON value")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise _RefusedError("expected each key once, found one repeated")
    return made


def _no_constant(_word: str) -> object:
    raise _RefusedError("expected plain JSON numbers, found NaN or Infinity")


def _frame(value: dict[str, Any]) -> GateFrame:
    match value.get("type"):
        case "initialize":
            _keys(value, "id")
            return HandshakeFrame(_identifier(value, "id"))
        case "user":
            _keys(value, "message_id", "text")
            return UserFrame(text=_bytes(value["text"]), message_id=_identifier(value, "message_id"))
        case "interrupt":
            _keys(value, "id")
            return InterruptFrame(_identifier(value, "id"))
        case "lookup":
            _keys(value, "id", "message_id")
            _identifier(value, "message_id")
            return FenceFrame(_identifier(value, "id"))
        case "answer":
            return _answer(value)
        case _:
            raise _RefusedError("expected the type initialize, user, interrupt, lookup or answer, found another")


def _answer(value: dict[str, Any]) -> AnswerFrame:
    if "allow" in value:
        _keys(value, "request_id", "allow", optional="message")
        if not isinstance(value["allow"], bool):
            raise _RefusedError("expected true or false as allow, found another value")
        _bytes(value.get("message", ""))
    elif "refused" in value:
        _keys(value, "request_id", "refused")
        _bytes(value["refused"])
    else:
        _keys(value, "request_id", "answers")
        answers = value["answers"]
        if not isinstance(answers, list) or not all(isinstance(each, list) for each in answers):
            raise _RefusedError("expected a list of lists as answers, found another value")
        for text in (text for each in answers for text in each):
            _bytes(text)
    return AnswerFrame(_identifier(value, "request_id"))


def _keys(value: dict[str, Any], *names: str, optional: str | None = None) -> None:
    required = {"type", *names}
    allowed = required | ({optional} if optional is not None else set())
    if not required <= value.keys() <= allowed:
        expected = ", ".join(sorted(allowed))
        raise _RefusedError(f"expected the keys {expected}, found others or fewer ({len(value)} keys)")


def _identifier(value: dict[str, Any], name: str) -> str:
    found = value[name]
    if not isinstance(found, str) or not 0 < len(found) <= _ID_LENGTH_MAX:
        raise _RefusedError(f"expected a short text as {name}, found another value")
    return found


def _bytes(value: Any) -> bytes:
    if not isinstance(value, str):
        raise _RefusedError("expected a text, found another value")
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError:
        raise _RefusedError("expected whole characters, found half a surrogate pair") from None
