"""The grammar of lines towards Pi: what the last gate may recognise. Everything that is not listed is forbidden.

    handshake   {"id":"start","type":"get_state"}
    fence       {"id":R,"type":"get_state"}
    message     {"id":M,"type":"prompt","message":T}
    interrupt   {"id":R,"type":"abort"}
    answer      {"type":"extension_ui_response","id":R,"cancelled":true}

No text is a command: extensions, skills and prompt templates are off (launch.py). Not listed are, among others: `bash`, which runs a
command with no model; `new_session`, `switch_session`, `fork`, `clone`, which leave the session; `set_model`; `steer` and `follow_up`,
which queue a further message, and keep it for the next turn when this one has just ended (observed).
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

HANDSHAKE_ID = "start"


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
    return json.dumps({"id": request_id, "type": "abort"}, separators=(",", ":")).encode("ascii") + b"\n"


def _frame(value: dict[str, object]) -> GateFrame:
    match value.get("type"):
        case "get_state":
            require_keys(value, {"id", "type"}, of="get_state")
            request_id = identifier(value["id"], "id")
            return HandshakeFrame(request_id) if request_id == HANDSHAKE_ID else FenceFrame(request_id)
        case "prompt":
            require_keys(value, {"id", "type", "message"}, of="prompt")
            return UserFrame(text_bytes(value["message"], "message"), identifier(value["id"], "id"))
        case "abort":
            require_keys(value, {"id", "type"}, of="abort")
            return InterruptFrame(identifier(value["id"], "id"))
        case "extension_ui_response":
            require_keys(value, {"id", "type", "cancelled"}, of="extension_ui_response")
            if value["cancelled"] is not True:
                raise LineRefusedError("expected an answer that cancels, found another")
            return AnswerFrame(identifier(value["id"], "id"))
        case _:
            raise LineRefusedError("expected the type get_state, prompt, abort or extension_ui_response, found another")
