"""The grammar of lines towards the bridge: what the last gate may recognise. Everything that is not listed is forbidden.

    handshake   {"v":4,"op":"open","id":R,"session":S,"directory":D}   D the grant's workspace; S the locator's session, null for a new one
    message     {"v":4,"op":"prompt","id":M,"text":T}
    answer      {"v":4,"op":"permission","id":R,"allow":B,"message":T}
                {"v":4,"op":"answers","id":R,"answers":[[T,..],..]}
                {"v":4,"op":"reject","id":R,"message":T}
    interrupt   {"v":4,"op":"abort","id":R}

No text is a command: the bridge hands it to the server as one text part. Settings are none of these lines': the permission mode, the model
and the rules come with the process.
"""

from __future__ import annotations

import json

from sandbox_manager.agents.port import (
    AnswerFrame,
    ForbiddenFrame,
    GateContext,
    GateFrame,
    HandshakeFrame,
    InterruptFrame,
    UserFrame,
)
from sandbox_manager.agents.strict_line import LineRefusedError, identifier, one_object, require_keys, text_bytes

PROTOCOL = 4


def classify(frame: bytes, context: GateContext) -> GateFrame:
    """What this line is. Never raises; what it cannot read is a ForbiddenFrame."""
    try:
        return _frame(one_object(frame), context)
    except LineRefusedError as refused:
        return ForbiddenFrame(str(refused))
    except RecursionError:
        return ForbiddenFrame("expected one flat JSON object, found one nested too deeply")


def interrupt_frame(request_id: str) -> bytes:
    """The native interrupt of the running turn."""
    line = {"v": PROTOCOL, "op": "abort", "id": request_id}
    return json.dumps(line, separators=(",", ":")).encode("ascii") + b"\n"


def _frame(value: dict[str, object], context: GateContext) -> GateFrame:
    version = value.get("v")
    if version != PROTOCOL or isinstance(version, bool | float):
        raise LineRefusedError(f"expected v to be {PROTOCOL}, found another version of the bridge's protocol")
    match value.get("op"):
        case "open":
            require_keys(value, {"v", "op", "id", "session", "directory"}, of="open")
            return _open(value, context)
        case "prompt":
            require_keys(value, {"v", "op", "id", "text"}, of="prompt")
            return UserFrame(text_bytes(value["text"], "text"), identifier(value["id"], "id"))
        case "permission":
            require_keys(value, {"v", "op", "id", "allow", "message"}, of="permission")
            if not isinstance(value["allow"], bool):
                raise LineRefusedError("expected true or false as allow, found another value")
            text_bytes(value["message"], "message")
            return AnswerFrame(identifier(value["id"], "id"))
        case "answers":
            require_keys(value, {"v", "op", "id", "answers"}, of="answers")
            _answers(value["answers"])
            return AnswerFrame(identifier(value["id"], "id"))
        case "reject":
            require_keys(value, {"v", "op", "id", "message"}, of="reject")
            text_bytes(value["message"], "message")
            return AnswerFrame(identifier(value["id"], "id"))
        case "abort":
            require_keys(value, {"v", "op", "id"}, of="abort")
            return InterruptFrame(identifier(value["id"], "id"))
        case _:
            raise LineRefusedError("expected op open, prompt, permission, answers, reject or abort, found another")


def _open(value: dict[str, object], context: GateContext) -> HandshakeFrame:
    wanted = context.locator.native_session_id if context.resumes and context.locator is not None else None
    if context.resumes and wanted is None:
        raise LineRefusedError("expected a locator to resume, found none in the grant")
    if value["session"] != wanted:
        raise LineRefusedError("expected the granted session (null for a new one) as session, found another")
    if value["directory"] != context.workspace:
        raise LineRefusedError("expected the granted workspace as directory, found another")
    return HandshakeFrame(identifier(value["id"], "id"))


def _answers(value: object) -> None:
    if not isinstance(value, list):
        raise LineRefusedError("expected a list as answers, found another value")
    for one in value:
        if not isinstance(one, list):
            raise LineRefusedError("expected one list of texts for each question, found another value")
        for text in one:
            text_bytes(text, "answer")
