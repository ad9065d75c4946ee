"""What Codex's driver writes, asks and refuses; and the failure cases that concern it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runner.core.answers import AnswerShapeError, PermissionAnswer, QuestionAnswer, RejectAnswer
from runner.core.events import (
    ContentBeforeIdentity,
    FramesDue,
    HandshakeAnswered,
    HandshakeRefused,
    MessageStarted,
    NativeRequest,
    NativeTurnEnded,
    SessionSeen,
    Warned,
)
from runner.core.verdict import Verdict
from runner.drivers.codex.driver import CodexDriver
from runner.drivers.port import Opening
from tests.native.runner_side.codex_recordings import Played, open_activation
from tests.native.runner_side.recordings import case, case_input

THREAD = "th-1"
TURN = "tu-1"
MESSAGE_ID = "aaaaaaaa-0000-4000-8000-0000000000ff"


def line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"


def note(method: str, **params: Any) -> bytes:
    return line({"method": method, "params": {"threadId": THREAD, "turnId": TURN, **params}})


def item(kind: str, item_type: str, **fields: Any) -> bytes:
    return note(f"item/{kind}", item={"type": item_type, **fields})


def turn_answer(turn_id: str = TURN) -> bytes:
    return line({"id": f"turn-{MESSAGE_ID}", "result": {"turn": {"id": turn_id, "status": "inProgress"}}})


def started(turn_id: str = TURN, thread_id: str = THREAD) -> bytes:
    return line({"method": "turn/started", "params": {"threadId": thread_id, "turn": {"id": turn_id}}})


def completed(turn_id: str = TURN, **turn: Any) -> bytes:
    turn = {"status": "completed", "error": None, **turn, "id": turn_id}
    return line({"method": "turn/completed", "params": {"threadId": THREAD, "turn": turn}})


def asks(request_id: int, method: str, **params: Any) -> bytes:
    return line({"id": request_id, "method": method, "params": {"threadId": THREAD, "turnId": TURN, **params}})


def live(*printed: bytes, text: str = "hello") -> Played:
    """An activation of a process that runs already, with the message written, then these bytes."""
    played = open_activation(Opening(native_session_id=THREAD, resumes=True, workspace="/w"), process_is_new=False)
    played.driver.user_frames(text, message_id=MESSAGE_ID)
    played.feed(b"".join(printed))
    return played


def frames_of(due: FramesDue) -> list[dict[str, Any]]:
    return [json.loads(frame) for frame in due.frames]


# --- the handshake ------------------------------------------------------------------------------------------------------
def test_a_new_process_is_asked_in_three_steps() -> None:
    driver = CodexDriver(Opening(workspace="/w", model="m-1", permission_mode="ask"))
    (first,) = driver.handshake_frames(process_is_new=True)
    assert json.loads(first)["method"] == "initialize"
    (_, due) = [event.body for event in driver.feed(line({"id": "init-1", "result": {"userAgent": "a/0.171.0 x"}}))]
    assert isinstance(due, FramesDue)
    params = {"cwd": "/w", "approvalPolicy": "untrusted", "sandbox": "danger-full-access", "model": "m-1"}
    assert frames_of(due) == [
        {"method": "initialized"},
        {"id": "thread-1", "method": "thread/start", "params": params},
    ]
    (_, answered) = [
        event.body
        for event in driver.feed(line({"id": "thread-1", "result": {"thread": {"id": THREAD, "path": "/p"}}}))
    ]
    assert answered == HandshakeAnswered(THREAD, "/p")
    (frame,) = driver.user_frames("hello", message_id=MESSAGE_ID)
    assert json.loads(frame)["params"]["threadId"] == THREAD


def test_a_resume_names_its_thread_and_all_that_was_granted() -> None:
    driver = CodexDriver(Opening(native_session_id=THREAD, resumes=True, workspace="/w"))
    driver.handshake_frames(process_is_new=True)
    (_, due) = [event.body for event in driver.feed(line({"id": "init-1", "result": {}}))]
    assert isinstance(due, FramesDue)
    params = {"threadId": THREAD, "cwd": "/w", "approvalPolicy": "never", "sandbox": "danger-full-access"}
    assert frames_of(due)[1] == {
        "id": "thread-1",
        "method": "thread/resume",
        "params": {**params, "excludeTurns": True},
    }


def test_a_running_process_is_asked_nothing() -> None:
    driver = CodexDriver(Opening(native_session_id=THREAD, resumes=True))
    assert driver.handshake_frames(process_is_new=False) == []


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("no rollout found for thread id th-1", "NO_SUCH_SESSION"),
        ("invalid session id th-1", "NO_SUCH_SESSION"),
        ("thread th-1 already has an active writer", "SESSION_IN_USE"),
        ("failed to read thread /p: EOF", "OTHER"),
    ],
)
def test_a_refused_resume_says_why(message: str, cause: str) -> None:
    played = open_activation(Opening(native_session_id=THREAD, resumes=True), process_is_new=True)
    played.feed(
        line({"id": "init-1", "result": {}}) + line({"id": "thread-1", "error": {"code": -1, "message": message}})
    )
    assert [refused.cause for refused in played.of(HandshakeRefused)] == [cause]
    assert played.verdict is Verdict.UNPROVEN


def test_an_output_that_ends_before_the_answer_is_a_refusal() -> None:
    played = open_activation(Opening(), process_is_new=True)
    assert any(isinstance(event.body, HandshakeRefused) for event in played.driver.end_of_stream())


def test_another_thread_than_the_resumed_one_is_contradicted() -> None:
    played = open_activation(Opening(native_session_id=THREAD, resumes=True), process_is_new=True)
    played.feed(line({"id": "init-1", "result": {}}) + line({"id": "thread-1", "result": {"thread": {"id": "th-2"}}}))
    assert played.verdict is Verdict.CONTRADICTED


# --- the message --------------------------------------------------------------------------------------------------------
def texts_as_is() -> list[str]:
    given = json.loads(case_input("input-dash-slash-and-large"))
    return [*given["messages"], given["generated"]["repeat"] * given["generated"]["count"], "a\r\nb c\x85d", "$skill"]


@pytest.mark.parametrize("text", texts_as_is(), ids=range(len(texts_as_is())))
def test_a_text_goes_byte_for_byte_in_one_line(text: str) -> None:
    driver = CodexDriver(Opening(native_session_id=THREAD))
    (frame,) = driver.user_frames(text, message_id=MESSAGE_ID)
    assert frame.count(b"\n") == 1
    assert len(frame.decode().splitlines()) == 1
    params = json.loads(frame)["params"]
    assert params == {
        "threadId": THREAD,
        "clientUserMessageId": MESSAGE_ID,
        "input": [{"type": "text", "text": text}],
    }


def test_content_before_our_turn_is_named_waits_for_it() -> None:
    early = item("completed", "agentMessage", id="i1", text="early")
    other = line(
        {"method": "item/completed", "params": {"threadId": THREAD, "turnId": "tu-0", "item": {"type": "agentMessage"}}}
    )
    played = live(started(), early, other)
    assert played.texts == []
    played.feed(turn_answer() + completed())
    assert played.texts == ["early"]
    assert played.verdict is Verdict.CONFIRMED


def test_our_message_id_names_our_turn_where_the_answer_is_missing() -> None:
    played = live(started(), item("started", "userMessage", clientId=MESSAGE_ID), completed())
    assert [end.failed for end in played.ends] == [False]


def test_a_message_that_was_merged_into_anothers_turn_is_not_confirmed() -> None:
    played = live(turn_answer(), started(), item("started", "userMessage", clientId="another"), completed())
    assert len(played.of(ContentBeforeIdentity)) == 1
    assert played.retirements == ["AUTONOMOUS_TURN"]
    assert played.verdict is Verdict.UNPROVEN


def test_an_event_of_our_turn_on_another_thread_is_contradicted() -> None:
    stray = line({"method": "item/started", "params": {"threadId": "th-2", "turnId": TURN, "item": {}}})
    played = live(turn_answer(), started(), stray, completed())
    assert [seen.session_id for seen in played.of(SessionSeen)][:2] == [THREAD, "th-2"]
    assert played.verdict is Verdict.CONTRADICTED


def test_a_status_that_is_not_completed_is_a_failure() -> None:
    for status in ("failed", "inProgress", None):
        assert [end.failed for end in live(turn_answer(), started(), completed(status=status)).ends] == [True]


def test_a_compaction_is_told() -> None:
    played = live(turn_answer(), started(), item("completed", "contextCompaction", id="c"), completed())
    assert "NATIVE_COMPACTION" in [warned.code for warned in played.of(Warned)]


def test_a_turn_without_its_completion_never_ends_and_is_interrupted_by_name() -> None:
    printed = case_input("end-codex-completion-never-sent").replace(b'"id":3', f'"id":"turn-{MESSAGE_ID}"'.encode())
    played = live(printed)
    assert played.texts == ["All done."]
    assert played.ends == []
    assert [type(event.body) for event in played.driver.end_of_stream()] == []
    (interrupt,) = played.driver.interrupt_frames()
    assert json.loads(interrupt)["method"] == "turn/interrupt"
    expected = case("end-codex-completion-never-sent")["expected"]["interrupt_sent_for"]
    assert json.loads(interrupt)["params"] == {"threadId": THREAD, "turnId": expected}
    assert played.verdict is Verdict.UNPROVEN


def test_a_turn_whose_id_is_not_known_yet_is_interrupted_all_the_same() -> None:
    (interrupt,) = live().driver.interrupt_frames()
    assert json.loads(interrupt)["params"] == {"threadId": THREAD, "turnId": ""}


def test_a_recorded_activation_is_read_without_writing() -> None:
    played = open_activation(Opening(native_session_id=THREAD, resumes=True), process_is_new=False)
    played.driver.expect(process_is_new=False, message_id=MESSAGE_ID)
    played.feed(turn_answer() + started() + completed())
    assert played.verdict is Verdict.CONFIRMED
    assert played.of(FramesDue) == []


# --- follow-ups ---------------------------------------------------------------------------------------------------------
def test_a_further_message_goes_into_the_turn_that_runs() -> None:
    played = live(turn_answer(), started(), item("started", "userMessage", clientId=MESSAGE_ID))
    frames = played.driver.steer_frames("and /this", message_id="m-2")
    assert frames is not None
    assert json.loads(frames[0]) == {
        "id": "steer-m-2",
        "method": "turn/steer",
        "params": {
            "threadId": THREAD,
            "expectedTurnId": TURN,
            "clientUserMessageId": "m-2",
            "input": [{"type": "text", "text": "and /this"}],
        },
    }
    played.feed(item("started", "userMessage", clientId="m-2") + completed())
    assert played.verdict is Verdict.CONFIRMED
    assert played.driver.steer_frames("too late", message_id="m-3") is None


def test_no_message_is_steered_before_the_turn_is_named() -> None:
    assert live().driver.steer_frames("x", message_id="m-2") is None


def test_a_refused_further_message_is_told() -> None:
    played = live(turn_answer(), started())
    played.driver.steer_frames("x", message_id="m-2")
    played.feed(line({"id": "steer-m-2", "error": {"code": -32600, "message": "no active turn to steer"}}))
    assert [warned.code for warned in played.of(Warned)] == ["STEER_REFUSED"]


# --- requests -----------------------------------------------------------------------------------------------------------
COMMAND = asks(0, "item/commandExecution/requestApproval", itemId="c1", command="touch x", cwd="/w")
PATCH = asks(1, "item/fileChange/requestApproval", itemId="c2")
QUESTION = asks(
    2,
    "item/tool/requestUserInput",
    isBlocking=False,
    questions=[
        {
            "id": "q1",
            "header": "H",
            "question": "Which?",
            "options": [{"label": "A", "description": "a"}, {"label": "B"}],
        },
        {"id": "q2", "header": "I", "question": "What?", "options": None, "isOther": True},
    ],
)


@pytest.mark.parametrize(("printed", "tool"), [(COMMAND, "shell"), (PATCH, "apply_patch")])
@pytest.mark.parametrize(
    ("answer", "decision"),
    [(PermissionAnswer(True), "accept"), (PermissionAnswer(False, "no"), "decline")],
)
def test_a_permission_is_answered_once(printed: bytes, tool: str, answer: PermissionAnswer, decision: str) -> None:
    played = live(turn_answer(), started(), printed)
    (request,) = played.requests
    assert (request.kind, request.tool) == ("permission", tool)
    (frame,) = played.driver.answer_frames(request.request_id, answer)
    assert json.loads(frame) == {"id": json.loads(printed)["id"], "result": {"decision": decision}}
    with pytest.raises(AnswerShapeError):
        played.driver.answer_frames(request.request_id, answer)


def test_in_the_mode_deny_each_permission_is_declined_at_once_and_a_question_is_asked() -> None:
    opening = Opening(native_session_id=THREAD, resumes=True, workspace="/w", permission_mode="deny")
    played = open_activation(opening, process_is_new=False)
    played.driver.user_frames("hello", message_id=MESSAGE_ID)
    played.feed(turn_answer() + started() + COMMAND + PATCH + QUESTION)
    declined = [{"id": 0, "result": {"decision": "decline"}}, {"id": 1, "result": {"decision": "decline"}}]
    assert [frames_of(due) for due in played.of(FramesDue)] == [[declined[0]], [declined[1]]]
    assert [request.kind for request in played.requests] == ["question"]


def test_each_question_gets_its_own_answer() -> None:
    played = live(turn_answer(), started(), QUESTION)
    (request,) = played.requests
    assert [[option.label for option in question.options] for question in request.questions] == [["A", "B"], []]
    assert [question.free_text for question in request.questions] == [False, True]
    for wrong in (
        QuestionAnswer((("A",),)),
        QuestionAnswer((("C",), ("x",))),
        QuestionAnswer(((), ("x",))),
        QuestionAnswer((("A",), (" ",))),
        PermissionAnswer(True),
        RejectAnswer("nobody answers"),
    ):
        with pytest.raises(AnswerShapeError):
            played.driver.answer_frames(request.request_id, wrong)
    (frame,) = played.driver.answer_frames(request.request_id, QuestionAnswer((("B",), ("my own words",))))
    assert json.loads(frame) == {
        "id": 2,
        "result": {"answers": {"q1": {"answers": ["B"]}, "q2": {"answers": ["my own words"]}}},
    }


def test_the_question_of_the_case_is_answered_by_its_id_and_never_refused() -> None:
    played = live(turn_answer(), case_input("ask-codex-input-request"))
    (request,) = played.requests
    assert (request.request_id, request.kind) == ("41", "question")
    # An error would be taken as the empty answer: a question that nobody answers is ended by the interrupt alone.
    assert played.driver.answer_unknown_frames("41") == []
    (interrupt,) = played.driver.interrupt_frames()
    assert (
        json.loads(interrupt)["params"]["turnId"]
        == case("ask-codex-input-request")["expected"]["without_user"]["interrupt_sent_for"]
    )
    played = live(turn_answer(), case_input("ask-codex-input-request"))
    (frame,) = played.driver.answer_frames("41", QuestionAnswer((("main",),)))
    assert json.loads(frame) == {"id": 41, "result": {"answers": {"q1": {"answers": ["main"]}}}}


@pytest.mark.parametrize(
    "printed",
    [
        asks(7, "mcpServer/elicitation/request"),
        asks(7, "item/permissions/requestApproval"),
        asks(7, "some/newer/request"),
        line({"id": 7, "method": "account/chatgptAuthTokens/refresh", "params": {}}),
        line({"id": 7, "method": "attestation/generate"}),
        asks(7, "item/commandExecution/requestApproval", turnId="tu-9"),
        asks(7, "item/commandExecution/requestApproval", threadId="th-9"),
        asks(7, "item/tool/requestUserInput", questions=[]),
        asks(7, "item/tool/requestUserInput", questions=[{"question": "no id"}]),
    ],
)
def test_what_is_not_ours_or_not_known_is_refused_by_the_protocol(printed: bytes) -> None:
    played = live(turn_answer(), started(), printed)
    (request,) = played.requests
    assert request.kind == "other"
    (frame,) = played.driver.answer_unknown_frames(request.request_id)
    answer = json.loads(frame)
    assert answer["id"] == 7
    assert set(answer) == {"id", "error"}
    assert played.driver.answer_unknown_frames(request.request_id) == []


def test_an_early_request_waits_for_our_turn_and_is_asked_then() -> None:
    played = live(COMMAND)
    assert played.requests == []
    played.feed(turn_answer() + started())
    assert [request.kind for request in played.requests] == ["permission"]


# --- framing ------------------------------------------------------------------------------------------------------------
def test_stray_lines_are_noise_and_joined_to_nothing() -> None:
    played = live(turn_answer(), b"warn: slow disk\n", b"[1,2]\n", started(), b'{"half\n', completed())
    assert [type(event.body).__name__ for event in played.events].count("NoiseLine") == 3
    assert played.verdict is Verdict.CONFIRMED


@pytest.mark.parametrize("length", [200_000, 3_000_000])
def test_a_line_of_any_length_is_one_line(length: int) -> None:
    played = live(turn_answer(), started())
    played.feed(item("completed", "agentMessage", id="i", text="x" * length) + completed(), cut_every=65536)
    assert [len(text) for text in played.texts] == [length]


def test_a_character_cut_between_reads_stays_whole() -> None:
    text = "读取 ✓ 🎉"
    played = live(turn_answer(), started())
    played.feed(item("completed", "agentMessage", id="i", text=text) + completed(), cut_every=1)
    assert played.texts == [text]


@pytest.mark.parametrize(
    "odd",
    [
        b'{"method":"turn/completed","params":7}\n',
        b'{"method":7,"params":{}}\n',
        b'{"id":[1],"method":"item/tool/requestUserInput","params":{"threadId":"th-1","turnId":"tu-1"}}\n',
        b'{"id":"turn-x","result":[]}\n',
        b'{"method":"thread/tokenUsage/updated","params":{"threadId":"th-1","turnId":"tu-1","tokenUsage":{"total":"x"}}}\n',
        b'{"method":"item/completed","params":{"threadId":"th-1","turnId":"tu-1","item":"x"}}\n',
        b'{"method":"error","params":{"threadId":"th-1","turnId":"tu-1","willRetry":true,"error":"x"}}\n',
    ],
)
def test_fields_of_a_wrong_type_read_as_absent(odd: bytes) -> None:
    played = live(turn_answer(), started(), odd, completed())
    assert played.verdict is Verdict.CONFIRMED
    assert len(played.of(MessageStarted)) == 1
    assert len(played.of(NativeTurnEnded)) == 1
    assert all(isinstance(request, NativeRequest) for request in played.requests)
