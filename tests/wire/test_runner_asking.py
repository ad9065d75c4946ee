"""Permissions and questions over gRPC: asked once, answered once, expired, cancelled with the turn."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from runner.conductor import requested
from runner.drivers import registry
from standfast.runner.v1 import runner_pb2 as pb
from standfast.types.v1 import types_pb2
from standfast_chassis.errors import StandfastError
from standfast_chassis.rpc_status import remote_errors
from tests.wire.runner_house import WAIT_S, Cli, House, Told, house_in

KEY = types_pb2.ConversationKey(conversation_id="c1")
ASK = {"settings": types_pb2.AgentSettings(permission_mode="ask")}
QUESTIONS = {"questions": [{"question": "Which?", "header": "W", "options": [{"label": "A"}, {"label": "B"}]}]}


def asks(request_id: str, tool: str = "Bash", tool_input: Any = None, **more: Any) -> dict[str, Any]:
    request = {"subtype": "can_use_tool", "tool_name": tool, "input": tool_input or {"command": "ls"}, **more}
    return {"type": "control_request", "request_id": request_id, "request": request}


async def begin(cli: Cli) -> None:
    await cli.activate()
    await cli.take_message()
    await cli.begin()


async def end(cli: Cli, text: str = "plum", **result: Any) -> None:
    await cli.print_lines(cli.assistant(text), cli.result(**result), cli.lifecycle("completed"))
    await cli.observed()


async def until_interrupted(cli: Cli) -> None:
    while not cli.interrupts:
        assert await cli.read() is not None, "the runner left"


async def pending(house: House, count: int = 1) -> list[pb.PendingRequest]:
    """Waits until so many requests wait."""
    async with asyncio.timeout(WAIT_S):
        while True:
            with remote_errors():
                answer = await house.stub.ListPendingRequests(pb.ListPendingRequestsRequest(conversation=KEY))
            if len(answer.requests) == count:
                return list(answer.requests)
            await asyncio.sleep(0.01)


async def permit(house: House, request_id: str, *, allow: bool = True, message: str = "") -> str:
    decision = pb.PERMISSION_DECISION_ALLOW if allow else pb.PERMISSION_DECISION_DENY
    with remote_errors():
        answer = await house.stub.AnswerPermission(
            pb.AnswerPermissionRequest(conversation=KEY, request_id=request_id, decision=decision, message=message)
        )
    return answer.turn_id


async def reply(house: House, request_id: str, *answers: tuple[str, ...], reject: bool = False) -> str:
    with remote_errors():
        answer = await house.stub.AnswerQuestion(
            pb.AnswerQuestionRequest(
                conversation=KEY,
                request_id=request_id,
                answers=[pb.QuestionAnswer(values=values) for values in answers],
                reject=reject,
            )
        )
    return answer.turn_id


def ends(told: Told) -> list[tuple[str, str, str]]:
    found = [event.native_request_closed for event in told.events if event.HasField("native_request_closed")]
    return [(one.request_id, pb.RequestEnd.Name(one.end).removeprefix("REQUEST_END_"), one.answer) for one in found]


@pytest.fixture
async def house(tmp_path: Path) -> Any:
    async with house_in(tmp_path / "state") as made:
        yield made


async def test_a_permission_is_listed_answered_once_and_the_turn_goes_on(house: House) -> None:
    async def script(cli: Cli) -> None:
        await begin(cli)
        await cli.print_lines(asks("r1", agent_id="a1"), asks("r2"))
        frames = [await cli.read_frame(), await cli.read_frame()]
        assert [frame["response"]["response"]["behavior"] for frame in frames] == ["deny", "allow"]
        assert [frame["response"]["request_id"] for frame in frames] == ["r2", "r1"]
        await end(cli)

    house.host.scripts = [script]
    turn = asyncio.create_task(house.turn("t1", **ASK))
    first, second = await pending(house, 2)
    assert (first.turn_id, first.parent_id, first.request.tool, first.request.kind) == (
        "t1",
        "a1",
        "Bash",
        "PERMISSION",
    )
    assert second.parent_id == ""
    assert first.request.HasField("expires_at")
    assert await permit(house, "r2", allow=False, message="not that") == "t1"
    assert [one.request.request_id for one in await pending(house, 1)] == ["r1"]
    assert await permit(house, "r2", allow=False, message="not that") == "t1"
    with pytest.raises(StandfastError) as refused:
        await permit(house, "r2", allow=True)
    assert refused.value.reason == "NATIVE_REQUEST_CLOSED"
    await permit(house, "r1")
    told = await turn
    assert told.outcome == "COMPLETED"
    assert ends(told) == [("r2", "ANSWERED", "DENY"), ("r1", "ANSWERED", "ALLOW")]
    shown = [event for event in told.events if event.HasField("native_request")]
    assert [event.parent_id for event in shown] == ["a1", ""]
    assert all(event.native_request.HasField("expires_at") for event in shown)
    assert await pending(house, 0) == []


async def test_a_wrong_answer_is_refused_with_its_reason_and_the_question_stays(house: House) -> None:
    async def script(cli: Cli) -> None:
        await begin(cli)
        await cli.print_lines(asks("q1", "AskUserQuestion", QUESTIONS))
        frame = await cli.read_frame()
        assert frame["response"]["response"]["updatedInput"]["answers"] == {"Which?": "B"}
        await end(cli)

    house.host.scripts = [script]
    turn = asyncio.create_task(house.turn("t1"))
    [question] = await pending(house)
    assert [option.label for option in question.request.questions[0].options] == ["A", "B"]
    for wrong in (
        permit(house, "q1"),
        reply(house, "q1"),
        reply(house, "q1", ("A",), ("B",)),
        reply(house, "q1", ("A", "B")),
        reply(house, "q1", ("",)),
        reply(house, "q1", ("A",), reject=True),
    ):
        with pytest.raises(StandfastError) as refused:
            await wrong
        assert refused.value.reason == "ANSWER_INVALID"
        assert refused.value.metadata["expected"]
    with pytest.raises(StandfastError) as refused:
        await reply(house, "q2", ("A",))
    assert refused.value.reason == "NATIVE_REQUEST_UNKNOWN"
    await reply(house, "q1", ("B",))
    told = await turn
    assert told.outcome == "COMPLETED"
    assert ends(told) == [("q1", "ANSWERED", "ANSWER")]


async def test_without_a_decision_a_permission_is_not_answered(house: House) -> None:
    with pytest.raises(StandfastError) as refused, remote_errors():
        await house.stub.AnswerPermission(pb.AnswerPermissionRequest(conversation=KEY, request_id="r1"))
    assert refused.value.reason == "ANSWER_INVALID"


async def test_with_no_turn_there_is_nothing_to_answer(house: House) -> None:
    with pytest.raises(StandfastError) as refused:
        await permit(house, "r1")
    assert refused.value.reason == "NATIVE_REQUEST_UNKNOWN"
    assert await pending(house, 0) == []


@pytest.mark.parametrize(("mode", "behaviour"), [("auto", "allow"), ("deny", "deny")])
async def test_a_mode_that_asks_nobody_answers_by_itself_and_says_so(house: House, mode: str, behaviour: str) -> None:
    async def script(cli: Cli) -> None:
        await begin(cli)
        await cli.print_lines(asks("r1"))
        frame = await cli.read_frame()
        assert frame["response"]["response"]["behavior"] == behaviour
        await end(cli)

    house.host.scripts = [script]
    told = await house.turn("t1", settings=types_pb2.AgentSettings(permission_mode=mode))
    assert told.outcome == "COMPLETED"
    assert [(end, answer) for _, end, answer in ends(told)] == [("BY_MODE", behaviour.upper())]
    [shown] = [event.native_request for event in told.events if event.HasField("native_request")]
    assert not shown.HasField("expires_at")


async def test_an_expired_permission_is_refused_natively_and_an_expired_question_rejected(house: House) -> None:
    async def script(cli: Cli) -> None:
        await begin(cli)
        await cli.print_lines(asks("r1"), asks("q1", "AskUserQuestion", QUESTIONS))
        for _ in range(2):
            frame = await cli.read_frame()
            assert frame["response"]["response"]["behavior"] == "deny"
        await end(cli)

    house.host.scripts = [script]
    told = await house.turn("t1", request_expiry_ms=150, **ASK)
    assert told.outcome == "COMPLETED"
    assert sorted(ends(told)) == [("q1", "EXPIRED", "DENY"), ("r1", "EXPIRED", "DENY")]


async def test_where_a_question_cannot_be_rejected_the_turn_is_interrupted_for_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = registry.find_agent("claude-code")
    assert entry is not None
    changed = dataclasses.replace(entry, rejects_questions=False)
    monkeypatch.setattr(requested, "find_agent", lambda _: changed)

    async def script(cli: Cli) -> None:
        await begin(cli)
        await cli.print_lines(asks("q1", "AskUserQuestion", QUESTIONS))
        await until_interrupted(cli)
        await end(cli, is_error=True, terminal_reason="aborted_tools")

    house.host.scripts = [script]
    told = await house.turn("t1", request_expiry_ms=150)
    assert (told.outcome, told.turn.failure.reason) == ("UNANSWERED_QUESTION", "UNANSWERED_QUESTION")
    assert house.host.clis[0].interrupts[0] == "UNANSWERED_QUESTION"
    assert [frame["type"] for frame in house.host.clis[0].frames] == ["control_request", "user"]
    assert ends(told) == [("q1", "EXPIRED", "")]


async def test_a_cancel_with_a_question_open_closes_it_and_a_late_answer_is_refused(house: House) -> None:
    may_end = asyncio.Event()

    async def script(cli: Cli) -> None:
        await begin(cli)
        await cli.print_lines(asks("q1", "AskUserQuestion", QUESTIONS))
        await until_interrupted(cli)
        await may_end.wait()
        await cli.print_lines({"type": "control_cancel_request", "request_id": "q1"})
        await end(cli, is_error=True, terminal_reason="aborted_tools")

    house.host.scripts = [script]
    turn = asyncio.create_task(house.turn("t1"))
    await pending(house)
    await house.cancel("t1")
    assert await pending(house, 0) == []
    with pytest.raises(StandfastError) as refused:
        await reply(house, "q1", ("A",))
    assert refused.value.reason in ("NATIVE_REQUEST_CLOSED", "NATIVE_REQUEST_UNKNOWN")
    may_end.set()
    told = await turn
    assert told.outcome == "CANCELLED"
    assert ends(told) == [("q1", "CANCELLED", "")]
    assert [frame["type"] for frame in house.host.clis[0].frames] == ["control_request", "user"]


async def test_a_request_that_the_cli_takes_back_is_closed_and_the_turn_goes_on(house: House) -> None:
    async def script(cli: Cli) -> None:
        await begin(cli)
        await cli.print_lines(asks("r1"))
        await asyncio.sleep(0)
        await cli.print_lines({"type": "control_cancel_request", "request_id": "r1"})
        await end(cli)

    house.host.scripts = [script]
    told = await house.turn("t1", **ASK)
    assert told.outcome == "COMPLETED"
    assert ends(told) == [("r1", "WITHDRAWN", "")]


async def test_waiting_for_a_person_is_no_silence_and_after_the_answer_silence_counts_anew(house: House) -> None:
    async def script(cli: Cli) -> None:
        await begin(cli)
        await cli.print_lines(asks("r1"))
        await cli.read_frame()
        await until_interrupted(cli)
        await end(cli, is_error=True, terminal_reason="aborted_tools")

    house.host.scripts = [script]
    turn = asyncio.create_task(house.turn("t1", silence_limit_ms=300, **ASK))
    await pending(house)
    loop = asyncio.get_running_loop()
    await asyncio.sleep(0.8)  # more than twice the limit: the claim is that nothing happens in it
    assert not turn.done()
    await permit(house, "r1")
    answered_at = loop.time()
    told = await turn
    assert (told.outcome, told.turn.failure.reason) == ("TIMED_OUT", "SILENCE_TIMEOUT")
    assert loop.time() - answered_at >= 0.25


async def test_many_requests_are_each_answered(house: House) -> None:
    """More than may be open at once, and more than the mailbox of a turn holds."""
    count = 400

    async def script(cli: Cli) -> None:
        await begin(cli)
        await cli.print_lines(*(asks(f"r{number}") for number in range(count)))
        answered = {(await cli.read_frame())["response"]["request_id"] for _ in range(count)}
        assert len(answered) == count
        await end(cli)

    house.host.scripts = [script]
    told = await house.turn("t1", settings=types_pb2.AgentSettings(permission_mode="auto"))
    assert told.outcome == "COMPLETED"
    assert len(ends(told)) == count


async def test_a_mode_or_a_rule_that_the_agent_does_not_know_is_refused(house: House) -> None:
    for settings in (
        types_pb2.AgentSettings(permission_mode="plan"),
        types_pb2.AgentSettings(allow_rules=["Bsah"]),
        types_pb2.AgentSettings(deny_rules=[""]),
    ):
        told = await house.turn("t1", settings=settings)
        assert told.error.reason == "SETTING_UNKNOWN"
    assert house.manager.of("ClaimTurn") == []
