"""The grammar of lines towards Codex's app-server: what the last gate may recognise. Everything that is not listed is forbidden.

    handshake   {"id":R,"method":"initialize","params":{"clientInfo":{"name":"standfast","title":null,"version":"1"},"capabilities":null}}
                {"method":"initialized"}
                {"id":R,"method":"thread/start","params":{"cwd":W,"approvalPolicy":P,"sandbox":"danger-full-access"[,"model":M]}}
                {"id":R,"method":"thread/resume","params":{"threadId":T,...the same...,"excludeTurns":true}}
                with W, P, M exactly as granted; start only for a session that begins, resume only for T of the locator
    message     {"id":"turn-U","method":"turn/start","params":{"threadId":T,"clientUserMessageId":U,"input":[{"type":"text","text":X}]}}
    interrupt   {"id":R,"method":"turn/interrupt","params":{"threadId":T,"turnId":V or ""}}
    answer      {"id":N,"result":{"decision":"accept" or "decline"}}, {"id":N,"result":{"answers":{Q:{"answers":[X,..]},..}}}
                or {"id":N,"error":{"code":C,"message":M}}

`turn/steer` puts a message into a turn that runs: it passes once steering is admitted by itself, and not before.
`turn/start` may name another folder, sandbox, approval policy and model, `thread/start` a whole configuration, `thread/inject_items` a
history: none of these keys and methods is here. `clientUserMessageId` is not looked at by the CLI when a message comes twice, so that
one is sent once is the gate's own count. The request ids of a message are fixed, so that the tap reader knows whose answer it reads.

Keys may come in any order and no other key may be there. A repeated key is refused: two parsers may read it differently, and then the
text that was compared is not the text that the CLI sees. The same goes for NaN, for control bytes outside strings, for a byte order
mark, and for half a surrogate pair.
"""

from __future__ import annotations

import json
from typing import Final

from sandbox_manager.agents.codex.launch import APPROVAL_POLICIES, SANDBOX
from sandbox_manager.agents.port import (
    AnswerFrame,
    ForbiddenFrame,
    GateContext,
    GateFrame,
    HandshakeFrame,
    InterruptFrame,
    UserFrame,
)

_NEWLINE: Final = 0x0A
_ID_LENGTH_MAX: Final = 200
_CLIENT: Final = {"name": "standfast", "title": None, "version": "1"}
_CONTROL_BYTES: Final = bytes(byte for byte in range(0x20) if byte != _NEWLINE)


class _RefusedError(Exception):
    """A line that the grammar does not know. Its text names shapes only, never content."""


def classify(frame: bytes, context: GateContext) -> GateFrame:
    """What this line is. Never raises; what it cannot read is a ForbiddenFrame."""
    try:
        return _frame(_one_object(frame), context)
    except _RefusedError as refused:
        return ForbiddenFrame(str(refused))
    except RecursionError:
        return ForbiddenFrame("expected one flat JSON object, found one nested too deeply")


def turn_request_id(message_id: str) -> str:
    """The id of the request that carries a message."""
    return f"turn-{message_id}"


def interrupt_frame(request_id: str, thread_id: str) -> bytes:
    """The native interrupt. The empty turn id means the turn that is running, whichever it is (observed)."""
    params = {"threadId": thread_id, "turnId": ""}
    line = json.dumps({"id": request_id, "method": "turn/interrupt", "params": params}, separators=(",", ":"))
    return line.encode("ascii") + b"\n"


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


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made: dict[str, object] = {}
    for key, value in pairs:
        if key in made:
            raise _RefusedError("expected each key once, found one repeated")
        made[key] = value
    return made


def _no_constant(_word: str) -> object:
    raise _RefusedError("expected plain JSON numbers, found NaN or Infinity")


def _frame(value: dict[str, object], context: GateContext) -> GateFrame:
    if "method" not in value:
        return _answer(value)
    if value["method"] == "initialized":
        _keys(value, {"method"}, of="initialized")
        return HandshakeFrame("initialized", step="initialized")
    _keys(value, {"id", "method", "params"}, of="a request")
    request_id, params = _identifier(value["id"], "id"), _object(value["params"], "params")
    match value["method"]:
        case "initialize":
            _equal(params, {"clientInfo": _CLIENT, "capabilities": None}, of="initialize")
            return HandshakeFrame(request_id, step="initialize")
        case "thread/start":
            if context.resumes:
                raise _RefusedError("expected thread/resume of the granted session, found thread/start")
            _equal(params, _thread_settings(context), of="thread/start")
            return HandshakeFrame(request_id, step="thread")
        case "thread/resume":
            if not context.resumes:
                raise _RefusedError("expected thread/start of a session that begins, found thread/resume")
            expected = {"threadId": _thread_id(context), **_thread_settings(context), "excludeTurns": True}
            _equal(params, expected, of="thread/resume")
            return HandshakeFrame(request_id, step="thread")
        case "turn/start":
            return _message(request_id, params, context)
        case "turn/interrupt":
            _keys(params, {"threadId", "turnId"}, of="turn/interrupt")
            _same_thread(params, context)
            if params["turnId"] != "":
                _identifier(params["turnId"], "turnId")
            return InterruptFrame(request_id)
        case _:
            # turn/steer, thread/fork, thread/inject_items, thread/compact/start, config/*, fs/*, command/exec and the rest.
            raise _RefusedError("expected a method of the handshake, a message or an interrupt, found another")


