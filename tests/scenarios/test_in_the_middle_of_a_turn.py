"""What users do in the middle of a turn: permissions, questions, messages that wait, cancels at every moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from standfast.runner.v1 import runner_pb2 as pb
from standfast.types.v1 import types_pb2 as types
from standfast_client.errors import BusyError, ClientError, InvalidRequestError, UnavailableError
from standfast_client.sdk import Expect, Permissions, TurnLimits, WhenBusy, new_id
from tests.scenarios.stage import Stage, Told
from tests.stub_cli.tool_folder import remove_gates

pytestmark = [pytest.mark.engine("local"), pytest.mark.asyncio(loop_scope="module")]

ASK = Permissions("ask")
WRITES = 'write it [[lab:tool=Bash {"command":"echo written > made-here; echo done"}]]'
ASKS = (
    '[[lab:tool=AskUserQuestion {"questions":[{"question":"Which colour?","header":"Colour","options":'
    '[{"label":"Red","description":"warm"},{"label":"Blue","description":"cold"}],"multiSelect":false}]}]] and then?'
)


@pytest_asyncio.fixture(loop_scope="module")
async def gates(stage: Stage) -> AsyncIterator[Any]:
    """The places at which a test can hold the CLI; all of them are open again afterwards."""
    yield stage.tools.gates
    remove_gates(stage.tools)


async def asked(stage: Stage, conversation: str) -> pb.PendingRequest:
    """Waits until something is asked."""
    async with asyncio.timeout(40):
        while True:
            found = await stage.client.list_pending(conversation)
            if found:
                return found[0]
            await asyncio.sleep(0.05)


async def state_of(stage: Stage, conversation: str, turn_id: str, *states: str) -> pb.Turn:
    """Waits until the turn is in one of the states."""
    async with asyncio.timeout(60):
        while True:
            try:
                turn = await stage.client.get_turn(conversation, turn_id)
                if turn.state in states:
                    return turn
            except ClientError as error:
                if not isinstance(error, UnavailableError) and error.reason != "TURN_UNKNOWN":
                    raise
            await asyncio.sleep(0.05)


def results(told: Told) -> list[tuple[str, bool]]:
    return [
        (event.tool_result.text, event.tool_result.is_error) for event in told.events if event.HasField("tool_result")
    ]


def ends(told: Told) -> list[str]:
    found = [event.native_request_closed for event in told.events if event.HasField("native_request_closed")]
    return [pb.RequestEnd.Name(one.end).removeprefix("REQUEST_END_") for one in found]


async def test_a_permission_decides_this_call_and_the_mode_stays_with_the_conversation(
    stage: Stage, conversation: str
) -> None:
    turn = asyncio.create_task(stage.ask(conversation, WRITES, expect=Expect.NEW, permissions=ASK))
    request = await asked(stage, conversation)
    assert (request.request.kind, request.request.tool) == ("PERMISSION", "Bash")
    await stage.client.answer_permission(conversation, request.request.request_id, allow=True)
    told = await turn
    assert (told.outcome, told.verdicts) == ("COMPLETED", ("CONFIRMED", "CONFIRMED"))
    assert results(told) == [("done", False)]
    # The next turn says nothing of permissions, and is asked all the same; the process serves it.
    turn = asyncio.create_task(stage.ask(conversation, WRITES))
    request = await asked(stage, conversation)
    await stage.client.answer_permission(conversation, request.request.request_id, allow=False, message="not again")
    told = await turn
    assert (told.state, told.outcome) == ("LIVE", "COMPLETED")
    assert results(told) == [("not again", True)]
    # Another mode is another process.
    told = await stage.ask(conversation, WRITES, permissions=Permissions("auto"))
    assert (told.state, told.turn.context_reason, told.outcome) == ("RESTORED", "SETTINGS_CHANGED", "COMPLETED")
    assert results(told) == [("done", False)]


async def test_deny_asks_nobody_and_a_rule_says_what_may_be_done_all_the_same(stage: Stage, conversation: str) -> None:
    told = await stage.ask(conversation, WRITES, expect=Expect.NEW, permissions=Permissions("deny"))
    assert (told.outcome, ends(told)) == ("COMPLETED", [])
    assert [failed for _, failed in results(told)] == [True]
    allowed = await stage.ask(conversation, WRITES, permissions=Permissions("deny", ("Bash(echo *)",)))
    assert results(allowed) == [("done", False)]
    denied = await stage.ask(conversation, WRITES, permissions=Permissions("auto", (), ("Bash",)))
    assert [failed for _, failed in results(denied)] == [True]
    for wrong in (Permissions("plan"), Permissions("ask", ("Bsah",))):
        with pytest.raises(InvalidRequestError):
            await stage.client.send_message(conversation, "x", expect=Expect.CONTINUE, permissions=wrong)


async def test_a_question_comes_in_every_mode_and_each_answer_reaches_the_model(
    stage: Stage, conversation: str
) -> None:
    turn = asyncio.create_task(stage.ask(conversation, ASKS, expect=Expect.NEW))
    request = await asked(stage, conversation)
    [question] = request.request.questions
    assert (question.text, [option.label for option in question.options]) == ("Which colour?", ["Red", "Blue"])
    with pytest.raises(InvalidRequestError):
        await stage.client.answer_question(conversation, request.request.request_id, [["Red", "Blue"]])
    await stage.client.answer_question(conversation, request.request.request_id, [["Blue"]])
    told = await turn
    assert told.outcome == "COMPLETED"
    assert '"Which colour?"="Blue"' in results(told)[0][0]
    assert ends(told) == ["ANSWERED"]


async def test_nobody_answers_and_the_turn_goes_on_with_a_native_refusal(stage: Stage, conversation: str) -> None:
    short = TurnLimits(request_expiry_s=0.3)
    told = await stage.ask(conversation, ASKS, expect=Expect.NEW, limits=short)
    assert (told.outcome, ends(told)) == ("COMPLETED", ["EXPIRED"])
    assert results(told) == [("Nobody answered in time.", True)]
    told = await stage.ask(conversation, WRITES, permissions=ASK, limits=short)
    assert (told.outcome, ends(told), results(told)) == (
        "COMPLETED",
        ["EXPIRED"],
        [("Nobody answered in time.", True)],
    )


async def test_a_cancel_with_a_question_open_is_a_native_end_and_the_next_turn_is_restored(
    stage: Stage, conversation: str
) -> None:
    first = await stage.begin(conversation)
    turn_id = new_id("t")
    turn = asyncio.create_task(stage.ask(conversation, ASKS, turn_id=turn_id))
    await asked(stage, conversation)
    await stage.client.cancel_turn(conversation, turn_id)
    told = await turn
    assert (told.outcome, told.process, told.turn.locator_saved) == ("CANCELLED", "RETIRED", True)
    assert ends(told) == ["CANCELLED"]
    assert await stage.client.list_pending(conversation) == []
    after = await stage.ask(conversation, "what is the colour?")
    assert (after.state, after.text, after.session) == ("RESTORED", "the colour is green", first.session)


async def test_a_turn_limit_with_a_question_open_ends_it_as_timed_out(stage: Stage, conversation: str) -> None:
    await stage.begin(conversation)
    told = await stage.ask(conversation, ASKS, limits=TurnLimits(turn_s=1.0))
    assert (told.outcome, told.reason, ends(told)) == ("TIMED_OUT", "TURN_TIMEOUT", ["CANCELLED"])
    after = await stage.ask(conversation, "what is the colour?")
    assert (after.state, after.text) == ("RESTORED", "the colour is green")


async def test_a_cancel_that_finds_the_message_still_queued_in_the_cli_is_not_lost(
    stage: Stage, conversation: str, gates: Any
) -> None:
    await stage.begin(conversation)
    (gates / "queued.hold").touch()
    turn_id, text = new_id("t"), "this is never to be sent"
    turn = asyncio.create_task(stage.ask(conversation, text, turn_id=turn_id))
    await stage.until("the CLI took the message", lambda: any(gates.glob("queued.reached-*")))
    await stage.client.cancel_turn(conversation, turn_id)
    told = await turn
    remove_gates(stage.tools)
    assert told.outcome == "CANCELLED"
    assert text not in stage.prompts()
    after = await stage.ask(conversation, "what is the colour?")
    assert (after.outcome, after.text) == ("COMPLETED", "the colour is green")
    assert text not in stage.prompts()


async def test_messages_that_wait_go_in_order_each_for_itself_and_as_they_are(
    stage: Stage, conversation: str, gates: Any
) -> None:
    await stage.begin(conversation)
    (gates / "requested.hold").touch()
    texts = ["first of them", "  /second\r\n", "third", "third"]
    turn = asyncio.create_task(stage.ask(conversation, texts[0]))
    await stage.until("the first one runs", lambda: any(gates.glob("requested.reached-*")))
    turn_ids = [new_id("t") for _ in texts[1:]]
    for turn_id, text in zip(turn_ids, texts[1:], strict=True):
        sent = await stage.client.send_message(conversation, text, expect=Expect.CONTINUE, turn_id=turn_id)
        assert sent.state == "QUEUED"
    with pytest.raises(BusyError):
        await stage.client.send_message(conversation, "no room", expect=Expect.CONTINUE, when_busy=WhenBusy.REJECT)
    with pytest.raises(InvalidRequestError, match="joins"):
        await stage.client.send_message(conversation, "x", expect=Expect.CONTINUE, when_busy=WhenBusy.STEER)
    remove_gates(stage.tools)
    assert (await turn).outcome == "COMPLETED"
    for turn_id in turn_ids:
        ended = await state_of(stage, conversation, turn_id, "SETTLED")
        assert ended.outcome == types.OUTCOME_COMPLETED
        assert ended.context_state == types.CONTEXT_STATE_LIVE
    assert stage.prompts()[-4:] == texts


async def test_a_killed_runner_loses_no_waiting_message_and_sends_none_before_it_is_released(
    stage: Stage, conversation: str, gates: Any
) -> None:
    await stage.begin(conversation)
    (gates / "requested.hold").touch()
    running = new_id("t")
    turn = asyncio.create_task(stage.ask(conversation, "it runs when the runner dies", turn_id=running))
    await stage.until("it runs", lambda: any(gates.glob("requested.reached-*")))
    texts = [f"waits as number {number} \u2028 é" for number in range(3)]
    turn_ids = [new_id("t") for _ in texts]
    for turn_id, text in zip(turn_ids, texts, strict=True):
        await stage.client.send_message(conversation, text, expect=Expect.CONTINUE, turn_id=turn_id)
    await stage.fleet.runner.kill()
    turn.cancel()
    await asyncio.gather(turn, return_exceptions=True)
    await stage.client.close()
    remove_gates(stage.tools)
    await stage.fleet.restart(stage.fleet.runner)
    stage.reconnect()
    ended = await state_of(stage, conversation, running, "ENDED", "SETTLED")
    assert ended.outcome in (types.OUTCOME_INTERRUPTED, types.OUTCOME_CANCELLED)
    for turn_id in turn_ids:
        await state_of(stage, conversation, turn_id, "HELD")
    queue = await stage.client.list_queue(conversation)
    assert [message.message for message in queue.messages] == texts
    assert queue.held.after_turn == running
    assert not set(texts) & set(stage.prompts())
    taken = await stage.client.cancel_queued(conversation, turn_ids[1])
    assert taken.outcome == types.OUTCOME_CANCELLED
    await stage.client.release_queue(conversation)
    for turn_id in (turn_ids[0], turn_ids[2]):
        assert (await state_of(stage, conversation, turn_id, "SETTLED")).outcome == types.OUTCOME_COMPLETED
    assert stage.prompts()[-2:] == [texts[0], texts[2]]
    assert texts[1] not in stage.prompts()


async def test_a_host_agent_that_dies_while_the_message_is_queued_in_the_cli_leaves_an_interrupt_that_is_not_lost(
    stage: Stage, conversation: str, gates: Any
) -> None:
    """The supervisor writes what the host agent deposited; the CLI has not begun on the message then."""
    await stage.begin(conversation)
    (gates / "queued.hold").touch()
    text = "nobody is to work on this"
    turn = asyncio.create_task(stage.ask(conversation, text))
    await stage.until("the CLI took the message", lambda: any(gates.glob("queued.reached-*")))
    await stage.fleet.host_agent.kill()
    # The supervisor's grace is 1 s. A message that its interrupt did not reach would be worked on once the hold is over.
    await asyncio.sleep(4.0)
    remove_gates(stage.tools)
    await asyncio.sleep(1.0)
    assert text not in stage.prompts()
    await stage.fleet.restart(stage.fleet.host_agent)
    assert (await turn).outcome == "INTERRUPTED"
    after = await stage.ask_until_answered(conversation, "what is the colour?")
    assert (after.outcome, after.text) == ("COMPLETED", "the colour is green")
    assert text not in stage.prompts()
