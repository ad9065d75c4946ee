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

from sandbox_manager.agents.port import (
    AnswerFrame,
    FenceFrame,
    ForbiddenFrame,
    GateFrame,
    HandshakeFrame,
    InterruptFrame,
    UserFrame,
)
from sandbox_manager.agents.strict_line import LineRefusedError, identifier, one_object, require_keys, text_bytes


def classify(frame: bytes) -> GateFrame:
    """What this line is. Never raises; what it cannot read is a ForbiddenFrame."""
    try:
        return _frame(one_object(frame))
    except LineRefusedError as refused:
        return ForbiddenFrame(str(refused))
    except RecursionError:
        return ForbiddenFrame("expected one flat JSON object, found one nested too deeply")


def interrupt_frame(request_id: str) -> bytes:
    """The native interrupt of the running turn."""
    return json.dumps({"type": "interrupt", "id": request_id}, separators=(",", ":")).encode("ascii") + b"\n"


def _frame(value: dict[str, object]) -> GateFrame:
    match value.get("type"):
        case "initialize":
            require_keys(value, {"type", "id"}, of="initialize")
            return HandshakeFrame(identifier(value["id"], "id"))
        case "user":
            require_keys(value, {"type", "message_id", "text"}, of="a message")
            return UserFrame(text_bytes(value["text"], "text"), identifier(value["message_id"], "message_id"))
        case "interrupt":
            require_keys(value, {"type", "id"}, of="interrupt")
            return InterruptFrame(identifier(value["id"], "id"))
        case "lookup":
            require_keys(value, {"type", "id", "message_id"}, of="lookup")
            identifier(value["message_id"], "message_id")
            return FenceFrame(identifier(value["id"], "id"))
        case "answer":
            return _answer(value)
        case _:
            raise LineRefusedError("expected the type initialize, user, interrupt, lookup or answer, found another")


def _answer(value: dict[str, object]) -> AnswerFrame:
    if "allow" in value:
        require_keys(value, {"type", "request_id", "allow"}, optional={"message"}, of="a permission's answer")
        if not isinstance(value["allow"], bool):
            raise LineRefusedError("expected true or false as allow, found another value")
        text_bytes(value.get("message", ""), "message")
    elif "refused" in value:
        require_keys(value, {"type", "request_id", "refused"}, of="a refusing answer")
        text_bytes(value["refused"], "refused")
    else:
        require_keys(value, {"type", "request_id", "answers"}, of="a question's answer")
        _check_answers(value["answers"])
    return AnswerFrame(identifier(value["request_id"], "request_id"))


def _check_answers(answers: object) -> None:
    if not isinstance(answers, list):
        raise LineRefusedError("expected a list of lists as answers, found another value")
    for values in answers:
        if not isinstance(values, list):
            raise LineRefusedError("expected a list of lists as answers, found another value in it")
        for text in values:
            text_bytes(text, "an answer")
