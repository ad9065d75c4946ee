"""Processes are killed between turns and in them; what was settled lasts."""

from __future__ import annotations

from collections.abc import Callable

from standfast.runner.v1 import runner_pb2 as pb
from standfast_lab.lab.checks import check, check_that
from standfast_lab.lab.play import LabTalk, Play, at
from standfast_lab.lab.scenario import scenario
from standfast_lab.lab.scenarios.cancelling import STREAM
from standfast_lab.lab.talk import CONFIRMED


@scenario("cli-killed-between-turns")
async def cli_killed_between_turns(play: Play) -> None:
    """The CLI is killed after a settled turn: the next turn resumes, nothing is lost."""
    talk = play.talk()
    first = await talk.begin()
    await play.site.kill_cli(first)
    after = await talk.asked("RESTORED")
    check((after.session, after.process), (first.session, first.process + 1), "session and process")


async def _killed_in_a_turn(play: Play, word: str, when: Callable[[pb.TurnEvent], bool]) -> None:
    talk = play.talk()
    first = await talk.begin()
    killed = False

    async def kill(event: pb.TurnEvent) -> None:
        nonlocal killed
        if when(event) and not killed:
            killed = True
            await play.site.kill_cli(first)

    broken = await talk.turn(f"long work {word}", on_event=kill)
    check_that(killed, "the CLI was killed", broken.turn)
    check((broken.outcome, broken.reason), ("INTERRUPTED", "CLI_DIED"), "the broken turn", broken.turn)
    after = await talk.asked("RESTORED")
    check(after.session, first.session, "the native session")
    await talk.stop()
    await talk.asked("RESTORED", "again, please")


@scenario("cli-killed-in-the-stream", core=True)
async def cli_killed_in_the_stream(play: Play) -> None:
    """The CLI is killed in the middle of a reply: INTERRUPTED, and the settled history is whole."""
    await _killed_in_a_turn(play, STREAM, at("text_delta"))


@scenario("cli-killed-in-a-tool")
async def cli_killed_in_a_tool(play: Play) -> None:
    """The CLI is killed while a tool runs: INTERRUPTED, and the settled history is whole."""
    await _killed_in_a_turn(play, play.agent.shell("sleep 600"), at("tool_call"))


async def _goes_on(talk: LabTalk, session: str) -> None:
    """The next turn, as soon as everybody is back, has the settled history; so has the one after a stop."""
    after = await talk.turn_until_answered("what is the word?")
    check((after.outcome, after.verdicts), ("COMPLETED", CONFIRMED), "the turn after", after.turn)
    check_that(after.context in ("LIVE", "RESTORED"), f"its state: {after.context}", after.turn)
    check((after.session, after.answer), (session, f"the word is {talk.word}"), "session and answer")
    talk.complete(after)
    await talk.stop()
    await talk.asked("RESTORED", "again, please")


@scenario("host-agent-killed-between-turns", alone=True)
async def host_agent_killed_between_turns(play: Play) -> None:
    """The host agent is killed and comes back: the conversation goes on."""
    talk, fleet = play.talk(), play.site.fleet
    first = await talk.begin()
    await fleet.host_agent.kill()
    await fleet.restart(fleet.host_agent)
    await _goes_on(talk, first.session)


@scenario("host-agent-killed-in-a-turn", core=True, alone=True)
async def host_agent_killed_in_a_turn(play: Play) -> None:
    """The host agent is killed in the middle of a reply: not a normal end, and the settled history is whole."""
    talk, fleet = play.talk(), play.site.fleet
    first = await talk.begin()
    killed = False

    async def kill(event: pb.TurnEvent) -> None:
        nonlocal killed
        if event.HasField("text_delta") and not killed:
            killed = True
            await fleet.host_agent.kill()
            await fleet.restart(fleet.host_agent)

    broken = await talk.turn(f"long work {STREAM}", on_event=kill)
    check_that(killed, "the host agent was killed", broken.turn)
    check(broken.outcome, "INTERRUPTED", "the broken turn's outcome", broken.turn)
    await _goes_on(talk, first.session)
