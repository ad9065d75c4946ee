"""Answers and queues from the command line, and what `chat` asks at a terminal."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from standfast.runner.v1 import runner_pb2 as pb
from standfast.types.v1 import types_pb2 as types
from standfast_client.commands.prompting import Allowed, Denied, read_answer, read_permission
from tests.wire.client_fake_runner import Script, ScriptedError, events_of, fake_runner
from tests.wire.test_client_commands import run
from tests.wire.test_client_terminal import CTRL_D, on_terminal

COLOUR = pb.Question(
    header="C", text="Which colour?", options=[pb.QuestionOption(label="Red"), pb.QuestionOption(label="Blue")]
)
FRUITS = pb.Question(
    text="Which fruits?", options=[pb.QuestionOption(label="Apple"), pb.QuestionOption(label="Pear")], multiple=True
)


def asked(request_id: str, *questions: pb.Question) -> pb.NativeRequest:
    request = pb.NativeRequest(
        request_id=request_id, kind="PERMISSION", tool="Bash", payload_json='{"command":"ls \\u001b[2J"}'
    )
    if questions:
        request = pb.NativeRequest(request_id=request_id, kind="QUESTION", tool="Ask", questions=questions)
    request.expires_at.FromSeconds(4_000_000_000)
    return request


def asking(*more: pb.TurnEvent, request: pb.NativeRequest | None = None) -> list[pb.TurnEvent]:
    """A turn that asks after its first events, and goes on."""
    events = events_of("hello")
    bodies = [*events[:3], pb.TurnEvent(native_request=request or asked("r1")), *more, *events[3:]]
    found = []
    for number, event in enumerate(bodies, 1):
        copy = pb.TurnEvent()
        copy.CopyFrom(event)
        copy.sequence = number
        found.append(copy)
    return found


# --- one answer -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("words", "decision", "message"),
    [
        (("--allow",), pb.PERMISSION_DECISION_ALLOW, ""),
        (("--deny",), pb.PERMISSION_DECISION_DENY, ""),
        (("--deny", "--message", "not here"), pb.PERMISSION_DECISION_DENY, "not here"),
    ],
)
async def test_a_permission_is_answered_by_one_word(words: tuple[str, ...], decision: int, message: str) -> None:
    script = Script()
    async with fake_runner(script) as address:
        done = await run("answer", "c-1", "r1", *words, "--runner", address, "--json")
    assert done.code == 0
    [answer] = script.answers
    assert (answer.request_id, answer.decision, answer.message) == ("r1", decision, message)
    assert done.lines[0]["turn_id"] == "t-1"


@pytest.mark.parametrize(
    ("questions", "words", "told"),
    [
        ((COLOUR,), ("--value", "Red"), [["Red"]]),
        ((FRUITS,), ("--value", "Apple", "--value", "Pear"), [["Apple", "Pear"]]),
        ((COLOUR, COLOUR), ("--value", "Red", "--value", "Blue"), [["Red"], ["Blue"]]),
        ((COLOUR, FRUITS), ("--answers-json", '[["Red"],["Apple","Pear"]]'), [["Red"], ["Apple", "Pear"]]),
    ],
)
async def test_a_question_is_answered_value_by_value(
    questions: tuple[pb.Question, ...], words: tuple[str, ...], told: list[list[str]]
) -> None:
    script = Script(pending=[pb.PendingRequest(turn_id="t-1", request=asked("q1", *questions))])
    async with fake_runner(script) as address:
        done = await run("answer", "c-1", "q1", *words, "--runner", address)
    assert done.code == 0
    assert [list(one.values) for one in script.answers[0].answers] == told


async def test_a_question_can_be_rejected() -> None:
    script = Script()
    async with fake_runner(script) as address:
        done = await run("answer", "c-1", "q1", "--reject", "--message", "later", "--runner", address)
    assert done.code == 0
    assert (script.answers[0].reject, script.answers[0].reject_message) == (True, "later")


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--allow", "--deny"),
        ("--allow", "--message", "why"),
        ("--value", "x", "--reject"),
        ("--answers-json", "no json"),
        ("--answers-json", '["flat"]'),
    ],
)
async def test_an_answer_that_says_nothing_or_two_things_is_wrong_usage(words: tuple[str, ...]) -> None:
    assert (await run("answer", "c-1", "r1", *words, "--runner", "127.0.0.1:1")).code == 2


@pytest.mark.parametrize(
    ("reason", "code"), [("ANSWER_INVALID", 2), ("NATIVE_REQUEST_CLOSED", 3), ("NATIVE_REQUEST_UNKNOWN", 6)]
)
async def test_why_an_answer_was_not_taken_is_the_exit_code(reason: str, code: int) -> None:
    async with fake_runner(Script(refusal=ScriptedError(reason))) as address:
        done = await run("answer", "c-1", "r1", "--allow", "--runner", address)
    assert done.code == code
    assert reason in done.err


async def test_an_answer_to_nothing_says_where_to_look() -> None:
    async with fake_runner(Script()) as address:
        done = await run("answer", "c-1", "q9", "--value", "x", "--runner", address)
    assert done.code == 6
    assert "standfast pending c-1" in done.err


async def test_pending_shows_each_request_and_the_command_that_answers_it() -> None:
    script = Script(
        pending=[
            pb.PendingRequest(turn_id="t-1", request=asked("r1"), parent_id="toolu_1"),
            pb.PendingRequest(turn_id="t-1", request=asked("q1", COLOUR, FRUITS)),
        ]
    )
    async with fake_runner(script) as address:
        shown, as_json = await asyncio.gather(
            run("pending", "c-1", "--runner", address), run("pending", "c-1", "--runner", address, "--json")
        )
    text = shown.out.decode()
    assert "standfast answer c-1 r1 --allow | --deny" in text
    assert "standfast answer c-1 q1 --value TEXT | --reject" in text
    assert "sub-agent PERMISSION Bash" in text
    assert "- Blue" in text
    assert "\x1b[2J" not in text
    assert [line["request"]["request_id"] for line in as_json.lines] == ["r1", "q1"]


# --- the queue ------------------------------------------------------------------------------------------------------------
async def test_a_queue_is_listed_in_its_order_with_why_it_is_held_and_released() -> None:
    queue = pb.Queue(
        messages=[pb.QueuedMessage(turn_id=f"t-{number}", message=f"message {number}") for number in (2, 3)],
        held=pb.TurnHeld(after_turn="t-1", outcome=types.OUTCOME_INTERRUPTED, reason="CLI_DIED"),
        messages_max=32,
    )
    async with fake_runner(Script(queue=queue)) as address:
        listed = await run("queue", "ls", "c-1", "--runner", address)
        released = await run("queue", "release", "c-1", "--runner", address, "--json")
    text = listed.out.decode()
    assert text.index("t-2") < text.index("t-3")
    for word in ("held", "INTERRUPTED", "CLI_DIED", "standfast queue release c-1"):
        assert word in text
    assert released.lines[0]["held"] is None


async def test_a_message_is_taken_out_and_one_that_runs_is_refused() -> None:
    script = Script()
    async with fake_runner(script) as address:
        done = await run("queue", "cancel", "c-1", "t-2", "--runner", address)
        script.refusal = ScriptedError("TURN_NOT_QUEUED")
        refused = await run("queue", "cancel", "c-1", "t-3", "--runner", address)
    assert (done.code, script.cancelled) == (0, ["t-2"])
    assert refused.code == 3


async def test_a_turn_says_what_to_do_when_busy_and_what_it_may() -> None:
    script = Script()
    words = ("--when-busy", "queue", "--permission-mode", "ask", "--allow", "Bash(git *)", "--deny", "WebFetch")
    limits = ("--silence-limit-s", "2.5", "--request-expiry-s", "0.001")
    async with fake_runner(script) as address:
        done = await run("turn", "-c", "c-1", *words, *limits, "--runner", address, "hi")
        sent = await run("turn", "-c", "c-1", "--when-busy", "queue", "--no-wait", "--runner", address, "next")
        wrong = await run("turn", "-c", "c-1", "--when-busy", "later", "--runner", address, "next")
    assert (done.code, sent.code, wrong.code) == (0, 0, 2)
    [request] = script.started
    assert request.when_busy == pb.WHEN_BUSY_QUEUE
    assert request.settings.permission_mode == "ask"
    assert (list(request.settings.allow_rules), list(request.settings.deny_rules)) == (["Bash(git *)"], ["WebFetch"])
    assert (request.silence_limit_ms, request.request_expiry_ms, request.turn_limit_ms) == (2500, 1, 0)
    assert (script.sent[0].message, script.sent[0].when_busy) == ("next", pb.WHEN_BUSY_QUEUE)
    assert f"standfast watch c-1 {script.sent[0].turn_id}" in sent.err


async def test_a_full_queue_is_3() -> None:
    async with fake_runner(Script(refusal=ScriptedError("QUEUE_FULL"))) as address:
        assert (await run("turn", "-c", "c-1", "--when-busy", "queue", "--no-wait", "--runner", address, "x")).code == 3


# --- at a terminal --------------------------------------------------------------------------------------------------------
def test_a_typed_line_is_read_as_what_it_says_and_as_nothing_else() -> None:
    assert read_permission(" Y ") == Allowed()
    assert read_permission("n not here") == Denied("not here")
    assert [read_permission(line) for line in ("", "yes please", "maybe", "1")] == [None] * 4
    assert read_answer("2", COLOUR) == ["Blue"]
    assert read_answer("Red", COLOUR) == ["Red"]
    assert read_answer("-", COLOUR) == Denied("")
    assert [read_answer(line, COLOUR) for line in ("", "3", "red", "1,2")] == [None] * 4
    assert read_answer("2, 1,2", FRUITS) == ["Pear", "Apple"]
    assert read_answer("Apple, Pear", FRUITS) == ["Apple", "Pear"]
    own = pb.Question(options=COLOUR.options, free_text=True)
    assert read_answer("green, I think", own) == ["green, I think"]


async def test_chat_asks_what_the_agent_asks_and_an_empty_line_answers_nothing() -> None:
    script = Script(events=asking(), hold_after=4)
    async with (
        fake_runner(script) as address,
        on_terminal("chat", "--permission-mode", "ask", "--runner", address) as terminal,
    ):
        await terminal.until("you> ")
        terminal.type(b"go\n")
        await terminal.until("allow this call?")
        assert "wants to use Bash" in terminal.shown
        terminal.type(b"\n")
        await terminal.until("allow this call?", times=2)
        assert script.answers == []
        terminal.type(b"n not here\n")
        await terminal.until("you> ", times=2)
        [answer] = script.answers
        assert (answer.decision, answer.message) == (pb.PERMISSION_DECISION_DENY, "not here")
        assert script.started[0].settings.permission_mode == "ask"
        terminal.type(CTRL_D)
        assert await terminal.code() == 0


async def test_chat_asks_each_question_and_asks_again_what_the_runner_does_not_take() -> None:
    script = Script(events=asking(request=asked("q1", COLOUR, FRUITS)), hold_after=4, wrong_answers=1)
    async with fake_runner(script) as address, on_terminal("chat", "--runner", address) as terminal:
        await terminal.until("you> ")
        terminal.type(b"go\n")
        for times in (1, 2):
            await terminal.until("Which colour?", times=times)
            terminal.type(b"2\n")
            await terminal.until("Which fruits?", times=times)
            terminal.type(b"1,2\n")
        await terminal.until("you> ", times=2)
        assert "ANSWER_INVALID" in terminal.shown
        assert [[list(one.values) for one in answer.answers] for answer in script.answers] == [
            [["Blue"], ["Apple", "Pear"]]
        ] * 2
        terminal.type(CTRL_D)
        assert await terminal.code() == 0


async def test_what_is_closed_meanwhile_is_not_asked_any_more() -> None:
    closed: Any = pb.NativeRequestClosed(request_id="r1", end=pb.REQUEST_END_EXPIRED, answer="DENY")
    script = Script(events=asking(pb.TurnEvent(native_request_closed=closed)))
    async with fake_runner(script) as address, on_terminal("chat", "--runner", address) as terminal:
        await terminal.until("you> ")
        terminal.type(b"go\n")
        await terminal.until("EXPIRED")
        await terminal.until("you> ", times=2)
        terminal.type(b"y\n")
        await terminal.until("you> ", times=3)
        assert script.answers == []
        assert [request.message for request in script.started] == ["go", "y"]
        terminal.type(CTRL_D)
        assert await terminal.code() == 0
