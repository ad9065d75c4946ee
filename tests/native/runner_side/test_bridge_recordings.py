"""Recorded turns of OpenCode and Kilo, as the bridge tells them, through the runner's driver and identity judge."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from runner.core.answers import AnswerShapeError, PermissionAnswer, QuestionAnswer, RejectAnswer
from runner.core.events import (
    AssistantMessage,
    ContentBeforeIdentity,
    DriverEvent,
    HandshakeAnswered,
    HandshakeRefused,
    MessageStarted,
    NativeRequest,
    NativeTurnEnded,
    NoiseLine,
    ProcessMustRetire,
    ProviderRetry,
    Question,
    QuestionOption,
    RequestWithdrawn,
    SessionSeen,
    TextDelta,
    ToolCall,
    ToolResult,
    Usage,
    Warned,
)
from runner.core.identity import IdentityJudge
from runner.core.verdict import Verdict
from runner.drivers.http_bridge.driver import HttpBridgeDriver
from runner.drivers.port import Opening
from runner.drivers.registry import find_agent
from tests.native.bridge_replay import OWN_ID, Played, play

SESSION = "ses_dd3bc005fffe7nbrFeU2EETInc"
WORKSPACE = "/srv/box/app"


def driver_of(agent: str = "opencode", **opening: Any) -> HttpBridgeDriver:
    return HttpBridgeDriver(agent, Opening(workspace=WORKSPACE, **opening))


def read(played: Played, agent: str, cut_every: int | None = None) -> list[DriverEvent]:
    driver = driver_of(agent)
    driver.expect(process_is_new=False, message_id=OWN_ID)
    data = bytes(played.tap)
    step = cut_every or len(data)
    return [event for start in range(0, len(data), step) for event in driver.feed(data[start : start + step])]


def judged(events: list[DriverEvent], expected: str) -> Verdict:
    entry = find_agent("opencode")
    assert entry is not None
    judge = IdentityJudge(expected, naming=entry.naming_frames)
    for event in events:
        judge.observe(event.body)
    return judge.verdict().verdict


def bodies(events: list[DriverEvent], kind: type) -> list[Any]:
    return [event.body for event in events if isinstance(event.body, kind)]


@dataclass(frozen=True)
class Row:
    """`end` is (failed, cancelled, reason, status)."""

    recording: str
    index: int = 0
    end: tuple[bool, bool, str | None, int | None] = (False, False, "stop", None)
    texts: int = 1
    tools: int = 0
    retries: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.recording}-{self.index}"


def of_both(name: str, **row: Any) -> list[Row]:
    return [Row(f"{agent}/{name}", **row) for agent in ("opencode", "kilo")]


CANCELLED = (True, True, "ABORTED", None)
ROWS = [
    *of_both("two-turns"),
    *of_both("two-turns", index=1, texts=2, tools=1),
    *of_both("abort", end=CANCELLED),
    *of_both("abort", index=1),
    Row("opencode/abort-pending-permission", end=CANCELLED, tools=1),
    Row("kilo/abort-pending-permission", end=CANCELLED, texts=0),
    *of_both("error-401", end=(True, False, "APIError", 401), texts=0),
    Row("opencode/error-midstream", end=CANCELLED, retries=2),
    Row("kilo/error-midstream", end=(True, False, "UnknownError", None)),
    *of_both("permission-child-session", texts=2, tools=1),
    *of_both("permission-rejected", end=(True, False, "ENDED_AFTER_TOOL", None), tools=1),
    *of_both("question", texts=2, tools=1, options={"answers": ((("B",),),)}),
    *of_both("resume"),
    *of_both("retry-then-success", retries=1),
    Row("kilo/stream-cut", end=(True, False, "STREAM_CUT", None)),
]


@pytest.mark.parametrize("cut_every", [None, 7])
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_recorded_turn_is_read_as_it_was(row: Row, cut_every: int | None) -> None:
    played = play(row.recording, row.index, **row.options)
    events = read(played, row.recording.partition("/")[0], cut_every)
    (end,) = bodies(events, NativeTurnEnded)
    assert (end.failed, end.cancelled, end.reason, end.status) == row.end
    roots = [text for text in bodies(events, AssistantMessage) if text.parent_id is None]
    assert [text.text for text in roots] == played.root_texts
    assert len(roots) == row.texts
    assert len([call for call in bodies(events, ToolCall) if call.parent_id is None]) == row.tools
    assert len(bodies(events, ProviderRetry)) == row.retries
    assert bodies(events, NoiseLine) == [], "the supervisor's lines are not ours to count"
    assert judged(events, played.session) is Verdict.CONFIRMED
    assert judged(events, "ses_another") is Verdict.CONTRADICTED


def test_a_stream_cut_for_ever_has_no_native_end() -> None:
    played = play("opencode/stream-cut")
    events = read(played, "opencode")
    assert bodies(events, NativeTurnEnded) == []
    assert [one.code for one in bodies(events, Warned)] == ["ABORT_UNANSWERED"]
    assert judged(events, played.session) is Verdict.UNPROVEN


@pytest.mark.parametrize("agent", ["opencode", "kilo"])
def test_a_childs_events_name_its_call_and_no_session_of_the_root(agent: str) -> None:
    played = play(f"{agent}/permission-child-session")
    events = read(played, agent)
    of_child = [one for one in [event.body for event in events] if getattr(one, "parent_id", None) is not None]
    assert {type(one) for one in of_child} >= {AssistantMessage, TextDelta, ToolCall, ToolResult}
    assert {seen.session_id for seen in bodies(events, SessionSeen)} == {played.session}
    assert bodies(events, Usage), "the turn's counts are told"


def test_the_handshake_names_the_session() -> None:
    driver = driver_of()
    (frame,) = driver.handshake_frames(process_is_new=True)
    assert frame == b'{"v":4,"op":"open","id":"open","session":null,"directory":"/srv/box/app"}\n'
    events = driver.feed(b'{"v":4,"ev":"opened","id":"open","session":"' + SESSION.encode() + b'","is_new":true}\n')
    assert bodies(events, HandshakeAnswered) == [HandshakeAnswered(SESSION)]


def test_a_resume_names_the_session_that_it_wants() -> None:
    (frame,) = driver_of(native_session_id=SESSION, resumes=True).handshake_frames(process_is_new=True)
    assert f'"session":"{SESSION}"'.encode() in frame


@pytest.mark.parametrize(
    ("cause", "expected"),
    [("NO_SUCH_SESSION", "NO_SUCH_SESSION"), ("DIRECTORY_DIFFERS", "OTHER"), ("SERVER_FAILED", "OTHER")],
)
def test_a_refused_handshake_is_refused(cause: str, expected: str) -> None:
    driver = driver_of(native_session_id=SESSION, resumes=True)
    driver.handshake_frames(process_is_new=True)
    events = driver.feed(f'{{"v":4,"ev":"refused","id":"open","cause":"{cause}","detail":"d"}}\n'.encode())
    assert [(one.cause, one.detail) for one in bodies(events, HandshakeRefused)] == [(expected, f"{cause}: d")]


def test_a_bridge_that_leaves_in_the_handshake_refused_it() -> None:
    driver = driver_of()
    driver.handshake_frames(process_is_new=True)
    assert [one.cause for one in bodies(driver.end_of_stream(), HandshakeRefused)] == ["OTHER"]


def test_content_before_the_session_was_named_is_not_passed_on() -> None:
    driver = driver_of()
    driver.user_frames("hi", message_id=OWN_ID)
    line = b'{"v":4,"ev":"text","session":"ses_x","parent":null,"message":"m","part":"p","text":"early"}\n'
    events = driver.feed(line)
    assert bodies(events, AssistantMessage) == []
    assert bodies(events, ContentBeforeIdentity) == [ContentBeforeIdentity("text")]


def test_another_messages_end_is_not_ours() -> None:
    driver = driver_of()
    driver.user_frames("hi", message_id=OWN_ID)
    start = f'{{"v":4,"ev":"started","id":"{OWN_ID}","session":"{SESSION}","native_id":"msg_1"}}\n'
    other = f'{{"v":4,"ev":"settled","id":"other","session":"{SESSION}","outcome":"completed"}}\n'
    events = driver.feed((start + other).encode())
    assert bodies(events, MessageStarted) == [MessageStarted()]
    assert bodies(events, NativeTurnEnded) == []


def test_a_line_of_another_protocol_version_is_noise() -> None:
    events = driver_of().feed(b'{"v":3,"ev":"opened","id":"open","session":"ses_1"}\n')
    assert [type(event.body) for event in events] == [NoiseLine]


def test_what_the_bridge_finds_wrong_with_its_process_retires_it() -> None:
    events = driver_of().feed(b'{"v":4,"ev":"retire","reason":"FOREIGN_PROMPT"}\n')
    assert bodies(events, ProcessMustRetire) == [ProcessMustRetire("FOREIGN_PROMPT")]


def test_the_text_goes_byte_for_byte() -> None:
    text = '/init !ls @file $x "quoted" \\ \r\n\u2028 \U0001f389'
    (frame,) = driver_of().user_frames(text, message_id=OWN_ID)
    assert frame.isascii()
    assert frame.count(b"\n") == 1
    assert json.loads(frame) == {"v": 4, "op": "prompt", "id": OWN_ID, "text": text}


ASK = (
    b'{"v":4,"ev":"ask","session":"ses_kid","parent":"call_1","id":"que_1","kind":"question","tool":null,"questions":'
    b'[{"header":"H","text":"Which?","options":[{"label":"A","description":"a"}],"multiple":false,"free_text":true}],'
    b'"payload":{}}\n'
)
ASK_BASH = (
    b'{"v":4,"ev":"ask","session":"s","parent":null,"id":"per_1","kind":"permission","tool":"bash","questions":[]}\n'
)


def test_a_question_is_offered_with_its_shape_and_answered_once() -> None:
    driver = driver_of()
    (request,) = bodies(driver.feed(ASK), NativeRequest)
    question = Question("H", "Which?", (QuestionOption("A", "a"),), free_text=True)
    assert (request.kind, request.questions, request.parent_id) == ("question", (question,), "call_1")
    for wrong in (QuestionAnswer(()), QuestionAnswer((("A", "B"),)), PermissionAnswer(True)):
        with pytest.raises(AnswerShapeError):
            driver.answer_frames("que_1", wrong)
    (frame,) = driver.answer_frames("que_1", QuestionAnswer((("mine",),)))
    assert frame == b'{"v":4,"op":"answers","id":"que_1","answers":[["mine"]]}\n'
    with pytest.raises(AnswerShapeError):
        driver.answer_frames("que_1", QuestionAnswer((("A",),)))


def test_a_question_is_rejected_and_a_permission_refused_natively() -> None:
    driver = driver_of()
    driver.feed(ASK + ASK_BASH)
    assert driver.answer_frames("que_1", RejectAnswer("nobody")) == [
        b'{"v":4,"op":"reject","id":"que_1","message":"nobody"}\n'
    ]
    assert driver.answer_frames("per_1", PermissionAnswer(False, "no")) == [
        b'{"v":4,"op":"permission","id":"per_1","allow":false,"message":"no"}\n'
    ]


def test_a_request_that_goes_is_withdrawn_unless_it_was_answered() -> None:
    driver = driver_of()
    gone = b'{"v":4,"ev":"asked","session":"s","id":"que_1","how":"gone"}\n'
    assert bodies(driver.feed(ASK + gone), RequestWithdrawn) == [RequestWithdrawn("que_1")]
    driver.feed(ASK)
    driver.answer_frames("que_1", RejectAnswer("nobody"))
    assert bodies(driver.feed(gone), RequestWithdrawn) == []
