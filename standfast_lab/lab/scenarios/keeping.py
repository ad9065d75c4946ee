"""A conversation goes on: while its process lives, after a stop, twice over."""

from __future__ import annotations

import asyncio

from standfast_lab.lab.checks import check
from standfast_lab.lab.play import Play
from standfast_lab.lab.scenario import scenario


@scenario("follow-up-live", core=True)
async def follow_up_live(play: Play) -> None:
    """A follow-up while the process lives carries the whole history, in the same session and process."""
    talk = play.talk()
    first = await talk.begin()
    second = await talk.asked("LIVE")
    check(second.session, first.session, "the session of the second turn")
    check(second.process == first.process, second.context == "LIVE", "one process for both turns")
    await talk.asked("LIVE", 'what did you reply to "what is the word?"', f"I replied: the word is {talk.word}")


@scenario("close-and-resume", core=True)
async def close_and_resume(play: Play) -> None:
    """A conversation that is closed right after its reply and resumed has lost nothing; twice."""
    talk = play.talk()
    first = await talk.begin()
    await talk.stop()
    second = await talk.asked("RESTORED", "repeat your last reply", f"my last reply was: noted: {talk.word}")
    await talk.stop()
    third = await talk.asked("RESTORED")
    check({second.session, third.session}, {first.session}, "the native session")
    check(third.container_id, first.container_id, "the container")


@scenario("stop-and-start")
async def stop_and_start(play: Play) -> None:
    """Live turns, a stop, live turns again: the history is whole at each step."""
    talk = play.talk()
    await talk.begin()
    await talk.asked("LIVE")
    await talk.stop()
    await talk.asked("RESTORED")
    await talk.asked("LIVE", "count", "count: 4")
    await talk.stop()
    await talk.stop()
    await talk.asked("RESTORED", "count", "count: 5")


@scenario("equal-turns")
async def equal_turns(play: Play) -> None:
    """The same message three times is three messages, live and resumed."""
    talk = play.talk()
    await talk.begin()
    for state in ("LIVE", "LIVE", "RESTORED"):
        if state == "RESTORED":
            await talk.stop()
        await talk.asked(state, "again, please")
    await talk.asked("LIVE", "count", "count: 5")


@scenario("two-conversations")
async def two_conversations(play: Play) -> None:
    """Two conversations at the same time, each in its sandbox, share nothing."""
    one, other = play.talk(), play.talk()
    await asyncio.gather(one.begin(), other.begin())
    first, second = await asyncio.gather(one.asked("LIVE"), other.asked("LIVE"))
    check(first.session == second.session, False, "one session for two conversations")
    check(first.container_id == second.container_id, False, "one container for two conversations")
    await asyncio.gather(one.stop(), other.stop())
    await asyncio.gather(one.asked("RESTORED"), other.asked("RESTORED"))
