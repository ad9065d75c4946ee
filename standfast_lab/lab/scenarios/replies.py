"""Replies of every kind: none, refused, cut short, with tools, with a sub-agent."""

from __future__ import annotations

from standfast_lab.lab.checks import check, check_that
from standfast_lab.lab.play import Play
from standfast_lab.lab.scenario import Act, add_each, scenario

ODD = {
    "empty-reply": "empty",
    "nothing-but-empty-replies": "empty times=9",
    "refusal": "refusal",
    "length-stop": "max_tokens",
    "white-space-reply": "say   \n two lines \n\n",
    "thinking": "think=hm",
}


def _odd(word: str) -> Act:
    async def act(play: Play) -> None:
        talk = play.talk()
        await talk.begin()
        await talk.ends(f"odd [[lab:{word}]]", play.ending)
        await talk.asked(play.ending.next_state)
        await talk.stop()
        await talk.asked("RESTORED")

    act.__doc__ = f"A reply of its own kind ({word.strip()!r}) leaves a whole history, live and resumed."
    return act


add_each({name: _odd(word) for name, word in ODD.items()}, core=("refusal",))


@scenario("tool-call", core=True)
async def tool_call(play: Play) -> None:
    """A tool runs, its result goes to the model, its file is there after a stop, and the texts around it are carried on."""
    talk = play.talk()
    await talk.begin()
    told = await talk.ends(f"use it {play.agent.shell('echo from the tool > made.txt; cat made.txt')}", play.ending)
    check_that(any("from the tool" in text for text in told.tool_results), f"its result: {told.tool_results}")
    await talk.asked("LIVE")
    await talk.stop()
    told = await talk.ends(f"look again {play.agent.shell('cat made.txt')}", play.ending, state="RESTORED")
    check_that(any("from the tool" in text for text in told.tool_results), f"after the stop: {told.tool_results}")
    kinds = [kind for message in talk.rows()[-1]["messages"] for kind, _ in message["blocks"]]
    check((kinds.count("tool_use"), kinds.count("tool_result")), (2, 2), "calls and results in the request")


@scenario("sub-agent")
async def sub_agent(play: Play) -> None:
    """A sub-agent's texts are never output of the root, and never in the root's history as said."""
    talk = play.talk()
    await talk.begin()
    told = await talk.ends("ask somebody [[lab:task [[lab:say SAID-BY-THE-SUB-AGENT]] please]]", play.ending)
    check_that("SAID-BY" not in told.answer and told.answer == "".join(told.replies), f"the answer: {told.answer!r}")
    check_that(
        not any("SAID-BY" in event.text_delta.text for event in told.events if not event.parent_id), "no root text"
    )
    await talk.asked("LIVE")
    await talk.stop()
    await talk.asked("RESTORED")
