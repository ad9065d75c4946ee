"""Conversations in real sandboxes: two at once, one that is stopped, cancelled and killed, and what a tool wrote for later turns."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from standfast.runner.v1 import runner_pb2 as pb
from standfast_lab.fleet.fleet import Parts
from tests.real_cli.site import Site, Tee
from tests.real_cli.talk import CONFIRMED, Talk, Told

pytestmark = [pytest.mark.engine("docker"), pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sent(
    short_folder: Callable[[], Path], docker_parts: Parts, _removes_its_containers: None
) -> AsyncIterator[tuple[Site, Tee]]:
    """The product on Docker, and what it sent to the provider."""
    tee = Tee()
    async with Site(short_folder(), docker_parts, through=tee) as site:
        yield site, tee


def tool(command: str) -> str:
    return f"[[lab:tool=Bash {json.dumps({'command': command})}]]"


async def asked(site: Site, talk: Talk, state: str, message: str = "what is the word?") -> Told:
    told = await talk.turn(message)
    assert told.words == (state, "COMPLETED", CONFIRMED), told.turn
    assert str(site.history(talk, told.session)) == "COMPLETE"
    return told


async def test_two_conversations_at_the_same_time_do_not_see_each_other(sent: tuple[Site, Tee]) -> None:
    site, _ = sent
    talks = {word: site.talk() for word in ("plum", "figs")}
    firsts = await asyncio.gather(*(talk.begin(f"remember: the word is {word}") for word, talk in talks.items()))
    assert len({first.container_id for first in firsts}) == 2
    assert len({first.session for first in firsts}) == 2
    look = "cat $HOME/.claude/projects/*/*.jsonl /workspace/* 2>/dev/null; ps -ef; echo word-of-$WORD > /workspace/mine"
    told = await asyncio.gather(
        *(talk.turn(f"look {tool(look.replace('$WORD', word))}") for word, talk in talks.items())
    )
    for one, (word, other) in zip(told, (("plum", "figs"), ("figs", "plum")), strict=True):
        assert one.words == ("LIVE", "COMPLETED", CONFIRMED)
        assert word in one.tool_results[0]
        assert other not in one.tool_results[0]
    for state in ("LIVE", "RESTORED"):
        if state == "RESTORED":
            await asyncio.gather(*(talk.stop() for talk in talks.values()))
        answers = await asyncio.gather(*(asked(site, talk, state) for talk in talks.values()))
        assert [answer.answer for answer in answers] == ["the word is plum", "the word is figs"]
    for first, other in zip(firsts, ("figs", "plum"), strict=True):
        texts = [text for row in site.roots(first.session) for m in row["messages"] for text in m["texts"]]
        assert not any(other in text for text in texts)


async def test_a_conversation_that_is_failed_cancelled_killed_and_stopped_keeps_its_history(
    sent: tuple[Site, Tee],
) -> None:
    site, _ = sent
    talk = site.talk()
    first = await talk.begin()
    await talk.stop()  # at once: the reply may not be on disk yet
    await asked(site, talk, "RESTORED", "repeat your last reply")
    failed = await talk.turn("now fail [[lab:status=403]]")
    assert failed.outcome == "FAILED"
    await asked(site, talk, "LIVE")
    retried = await talk.turn("tell me something [[lab:cut=mid-event times=1]]")
    assert (retried.outcome, retried.disposition) == ("COMPLETED", "RETIRED")
    await asked(site, talk, "RESTORED", "repeat your last reply")

    def in_tool(event: pb.TurnEvent) -> bool:
        return event.HasField("tool_call")

    cancelled = await talk.cancelled(f"wait {tool('sleep 600')}", in_tool)
    assert cancelled.outcome == "CANCELLED"
    assert not any("sleep" in line for line in site.processes(first.container_id))
    await asked(site, talk, "RESTORED")
    await site.kill_cli(first.session)
    await asked(site, talk, "RESTORED")
    killed = asyncio.Event()

    async def kill(event: pb.TurnEvent) -> None:
        if in_tool(event) and not killed.is_set():
            killed.set()
            await site.kill_cli(first.session)

    broken = await talk.turn(f"wait again {tool('sleep 600')}", on_event=kill)
    assert (broken.outcome, broken.reason) == ("INTERRUPTED", "CLI_DIED")
    last = await asked(site, talk, "RESTORED", 'what did you reply to "repeat your last reply"?')
    assert last.answer == f"I replied: my last reply was: {retried.answer}"
    assert (last.container_id, last.session) == (first.container_id, first.session)


async def test_an_instruction_file_that_a_tool_wrote_is_in_the_requests_of_a_later_turn(sent: tuple[Site, Tee]) -> None:
    """The settings that steer the CLI are locked; the workspace's own CLAUDE.md still loads."""
    site, tee = sent
    talk = site.talk()
    # In two pieces, so that the command, which stays in the history, does not hold the mark.
    command = "echo MARK-OF-THE''-WORKSPACE-FILE > /workspace/CLAUDE.md"
    wrote = await talk.turn(f"write it {tool(command)}")
    assert wrote.words == ("NEW", "COMPLETED", CONFIRMED)
    mark = b"MARK-OF-THE-WORKSPACE-FILE"
    assert mark not in tee.sent
    await talk.stop()
    await asked(site, talk, "RESTORED", "count")
    assert mark in tee.sent
