"""What the gate's grammar for Claude Code recognises, and all that it does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_manager.agents.claude_code import gate_grammar
from sandbox_manager.agents.port import (
    AnswerFrame,
    ForbiddenFrame,
    GateContext,
    GateFrame,
    HandshakeFrame,
    InterruptFrame,
    UserFrame,
)
from sandbox_manager.agents.registry import agent_named

AGENT = agent_named("claude-code")
CONTEXT = GateContext("/workspace", "auto", None, (), None, resumes=False)
INPUTS = Path(__file__).parents[2] / "cases" / "inputs"


def classify(frame: bytes) -> GateFrame:
    return AGENT.classify(frame, CONTEXT)


def line(value: Any, *, ascii_only: bool = True) -> bytes:
    return json.dumps(value, ensure_ascii=ascii_only).encode() + b"\n"


def message(text: Any, *more: Any, **keys: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": text}, *more]
    return {"type": "user", "uuid": "m1", "message": {"role": "user", "content": content}, **keys}


EMPTY = {"type": "text", "text": ""}
INITIALIZE = {"type": "control_request", "request_id": "r1", "request": {"subtype": "initialize"}}
INTERRUPT = {"type": "control_request", "request_id": "r2", "request": {"subtype": "interrupt"}}


def answer(inner: Any, **keys: Any) -> dict[str, Any]:
    response = {"subtype": "success", "request_id": "q1", "response": inner, **keys}
    return {"type": "control_response", "response": response}


ALLOW = {"behavior": "allow", "updatedInput": {"a": 1}}


def test_the_listed_frames_are_recognised() -> None:
    assert classify(line(INITIALIZE)) == HandshakeFrame("r1")
    assert classify(line(INTERRUPT)) == InterruptFrame("r2")
    assert classify(line(message("hi"))) == UserFrame(b"hi", "m1", literal=True)
    assert classify(line(message("hi", EMPTY))) == UserFrame(b"hi", "m1", literal=True)
    assert classify(line(answer(ALLOW))) == AnswerFrame("q1")
    assert classify(line(answer({"behavior": "deny", "message": "no"}))) == AnswerFrame("q1")
    refusal = {"type": "control_response", "response": {"subtype": "error", "request_id": "q1", "error": "unknown"}}
    assert classify(line(refusal)) == AnswerFrame("q1")


def test_the_agents_own_frames_are_in_its_grammar() -> None:
    assert classify(AGENT.interrupt_frame("r9")) == InterruptFrame("r9")
    assert classify(gate_grammar.initialize_frame("r8")) == HandshakeFrame("r8")


def test_a_text_that_begins_with_a_slash_is_literal_only_with_the_decoration() -> None:
    bare = classify(line(message("/clear")))
    decorated = classify(line(message("/clear", EMPTY)))
    assert isinstance(bare, UserFrame)
    assert isinstance(decorated, UserFrame)
    assert (bare.literal, decorated.literal) == (False, True)
    assert bare.text == decorated.text == b"/clear"


def test_case_input_dash_slash_and_large_goes_through_byte_for_byte() -> None:
    case = json.loads((INPUTS / "input-dash-slash-and-large.json").read_text())
    texts = [*case["messages"], case["generated"]["repeat"] * case["generated"]["count"]]
    for text in texts:
        for ascii_only in (True, False):
            frame = classify(line(message(text, EMPTY), ascii_only=ascii_only))
            assert isinstance(frame, UserFrame)
            assert frame.text == text.encode()


@given(st.text())
def test_any_text_is_decoded_to_its_own_bytes(text: str) -> None:
    frame = classify(line(message(text)))
    try:
        expected = text.encode()
    except UnicodeEncodeError:
        assert isinstance(frame, ForbiddenFrame)
    else:
        assert isinstance(frame, UserFrame)
        assert frame.text == expected


DEEP = b"[" * 100_000

FORBIDDEN: dict[str, bytes] = {
    "no line end": line(INITIALIZE)[:-1],
    "two lines": line(INITIALIZE) * 2,
    "an empty line": b"\n",
    "nothing": b"",
    "no JSON": b"hello\n",
    "a list": b"[]\n",
    "a text": b'"x"\n',
    "another encoding": json.dumps(INITIALIZE).encode("utf-16") + b"\n",
    "broken UTF-8": b'{"type":"\xff"}\n',
    "a byte order mark": b"\xef\xbb\xbf" + line(INITIALIZE),
    "a carriage return between tokens": line(INITIALIZE)[:-1] + b"\r\n",
    "a NUL": line(INITIALIZE)[:-1] + b"\x00\n",
    "a raw line feed in a text": b'{"type":"user","message":{"role":"user","content":[{"type":"text","text":"a\nb"}]}}\n',
    "deep nesting": DEEP + b"\n",
    "NaN": b'{"type":"user","uuid":NaN}\n',
    "half a surrogate pair": line(message("\ud83d")),
    "a repeated key": b'{"type":"control_request","request_id":"a","request":{"subtype":"interrupt","subtype":"initialize"}}\n',
    "a repeated text": (
        b'{"type":"user","uuid":"m1","message":{"role":"user","content":[{"type":"text","text":"a","text":"/clear"}]}}\n'
    ),
    "a repeated message": (
        b'{"type":"user","message":{"role":"user","content":[{"type":"text","text":"a"}]},"message":{"role":"user","content":[]}}\n'
    ),
    "no type": line({}),
    "another type": line({"type": "system"}),
    "a type that is no text": line({"type": ["user"]}),
    "another key in a message": line(message("x", session_id="s")),
    "a key less in a message": line({"type": "user", "uuid": "m1"}),
    "an id that is no text": line({**message("x"), "uuid": 5}),
    "an empty id": line({**message("x"), "uuid": ""}),
    "a very long id": line({**message("x"), "uuid": "x" * 201}),
    "another role": line({"type": "user", "message": {"role": "system", "content": [EMPTY]}}),
    "another key in message": line({"type": "user", "message": {"role": "user", "content": [EMPTY], "id": 1}}),
    "a plain text as content": line({"type": "user", "message": {"role": "user", "content": "x"}}),
    "no block": line({"type": "user", "message": {"role": "user", "content": []}}),
    "three blocks": line(message("x", EMPTY, EMPTY)),
    "a second block with text": line(message("x", {"type": "text", "text": "/clear"})),
    "an image": line({"type": "user", "message": {"role": "user", "content": [{"type": "image", "source": {}}]}}),
    "a block with cache_control": line(message("x", {**EMPTY, "cache_control": {}})),
    "a text that is a number": line(message(5)),
    "set_model": line({**INITIALIZE, "request": {"subtype": "set_model", "model": "x"}}),
    "set_permission_mode": line({**INITIALIZE, "request": {"subtype": "set_permission_mode", "mode": "plan"}}),
    "end_session": line({**INITIALIZE, "request": {"subtype": "end_session"}}),
    "initialize with hooks": line({**INITIALIZE, "request": {"subtype": "initialize", "hooks": {}}}),
    "interrupt with more": line({**INTERRUPT, "request": {"subtype": "interrupt", "all": True}}),
    "a request without id": line({"type": "control_request", "request": {"subtype": "initialize"}}),
    "an answer that changes permissions": line(answer({**ALLOW, "updatedPermissions": []})),
    "an answer with another word": line(answer({"behavior": "ask"})),
    "an answer without input": line(answer({"behavior": "allow"})),
    "a denial with more": line(answer({"behavior": "deny", "message": "no", "interrupt": True})),
    "a denial without a text": line(answer({"behavior": "deny", "message": 5})),
    "an answer that is no object": line(answer("yes")),
    "an answer with more keys": line(answer(ALLOW, extra=1)),
    "an answer of another subtype": line(
        {"type": "control_response", "response": {"subtype": "x", "request_id": "q", "response": {}}}
    ),
    "an error answer with an object": line(
        {"type": "control_response", "response": {"subtype": "error", "request_id": "q", "error": {}}}
    ),
    "a response that is no object": line({"type": "control_response", "response": []}),
    "a cancel of a request": line({"type": "control_cancel_request", "request_id": "q1"}),
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_everything_else_is_forbidden(name: str) -> None:
    frame = classify(FORBIDDEN[name])
    assert isinstance(frame, ForbiddenFrame)
    assert frame.why.startswith("expected ")


def test_a_refusal_says_nothing_of_the_content() -> None:
    secret = "sk-very-secret"
    for value in (message(secret, extra=secret), {"type": secret}, answer({"behavior": secret}), {secret: 1}):
        frame = classify(line(value))
        assert isinstance(frame, ForbiddenFrame)
        assert secret not in frame.why


@given(st.binary(max_size=200))
def test_no_bytes_raise(data: bytes) -> None:
    classify(data + b"\n")
