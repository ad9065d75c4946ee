"""The ordinary course of turns through a real runner, and what a client sees of it."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from standfast.runner.v1 import runner_pb2 as pb
from standfast.types.v1 import types_pb2
from tests.wire.runner_house import SESSION_A, Cli, House, house_in, ordinary_turn


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with house_in(tmp_path / "state") as opened:
        yield opened


async def test_a_first_turn_is_settled_and_its_locator_saved_on_both_sides(house: House) -> None:
    told = await house.turn("t1")
    assert told.error is None
    assert told.kinds == ["accepted", "context", "forwarded", "assistant_message", "ended", "settled"]
    assert [event.sequence for event in told.events] == [1, 2, 3, 4, 5, 6]
    assert told.outcome == "COMPLETED"
    assert told.turn.output_text == "plum"
    assert told.turn.context_state == types_pb2.CONTEXT_STATE_NEW
    assert (told.turn.runner_verdict, told.turn.manager_verdict) == (
        types_pb2.VERDICT_CONFIRMED,
        types_pb2.VERDICT_CONFIRMED,
    )
    assert told.turn.locator_saved
    conversation = await house.conversation()
    assert conversation.runner_locator.native_session_id == SESSION_A
    assert conversation.runner_locator == conversation.manager_locator


async def test_only_the_saved_locator_is_sent_and_only_after_it_is_saved(house: House) -> None:
    await house.turn("t1")
    await house.turn("t2")
    first, second = house.manager.of("PrepareTurn")
    assert not first.HasField("locator")
    assert second.locator.native_session_id == SESSION_A


async def test_the_message_goes_byte_for_byte_under_the_granted_id(house: House) -> None:
    text = "/clear  «ü» \r\n\t keep   "
    await house.turn("t1", text)
    [frame] = [frame for frame in house.host.clis[0].frames if frame["type"] == "user"]
    assert frame["message"]["content"][0]["text"] == text
    assert frame["message"]["content"][1:] == [{"type": "text", "text": ""}]
    assert frame["uuid"] == "11111111-0000-4000-8000-000000000001"
    [claim] = house.manager.of("ClaimTurn")
    assert claim.message_length == len(text.encode())


async def test_the_same_turn_id_re_attaches_and_never_sends_again(house: House) -> None:
    first = await house.turn("t1")
    again = await house.turn("t1")
    assert again.events == first.events
    assert len(house.host.clis) == 1
    await house.restart_runner()
    after_restart = await house.turn("t1")
    assert after_restart.events == first.events
    assert len(house.host.clis) == 1
    other = await house.turn("t1", "another message")
    assert other.error.reason == "MESSAGE_CHANGED"


async def test_a_failed_native_turn_is_a_message_and_keeps_the_session(house: House) -> None:
    async def failing(cli: Cli) -> None:
        await cli.activate()
        await cli.take_message()
        await cli.answer(is_error=True)

    house.host.scripts = [failing, ordinary_turn]
    told = await house.turn("t1")
    assert told.error is None
    assert told.outcome == "FAILED"
    assert (told.turn.failure.reason, told.turn.failure.provider_status) == ("PROVIDER_ERROR", 403)
    assert told.turn.output_text == ""
    assert told.turn.locator_saved
    assert (await house.turn("t2")).outcome == "COMPLETED"


async def test_watching_replays_after_a_number_and_says_whether_it_is_whole(house: House) -> None:
    whole = await house.turn("t1")
    tail = await house.watch("t1", after=3)
    assert (tail.resume, tail.events) == (pb.RESUME_OK, whole.events[3:])
    ahead = await house.watch("t1", after=99)
    # The number is of a run whose events a power loss took: how the turn ended is told all the same.
    assert (ahead.resume, ahead.events) == (pb.RESUME_GAP, whole.events[-1:])
    unknown = await house.watch("t9")
    assert unknown.error.reason == "TURN_UNKNOWN"


async def test_a_turn_whose_events_are_gone_still_says_how_it_ended_and_that_some_are_missing(house: House) -> None:
    whole = await house.turn("t1")
    await house.stop_runner()
    with sqlite3.connect(house.state / "events.sqlite") as events:
        events.execute("DELETE FROM events WHERE sequence > 3")
    events.close()
    await house.start_runner()
    told = await house.watch("t1")
    assert told.resume == pb.RESUME_GAP
    assert told.events == [*whole.events[:3], whole.events[-1]]
    assert (await house.watch("t1", after=5)).resume == pb.RESUME_OK


async def test_many_conversations_at_once_do_not_disturb_each_other(house: House) -> None:
    async def script(cli: Cli) -> None:
        await cli.activate()
        await cli.take_message()
        text = cli.frames[-1]["message"]["content"][0]["text"]
        await cli.begin()
        await cli.print_lines(*[cli.assistant(f"{text} {number}") for number in range(20)], cut_every=37)
        await cli.print_lines(cli.result(), cli.lifecycle("completed"))
        await cli.observed()

    house.host.scripts = [script]
    numbers = range(60)
    told = await asyncio.gather(
        *[house.turn(f"turn-{number}", f"hello {number}", conversation_id=f"c{number}") for number in numbers]
    )
    for number, one in zip(numbers, told, strict=True):
        assert one.outcome == "COMPLETED", one.error
        assert one.texts == [f"hello {number} {part}" for part in range(20)]
        assert [event.sequence for event in one.events] == list(range(1, len(one.events) + 1))


async def test_raw_frames_come_when_asked_for_and_leave_the_numbers_whole(house: House) -> None:
    told = await house.turn("t1", include_raw=True)
    raw = [json.loads(event.raw_frame.frame) for event in told.events if event.HasField("raw_frame")]
    assert [frame["type"] for frame in raw] == [
        "command_lifecycle",
        "system",
        "assistant",
        "result",
        "command_lifecycle",
    ][-len(raw) :]
    assert "assistant" in [frame["type"] for frame in raw]
    numbered = [event.sequence for event in told.events if not event.HasField("raw_frame")]
    assert numbered == list(range(1, len(numbered) + 1))


async def test_conversations_agents_and_builds_are_shown(house: House) -> None:
    await house.turn("t1")
    listed = await house.stub.ListConversations(pb.ListConversationsRequest())
    assert [found.runner_locator.native_session_id for found in listed.conversations] == [SESSION_A]
    turns = await house.stub.ListTurns(
        pb.ListTurnsRequest(conversation=types_pb2.ConversationKey(conversation_id="c1"))
    )
    assert [turn.turn_id for turn in turns.turns] == ["t1"]
    agents = await house.stub.ListAgents(pb.ListAgentsRequest())
    assert ("claude-code", "2.1.220") in [(agent.name, agent.version) for agent in agents.agents]
    build = await house.stub.GetBuildInfo(pb.GetBuildInfoRequest())
    assert (build.build.component, build.manager.component) == ("runner", "manager")
