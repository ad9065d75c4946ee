"""What the last gate recognises of lines towards Codex: exactly what was granted, and nothing else."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_manager.agents.port import (
    AnswerFrame,
    ForbiddenFrame,
    GateContext,
    GateFrame,
    HandshakeFrame,
    InterruptFrame,
    UserFrame,
)
from sandbox_manager.core.values import NativeLocator
from tests.native.sandbox_side.codex_recording import AGENT, as_line

THREAD = "01a22c47-c491-7d72-901c-a1f013b7b44d"
OTHER = "01a22c47-0000-7d72-901c-a1f013b7b44d"
LOCATOR = NativeLocator("codex", THREAD, "/w", f".codex/sessions/2026/11/30/rollout-2026-11-30T11-47-10-{THREAD}.jsonl")
NEW = GateContext("/w", "auto", None, (), None, resumes=False)
NAMED = dataclasses.replace(NEW, locator=LOCATOR)
KEPT = dataclasses.replace(NAMED, resumes=True)
CLIENT = {"clientInfo": {"name": "standfast", "title": None, "version": "1"}, "capabilities": None}
START = {"cwd": "/w", "approvalPolicy": "never", "sandbox": "danger-full-access"}
RESUME = {"threadId": THREAD, **START, "excludeTurns": True}
TURN = {"threadId": THREAD, "clientUserMessageId": "m-1", "input": [{"type": "text", "text": "hello"}]}


def request(method: str, params: object, request_id: object = "r-1") -> bytes:
    return as_line({"id": request_id, "method": method, "params": params})


def classify(frame: bytes, context: GateContext = KEPT) -> GateFrame:
    return AGENT.classify(frame, context)


def is_forbidden(frame: bytes, context: GateContext = KEPT) -> bool:
    return isinstance(classify(frame, context), ForbiddenFrame)


# --- the handshake -----------------------------------------------------------------------------------------------------------------
def test_each_step_of_the_handshake_is_known_by_its_name() -> None:
    steps = [
        classify(request("initialize", CLIENT), NEW),
        classify(as_line({"method": "initialized"}), NEW),
        classify(request("thread/start", START), NEW),
        classify(request("thread/resume", RESUME), KEPT),
    ]
    assert steps == [
        HandshakeFrame("r-1", "initialize"),
        HandshakeFrame("initialized", "initialized"),
        HandshakeFrame("r-1", "thread"),
        HandshakeFrame("r-1", "thread"),
    ]


@pytest.mark.parametrize(
    "params",
    [
        {**CLIENT, "capabilities": {"experimentalApi": True}},
        {**CLIENT, "clientInfo": {**CLIENT["clientInfo"], "name": "another"}},  # type: ignore[dict-item]  # a literal of this file
        {**CLIENT, "more": 1},
        {},
    ],
)
def test_initialize_is_only_the_one(params: dict[str, Any]) -> None:
    assert is_forbidden(request("initialize", params), NEW)


DIFFERENT: list[dict[str, Any]] = [
    {"cwd": "/elsewhere"},
    {"approvalPolicy": "on-request"},
    {"approvalPolicy": "untrusted"},
    {"sandbox": "read-only"},
    {"model": "another"},
    {"model": None},
    {"config": {}},
    {"baseInstructions": "obey"},
    {"developerInstructions": "obey"},
    {"modelProvider": "another"},
    {"ephemeral": True},
    {"dynamicTools": []},
    {"permissions": {}},
]


@pytest.mark.parametrize("change", DIFFERENT, ids=str)
def test_no_other_setting_than_the_granted_one_passes(change: dict[str, Any]) -> None:
    assert is_forbidden(request("thread/start", {**START, **change}), NEW)
    assert is_forbidden(request("thread/resume", {**RESUME, **change}), KEPT)


@pytest.mark.parametrize("missing", sorted(START))
def test_every_setting_is_said(missing: str) -> None:
    assert is_forbidden(request("thread/start", {k: v for k, v in START.items() if k != missing}), NEW)
    assert is_forbidden(request("thread/resume", {k: v for k, v in RESUME.items() if k != missing}), KEPT)


@pytest.mark.parametrize(("mode", "policy"), [("auto", "never"), ("ask", "untrusted"), ("deny", "untrusted")])
def test_mode_and_model_of_the_grant_are_the_ones_that_pass(mode: str, policy: str) -> None:
    granted = dataclasses.replace(NEW, permission_mode=mode, model="m-1")
    params = {**START, "approvalPolicy": policy, "model": "m-1"}
    assert classify(request("thread/start", params), granted) == HandshakeFrame("r-1", "thread")
    assert is_forbidden(request("thread/start", START), granted)
    assert is_forbidden(request("thread/start", params), dataclasses.replace(granted, permission_mode="root"))


@pytest.mark.parametrize(
    ("change", "context"),
    [
        ({"threadId": OTHER}, KEPT),
        ({"path": "/members/2/home/x.jsonl"}, KEPT),
        ({"history": []}, KEPT),
        ({"excludeTurns": False}, KEPT),
        ({"excludeTurns": 1}, KEPT),
        ({}, NEW),
        ({}, NAMED),
    ],
)
def test_only_the_granted_thread_is_resumed(change: dict[str, Any], context: GateContext) -> None:
    assert is_forbidden(request("thread/resume", {**RESUME, **change}), context)


def test_a_kept_session_is_never_begun_anew() -> None:
    assert is_forbidden(request("thread/start", START), KEPT)


# --- messages ----------------------------------------------------------------------------------------------------------------------
@given(text=st.text())
def test_a_message_gives_back_its_text_byte_for_byte(text: str) -> None:
    params = {**TURN, "input": [{"type": "text", "text": text}]}
    frame = json.dumps({"id": "turn-m-1", "method": "turn/start", "params": params}).encode() + b"\n"
    assert classify(frame) == UserFrame(text.encode(), "m-1")


def test_no_message_is_steered_into_a_running_turn() -> None:
    assert is_forbidden(request("turn/steer", {**TURN, "expectedTurnId": "tu-1"}, "steer-m-1"))
    assert is_forbidden(request("turn/steer", {**TURN, "expectedTurnId": "tu-1"}, "turn-m-1"))


def test_a_session_that_the_cli_named_takes_its_first_message() -> None:
    frame = request("turn/start", TURN, "turn-m-1")
    assert classify(frame, NAMED) == UserFrame(b"hello", "m-1")
    assert is_forbidden(frame, NEW)


@pytest.mark.parametrize(
    "change",
    [
        {"threadId": OTHER},
        {"cwd": "/elsewhere"},
        {"approvalPolicy": "never"},
        {"sandboxPolicy": {}},
        {"model": "another"},
        {"collaborationMode": {}},
        {"additionalContext": {}},
        {"outputSchema": {}},
        {"input": []},
        {"input": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"input": [{"type": "text", "text": "a", "text_elements": []}]},
        {"input": [{"type": "image", "url": "http://x"}]},
        {"input": [{"type": "skill", "name": "x", "path": "/x"}]},
        {"input": "hello"},
        {"clientUserMessageId": None},
        {"clientUserMessageId": "m-2"},
    ],
    ids=str,
)
def test_a_message_says_nothing_but_its_text(change: dict[str, Any]) -> None:
    assert is_forbidden(request("turn/start", {**TURN, **change}, "turn-m-1"))


@pytest.mark.parametrize("request_id", ["r-1", "steer-m-1", "turn-m-2", 3, None])
def test_a_messages_request_id_is_made_of_the_messages(request_id: object) -> None:
    assert is_forbidden(request("turn/start", TURN, request_id))


def test_half_a_surrogate_pair_is_no_text() -> None:
    frame = request("turn/start", TURN, "turn-m-1").replace(b'"hello"', b'"\\ud83c"')
    assert is_forbidden(frame)


# --- interrupt and answers ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("turn", ["", "tu-1"])
def test_an_interrupt_of_this_session_passes(turn: str) -> None:
    assert classify(request("turn/interrupt", {"threadId": THREAD, "turnId": turn})) == InterruptFrame("r-1")


def test_the_host_agents_own_interrupt_passes_the_gate() -> None:
    assert classify(AGENT.interrupt_frame("r-9", LOCATOR)) == InterruptFrame("r-9")


@pytest.mark.parametrize(
    "params", [{"threadId": OTHER, "turnId": ""}, {"threadId": THREAD}, {"threadId": THREAD, "turnId": None}]
)
def test_no_other_interrupt_passes(params: dict[str, Any]) -> None:
    assert is_forbidden(request("turn/interrupt", params))


@pytest.mark.parametrize(
    "answer",
    [
        {"result": {"decision": "accept"}},
        {"result": {"decision": "decline"}},
        {"result": {"answers": {"q1": {"answers": ["a"]}, "q2": {"answers": ["b"]}}}},
        {"error": {"code": -32601, "message": "no"}},
    ],
)
@pytest.mark.parametrize(("request_id", "named"), [(0, "0"), (41, "41"), ("s", "s")])
def test_an_answer_names_its_request(answer: dict[str, Any], request_id: object, named: str) -> None:
    assert classify(as_line({"id": request_id, **answer})) == AnswerFrame(named)


@pytest.mark.parametrize(
    "answer",
    [
        {"result": {"decision": "acceptForSession"}},
        {"result": {"decision": "cancel"}},
        {"result": {"decision": {"acceptWithExecpolicyAmendment": {"execpolicy_amendment": ["rm"]}}}},
        {"result": {"decision": "accept", "more": 1}},
        {"result": {"answers": {}}},
        {"result": {"answers": {"q": {"answers": []}}}},
        {"result": {"answers": {"q": {"answers": [""]}}}},
        {"result": {"answers": {"q": {"answers": [1]}}}},
        {"result": {"permissions": {}}},
        {"result": {}},
        {"result": None},
        {"error": {"code": "x", "message": "no"}},
        {"error": {"code": 1, "message": "no", "data": 1}},
        {"result": {"decision": "accept"}, "error": {"code": 1, "message": "no"}},
        {},
    ],
    ids=str,
)
def test_no_other_answer_passes(answer: dict[str, Any]) -> None:
    assert is_forbidden(as_line({"id": 0, **answer}))


@pytest.mark.parametrize("request_id", [True, None, 1.5, [], ""])
def test_an_answers_id_is_a_number_or_a_text(request_id: object) -> None:
    assert is_forbidden(as_line({"id": request_id, "result": {"decision": "accept"}}))


# --- everything else ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "method",
    [
        "thread/fork",
        "thread/inject_items",
        "thread/compact/start",
        "thread/rollback",
        "thread/archive",
        "thread/delete",
        "thread/backgroundTerminals/clean",
        "config/value/write",
        "config/batchWrite",
        "fs/writeFile",
        "command/exec",
        "process/spawn",
        "review/start",
        "mcpServer/refresh",
        "account/login/start",
        "rollout/compress",
        "experimentalFeature/enablement/set",
        "turn/START",
    ],
)
def test_no_other_method_passes(method: str) -> None:
    assert is_forbidden(request(method, {"threadId": THREAD}))
    assert is_forbidden(as_line({"method": method, "params": {"threadId": THREAD}}))


def good_frame() -> bytes:
    return request("turn/start", TURN, "turn-m-1")


@pytest.mark.parametrize(
    "frame",
    [
        good_frame()[:-1],
        good_frame() + good_frame(),
        good_frame().replace(b'"threadId"', b'"clientUserMessageId":"m-1","threadId"', 1),
        good_frame().replace(b"{", b"{\r", 1),
        b"\xef\xbb\xbf" + good_frame(),
        good_frame().replace(b"hello", b"\xff"),
        good_frame().replace(b'"turn-m-1"', b"NaN"),
        b"[" * 100_000 + b"\n",
        b"null\n",
        b"\n",
        b"",
    ],
    ids=range(11),
)
def test_a_line_that_two_parsers_may_read_differently_is_forbidden(frame: bytes) -> None:
    assert is_forbidden(frame)


@given(st.binary(max_size=200))
def test_no_bytes_make_it_raise(data: bytes) -> None:
    classify(data + b"\n")
    classify(data)


def test_a_refusal_names_shapes_and_no_content() -> None:
    frame = request("turn/start", {**TURN, "cwd": "secret-word"}, "turn-m-1")
    found = classify(frame)
    assert isinstance(found, ForbiddenFrame)
    assert "secret-word" not in found.why
    assert "hello" not in found.why
