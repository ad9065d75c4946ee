"""A stream that breaks off, in each place and way; and long ones."""

from __future__ import annotations

from standfast_lab.lab.checks import check, check_that
from standfast_lab.lab.play import Play
from standfast_lab.lab.scenario import Act, add_each, scenario

FAULTS = {
    "stream-cut-before-the-head": "cut=before-head times=1",
    "stream-cut-in-the-text": "cut=mid-text times=1",
    "stream-reset-in-an-event": "reset=mid-event times=1",
    "stream-cut-behind-the-text": "cut=before-stop pause=300ms",
    "stream-ends-in-order-too-early": "end=mid-event times=1",
    "error-inside-the-stream": "error-event times=1",
}


def _broken(word: str) -> Act:
    async def act(play: Play) -> None:
        talk = play.talk()
        await talk.begin()
        broken = await talk.ends(f"say something [[lab:{word}]]", play.ending)
        if broken.outcome == "COMPLETED":
            told_again = f"my last reply was: {broken.replies[-1]}"
            await talk.asked(play.ending.next_state, "repeat your last reply", told_again)
        else:
            await talk.asked(play.ending.next_state)
        await talk.stop()
        await talk.asked("RESTORED")

    act.__doc__ = f"The provider's stream breaks once ({word}): how the turn ends is the CLI's way, and nothing is lost or doubled."
    return act


add_each({name: _broken(word) for name, word in FAULTS.items()}, core=("stream-cut-in-the-text",))


@scenario("slow-stream")
async def slow_stream(play: Play) -> None:
    """A reply in many small pieces arrives as it was said, and is there after a resume."""
    talk = play.talk()
    await talk.begin()
    text = " ".join(f"word{n}" for n in range(60))
    told = await talk.asked("LIVE", f"[[lab:say {text}]] [[lab:slow=60x5ms]]", text)
    deltas = [event for event in told.events if event.HasField("text_delta")]
    check_that(len(deltas) > 1, f"it came in pieces: {len(deltas)}")
    await talk.stop()
    await talk.asked("RESTORED", "repeat your last reply", f"my last reply was: {text}")


@scenario("long-line")
async def long_line(play: Play) -> None:
    """A reply of 8 MiB, which is one line of the CLI's output, passes whole, and the session goes on."""
    talk = play.talk()
    await talk.begin()
    state = talk.state_due("LIVE")
    told = await talk.turn("long [[lab:long=8MiB]]")
    check((told.context, told.outcome), (state, "COMPLETED"), "the turn with the long line", told.turn.failure)
    check([len(reply) for reply in told.replies], [8 * 1024 * 1024], "lengths of the replies")
    await talk.asked("LIVE")
    await talk.stop()
    await talk.asked("RESTORED")
