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

Keys may come in any order and no other key may be there.
"""

from __future__ import annotations

import json

from sandbox_manager.agents.port import (
    AnswerFrame,
    ForbiddenFrame,
    GateFrame,
    HandshakeFrame,
    InterruptFrame,
    UserFrame,
)
from sandbox_manager.agents.strict_line import LineRefusedError, identifier, object_of, one_object, require_keys


def classify(frame: bytes) -> GateFrame:
    """What this line is. Never raises; what it cannot read is a ForbiddenFrame."""
    try:
        return _frame(one_object(frame))
    except LineRefusedError as refused:
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


def _frame(value: dict[str, object]) -> GateFrame:
    match value.get("type"):
        case "user":
            return _user(value)
        case "control_request":
            return _control(value)
        case "control_response":
            return _answer(value)
        case _:
            raise LineRefusedError("expected type user, control_request or control_response, found another")


def _user(value: dict[str, object]) -> UserFrame:
    require_keys(value, {"type", "message"}, optional={"uuid"}, of="a message")
    message = object_of(value["message"], "message")
    require_keys(message, {"role", "content"}, of="message")
    if message["role"] != "user":
        raise LineRefusedError("expected the role user, found another")
    content = message["content"]
    if not isinstance(content, list) or not 1 <= len(content) <= 2:
        raise LineRefusedError("expected a content of one text block, and at most one empty block after it")
    texts = [_text_block(block) for block in content]
    decorated = len(texts) == 2
    if decorated and texts[1] != "":
        raise LineRefusedError("expected an empty second block, found text in it")
    try:
        text = texts[0].encode("utf-8")
    except UnicodeEncodeError:
        raise LineRefusedError("expected whole characters, found half a surrogate pair") from None
    return UserFrame(
        text=text,
        message_id=identifier(value["uuid"], "uuid") if "uuid" in value else None,
        literal=decorated or not texts[0].startswith("/"),
    )


def _text_block(block: object) -> str:
    made = object_of(block, "content block")
    require_keys(made, {"type", "text"}, of="a content block")
    text = made["text"]
    if made["type"] != "text" or not isinstance(text, str):
        raise LineRefusedError("expected a text block, found another")
    return text


def _control(value: dict[str, object]) -> HandshakeFrame | InterruptFrame:
    require_keys(value, {"type", "request_id", "request"}, of="a control request")
    request_id = identifier(value["request_id"], "request_id")
    request = object_of(value["request"], "request")
    require_keys(request, {"subtype"}, of="a control request's request")
    match request["subtype"]:
        case "initialize":
            return HandshakeFrame(request_id)
        case "interrupt":
            return InterruptFrame(request_id)
        case _:
            # set_model, set_permission_mode, end_session, mcp_message and the rest: each changes what a turn means.
            raise LineRefusedError("expected the control request initialize or interrupt, found another")


def _answer(value: dict[str, object]) -> AnswerFrame:
    require_keys(value, {"type", "response"}, of="an answer")
    response = object_of(value["response"], "response")
    if response.get("subtype") == "error":
        require_keys(response, {"subtype", "request_id", "error"}, of="a refusing answer")
        if not isinstance(response["error"], str):
            raise LineRefusedError("expected a text as error, found another value")
        return AnswerFrame(identifier(response["request_id"], "request_id"))
    require_keys(response, {"subtype", "request_id", "response"}, of="an answer's response")
    if response["subtype"] != "success":
        raise LineRefusedError("expected the answer success or error, found another")
    inner = object_of(response["response"], "answer")
    match inner.get("behavior"):
        case "allow":
            # `updatedPermissions` would change the rules of later calls: it is no answer to this one.
            require_keys(inner, {"behavior", "updatedInput"}, of="an allowing answer")
            object_of(inner["updatedInput"], "updatedInput")
        case "deny":
            require_keys(inner, {"behavior", "message"}, of="a denying answer")
            if not isinstance(inner["message"], str):
                raise LineRefusedError("expected a text as message, found another value")
        case _:
            raise LineRefusedError("expected the behaviour allow or deny, found another")
    return AnswerFrame(identifier(response["request_id"], "request_id"))
