"""The pinned Claude Code: what it asks, how it is answered, and an interrupt at every moment of a message. On `local`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from standfast.runner.v1 import runner_pb2 as pb
from standfast.types.v1 import types_pb2 as types
from standfast_client.sdk import Expect, Permissions, TurnLimits, new_id
from tests.real_cli.site import Site

pytestmark = pytest.mark.asyncio(loop_scope="module")

TURN_TIMEOUT_S = 120.0
ASK = Permissions("ask")
WRITES = 'go [[lab:tool=Bash {"command":"touch made-here; echo done"}]]'
ASKS = (
    '[[lab:tool=AskUserQuestion {"questions":[{"question":"Which colour?","header":"Colour","options":[{"label":"Red",'
    '"description":"warm"},{"label":"Blue","description":"cold"}],"multiSelect":false},{"question":"Which fruits?","header":'
    '"Fruit","options":[{"label":"Apple","description":"a"},{"label":"Pear","description":"b"}],"multiSelect":true}]}]] and?'
)


class Turn:
    """One turn that runs beside the test."""

    def __init__(self, site: Site, conversation: str, text: str, expect: Expect, **more: Any) -> None:
        self.client = site.client
        self.conversation = conversation
        self.turn_id = new_id("t")
        self.events: list[pb.TurnEvent] = []
        self.forwarded = asyncio.Event()
        self._stream = self.client.start_turn(conversation, text, expect=expect, turn_id=self.turn_id, **more)
        self._task = asyncio.create_task(self._follow())

    async def _follow(self) -> pb.Turn:
        async with asyncio.timeout(TURN_TIMEOUT_S):
            async for event in self._stream:
                self.events.append(event)
                if event.HasField("forwarded"):
                    self.forwarded.set()
        return self._stream.result

    async def asked(self) -> pb.PendingRequest:
        async with asyncio.timeout(TURN_TIMEOUT_S):
            while not (found := await self.client.list_pending(self.conversation)):
                assert not self._task.done(), "the turn ended and asked nothing"
                await asyncio.sleep(0.05)
        return found[0]

    async def end(self) -> str:
        outcome = (await self._task).outcome
        return types.Outcome.Name(outcome).removeprefix("OUTCOME_")

    @property
    def results(self) -> list[tuple[str, bool]]:
        return [(e.tool_result.text, e.tool_result.is_error) for e in self.events if e.HasField("tool_result")]


async def test_a_permission_is_asked_for_the_root_and_for_a_sub_agent_and_each_answer_holds(local_site: Site) -> None:
    conversation = new_id("c")
    turn = Turn(local_site, conversation, WRITES, Expect.NEW, permissions=ASK)
    request = await turn.asked()
    assert (request.request.tool, request.parent_id) == ("Bash", "")
    await turn.client.answer_permission(conversation, request.request.request_id, allow=True)
    assert await turn.end() == "COMPLETED"
    assert turn.results == [("done", False)]
    sub = Turn(
        local_site, conversation, 'x [[lab:task go [[lab:tool=Bash {"command":"touch sub"}]] ]]', Expect.CONTINUE
    )
    request = await sub.asked()
    calls = [event.tool_call.call_id for event in sub.events if event.HasField("tool_call") and not event.parent_id]
    assert [request.parent_id] == calls
    await sub.client.answer_permission(conversation, request.request.request_id, allow=False, message="not below you")
    assert await sub.end() == "COMPLETED"
    told = [event.tool_result.text for event in sub.events if event.HasField("tool_result") and event.parent_id]
    assert told == ["not below you"]


async def test_questions_are_answered_one_to_one_in_the_mode_auto(local_site: Site) -> None:
    conversation = new_id("c")
    turn = Turn(local_site, conversation, ASKS, Expect.NEW)
    request = await turn.asked()
    assert [question.multiple for question in request.request.questions] == [False, True]
    answers = [["neither, green"], ["Apple", "Pear"]]
    await turn.client.answer_question(conversation, request.request.request_id, answers)
    assert await turn.end() == "COMPLETED"
    [(text, failed)] = turn.results
    assert not failed
    assert '"Which colour?"="neither, green"' in text
    assert '"Which fruits?"="Apple, Pear"' in text


async def test_what_nobody_answers_is_refused_natively(local_site: Site) -> None:
    conversation = new_id("c")
    short = TurnLimits(request_expiry_s=0.5)
    for text, permissions in ((ASKS, None), (WRITES, ASK)):
        expect = Expect.NEW if permissions is None else Expect.CONTINUE
        turn = Turn(local_site, conversation, text, expect, permissions=permissions, limits=short)
        assert await turn.end() == "COMPLETED"
        assert turn.results == [("Nobody answered in time.", True)]


async def test_deny_refuses_and_rules_of_the_members_own_settings_file_do_not_change_that(local_site: Site) -> None:
    conversation = new_id("c")
    plant = (
        'x [[lab:tool=Bash {"command":"mkdir -p ~/.claude && echo \'{\\"permissions\\":{\\"allow\\":[\\"Bash\\",\\"Write\\"]}}\' > '
        '~/.claude/settings.json; echo planted"}]]'
    )
    planted = Turn(local_site, conversation, plant, Expect.NEW)
    assert await planted.end() == "COMPLETED"
    assert planted.results == [("planted", False)]
    denied = Turn(local_site, conversation, WRITES, Expect.CONTINUE, permissions=Permissions("deny"))
    assert await denied.end() == "COMPLETED"
    assert [failed for _, failed in denied.results] == [True]
    asked = Turn(local_site, conversation, WRITES, Expect.CONTINUE, permissions=ASK)
    request = await asked.asked()
    await asked.client.answer_permission(conversation, request.request.request_id, allow=False)
    assert await asked.end() == "COMPLETED"
    allowed = Turn(
        local_site,
        conversation,
        WRITES,
        Expect.CONTINUE,
        permissions=Permissions("deny", ("Bash(touch *)", "Bash(echo *)")),
    )
    assert await allowed.end() == "COMPLETED"
    assert allowed.results == [("done", False)]


async def test_a_cancel_with_a_question_open_settles_and_the_session_goes_on(local_site: Site) -> None:
    conversation = new_id("c")
    turn = Turn(local_site, conversation, ASKS, Expect.NEW)
    await turn.asked()
    await turn.client.cancel_turn(conversation, turn.turn_id)
    assert await turn.end() == "CANCELLED"
    after = Turn(local_site, conversation, "say something", Expect.CONTINUE)
    assert await after.end() == "COMPLETED"


@pytest.mark.parametrize("wait_s", [0.0, 0.005, 0.05])
async def test_a_cancel_right_after_the_message_is_never_lost(local_site: Site, wait_s: float) -> None:
    """The CLI may not have begun on it: without `cancel_queued` it would answer the interrupt and run the message all the same."""
    conversation = new_id("c")
    assert await Turn(local_site, conversation, "hello", Expect.NEW).end() == "COMPLETED"
    turn = Turn(local_site, conversation, "long [[lab:slow=200x100ms]]", Expect.CONTINUE)
    async with asyncio.timeout(TURN_TIMEOUT_S):
        await turn.forwarded.wait()
    await asyncio.sleep(wait_s)
    await turn.client.cancel_turn(conversation, turn.turn_id)
    assert await turn.end() == "CANCELLED"
    assert await Turn(local_site, conversation, "and now?", Expect.CONTINUE).end() == "COMPLETED"