def _thread_settings(context: GateContext) -> dict[str, object]:
    policy = APPROVAL_POLICIES.get(context.permission_mode)
    if policy is None:
        raise _RefusedError("expected a permission mode that this agent knows, found another in the grant")
    settings: dict[str, object] = {"cwd": context.workspace, "approvalPolicy": policy, "sandbox": SANDBOX}
    if context.model is not None:
        settings["model"] = context.model
    return settings


def _thread_id(context: GateContext) -> str:
    if context.locator is None or not context.locator.native_session_id:
        raise _RefusedError("expected a session that was granted or named by the CLI, found none yet")
    return context.locator.native_session_id


def _same_thread(params: dict[str, object], context: GateContext) -> None:
    if params["threadId"] != _thread_id(context):
        raise _RefusedError("expected the thread of this session, found another")


def _message(request_id: str, params: dict[str, object], context: GateContext) -> UserFrame:
    _keys(params, {"threadId", "clientUserMessageId", "input"}, of="a message")
    _same_thread(params, context)
    message_id = _identifier(params["clientUserMessageId"], "clientUserMessageId")
    if request_id != turn_request_id(message_id):
        raise _RefusedError("expected a request id made of the message's id, found another")
    content = params["input"]
    if not isinstance(content, list) or len(content) != 1:
        raise _RefusedError("expected an input of one text, found another")
    block = _object(content[0], "input")
    # `text_elements` beside the text would name places, files and skills in it.
    _keys(block, {"type", "text"}, of="an input")
    text = block["text"]
    if block["type"] != "text" or not isinstance(text, str):
        raise _RefusedError("expected a text as input, found another")
    try:
        return UserFrame(text=text.encode("utf-8"), message_id=message_id)
    except UnicodeEncodeError:
        raise _RefusedError("expected whole characters, found half a surrogate pair") from None


def _answer(value: dict[str, object]) -> AnswerFrame:
    if "error" in value:
        _keys(value, {"id", "error"}, of="a refusing answer")
        error = _object(value["error"], "error")
        _keys(error, {"code", "message"}, of="an error")
        if type(error["code"]) is not int or not isinstance(error["message"], str):
            raise _RefusedError("expected a number as code and a text as message, found other values")
        return AnswerFrame(request_id_text(value["id"]))
    _keys(value, {"id", "result"}, of="an answer")
    result = _object(value["result"], "result")
    if "decision" in result:
        # `acceptForSession` and the amendments would change the rules of later calls: they are no answer to this one.
        if result not in ({"decision": "accept"}, {"decision": "decline"}):
            raise _RefusedError("expected the decision accept or decline, found another")
        return AnswerFrame(request_id_text(value["id"]))
    _keys(result, {"answers"}, of="an answer to a question")
    answers = _object(result["answers"], "answers")
    if not answers:
        raise _RefusedError("expected an answer to each question, found none")
    for answer in answers.values():
        one = _object(answer, "an answer")
        _keys(one, {"answers"}, of="an answer")
        texts = one["answers"]
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
            raise _RefusedError("expected texts as answer, found none or other values")
    return AnswerFrame(request_id_text(value["id"]))


def request_id_text(found: object) -> str:
    """The id of a request of the CLI, as text: it counts in whole numbers from 0. Raises for anything that is no id."""
    if isinstance(found, str):
        return _identifier(found, "id")
    if type(found) is int:
        return str(found)
    raise _RefusedError("expected a number or a short text as id, found another value")


def _equal(found: dict[str, object], expected: dict[str, object], *, of: str) -> None:
    _keys(found, set(expected), of=of)
    differing = sorted(key for key, value in expected.items() if not _is_same(found[key], value))
    if differing:
        raise _RefusedError(f"expected {', '.join(differing)} of {of} as granted, found another value")


def _is_same(found: object, expected: object) -> bool:
    """Equal, and of the same JSON type: to Python 1 is true."""
    return type(found) is type(expected) and found == expected


def _object(value: object, name: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _RefusedError(f"expected an object as {name}, found another value")
    return value


def _keys(value: dict[str, object], required: set[str], *, of: str) -> None:
    if value.keys() != required:
        expected = ", ".join(sorted(required))
        raise _RefusedError(f"expected the keys {expected} in {of}, found others or fewer ({len(value)} keys)")


def _identifier(value: object, name: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _ID_LENGTH_MAX:
        raise _RefusedError(f"expected a short text as {name}, found another value")
    return value
