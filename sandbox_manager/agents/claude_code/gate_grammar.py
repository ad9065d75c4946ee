"""The grammar of lines towards Claude Code: what the last gate may recognise. Everything that is not listed is forbidden.

    handshake   {"type":"control_request","request_id":R,"request":{"subtype":"initialize"}}
    interrupt   {"type":"control_request","request_id":R,"request":{"subtype":"interrupt"}}
    message     {"type":"user","uuid":U,"message":{"role":"user","content":[{"type":"text","text":T}]}}
                or the same with a second block {"type":"text","text":""}: the listed decoration
    answer      {"type":"control_response","response":{"subtype":"success","request_id":R,"response":A}}, with A one of
                {"behavior":"allow","updatedInput":{..}} and {"behavior":"deny","message":M}
                or {"type":"control_response","response":{"subtype":"error","request_id":R,"error":M}}

The CLI looks at the last text block: a text that begins with "/" is a command of its own there ("/clear" leaves the session, "/model"
changes the model). With an empty block after it, it is text (observed live and after a resume).

Keys may come in any order and no other key may be there. A repeated key is refused: two parsers may read it differently, and then the
text that was compared is not the text that the CLI sees. The same goes for NaN, for control bytes outside strings, for a byte order
mark, and for half a surrogate pair.
"""

from __future__ import annotations

import json
from typing import Final

from sandbox_manager.agents.port import (
    AnswerFrame,
    ForbiddenFrame,
    GateFrame,
    HandshakeFrame,
    InterruptFrame,
    UserFrame,
)

_NEWLINE: Final = 0x0A
_ID_LENGTH_MAX: Final = 200


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


def initialize_frame(request_id: str) -> bytes:
    """The handshake: answered without a model request, on a start and on a resume."""
    return _line({"type": "control_request", "request_id": request_id, "request": {"subtype": "initialize"}})


def interrupt_frame(request_id: str) -> bytes:
    """The native interrupt of the running turn."""
    return _line({"type": "control_request", "request_id": request_id, "request": {"subtype": "interrupt"}})


def _line(value: dict[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n"


def _one_object(frame: bytes) -> dict[str, object]:
    if not frame.endswith(b"\n"):
        raise _RefusedError("expected one line with its line end, found no line end")
    body = frame[:-1]
    # A line end inside would be a second line for the CLI; another raw control byte is legal JSON only between tokens, where nobody
    # needs it.
    if _NEWLINE in body:
        raise _RefusedError("expected one line, found more than one")
    if any(byte in body for byte in _CONTROL_BYTES):
        raise _RefusedError("expected JSON without raw control bytes, found one")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise _RefusedError("expected UTF-8, found other bytes") from None
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except ValueError:
        raise _RefusedError("expected one JSON object, found no JSON") from None
    if not isinstance(value, dict):
        raise _RefusedError("expected one JSON object, found another JSON value")
    return value


_CONTROL_BYTES: Final = bytes(byte for byte in range(0x20) if byte != _NEWLINE)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made: dict[str, object] = {}
    for key, value in pairs:
        if key in made:
            raise _RefusedError("expected each key once, found one repeated")
        made[key] = value
    return made


def _no_constant(_word: str) -> object:
    raise _RefusedError("expected plain JSON numbers, found NaN or Infinity")


def _frame(value: dict[str, object]) -> GateFrame:
    match value.get("type"):
        case "user":
            return _user(value)
        case "control_request":
            return _control(value)
        case "control_response":
            return _answer(value)
        case _:
            raise _RefusedError("expected type user, control_request or control_response, found another")


def _user(value: dict[str, object]) -> UserFrame:
    _keys(value, {"type", "message"}, optional={"uuid"}, of="a message")
    message = _object(value["message"], "message")
    _keys(message, {"role", "content"}, of="message")
    if message["role"] != "user":
        raise _RefusedError("expected the role user, found another")
    content = message["content"]
    if not isinstance(content, list) or not 1 <= len(content) <= 2:
        raise _RefusedError("expected a content of one text block, and at most one empty block after it")
    texts = [_text_block(block) for block in content]
    decorated = len(texts) == 2
    if decorated and texts[1] != "":
        raise _RefusedError("expected an empty second block, found text in it")
    try:
        text = texts[0].encode("utf-8")
    except UnicodeEncodeError:
        raise _RefusedError("expected whole characters, found half a surrogate pair") from None
    return UserFrame(
        text=text,
        message_id=_identifier(value["uuid"], "uuid") if "uuid" in value else None,
        literal=decorated or not texts[0].startswith("/"),
    )


def _text_block(block: object) -> str:
    made = _object(block, "content block")
    _keys(made, {"type", "text"}, of="a content block")
    text = made["text"]
    if made["type"] != "text" or not isinstance(text, str):
        raise _RefusedError("expected a text block, found another")
    return text


def _control(value: dict[str, object]) -> HandshakeFrame | InterruptFrame:
    _keys(value, {"type", "request_id", "request"}, of="a control request")
    request_id = _identifier(value["request_id"], "request_id")
    request = _object(value["request"], "request")
    _keys(request, {"subtype"}, of="a control request's request")
    match request["subtype"]:
        case "initialize":
            return HandshakeFrame(request_id)
        case "interrupt":
            return InterruptFrame(request_id)
        case _:
            # set_model, set_permission_mode, end_session, mcp_message and the rest: each changes what a turn means.
            raise _RefusedError("expected the control request initialize or interrupt, found another")


def _answer(value: dict[str, object]) -> AnswerFrame:
    _keys(value, {"type", "response"}, of="an answer")
    response = _object(value["response"], "response")
    if response.get("subtype") == "error":
        _keys(response, {"subtype", "request_id", "error"}, of="a refusing answer")
        if not isinstance(response["error"], str):
            raise _RefusedError("expected a text as error, found another value")
        return AnswerFrame(_identifier(response["request_id"], "request_id"))
    _keys(response, {"subtype", "request_id", "response"}, of="an answer's response")
    if response["subtype"] != "success":
        raise _RefusedError("expected the answer success or error, found another")
    inner = _object(response["response"], "answer")
    match inner.get("behavior"):
        case "allow":
            # `updatedPermissions` would change the rules of later calls: it is no answer to this one.
            _keys(inner, {"behavior", "updatedInput"}, of="an allowing answer")
            _object(inner["updatedInput"], "updatedInput")
        case "deny":
            _keys(inner, {"behavior", "message"}, of="a denying answer")
            if not isinstance(inner["message"], str):
                raise _RefusedError("expected a text as message, found another value")
        case _:
            raise _RefusedError("expected the behaviour allow or deny, found another")
    return AnswerFrame(_identifier(response["request_id"], "request_id"))


def _object(value: object, name: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _RefusedError(f"expected an object as {name}, found another value")
    return value


def _keys(
    value: dict[str, object], required: set[str], *, of: str, optional: frozenset[str] | set[str] = frozenset()
) -> None:
    if not required <= value.keys() <= required | optional:
        expected = ", ".join(sorted(required | optional))
        raise _RefusedError(f"expected the keys {expected} in {of}, found others or fewer ({len(value)} keys)")


def _identifier(value: object, name: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _ID_LENGTH_MAX:
        raise _RefusedError(f"expected a short text as {name}, found another value")
    return value
