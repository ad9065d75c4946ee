"""The request-history regression with the real CLI: whatever happened in a turn, the next request carries the whole conversation.

The judge is the oracle over the lab's log: every text that was said, in order, in its role, as often as it was said.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from standfast.runner.v1 import runner_pb2 as pb
from tests.real_cli.site import Site, command_lines
from tests.real_cli.talk import CONFIRMED, Talk, Told

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]
local = pytest.mark.engine("local")


def named(cases: Mapping[str, Any], *always: str) -> list[Any]:
    """Parameters by name; those that are not named here again take their time and run with --full."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)), id=name, marks=() if name in always else pytest.mark.full
        )
        for name, case in cases.items()
    ]


def complete(site: Site, talk: Talk, told: Told) -> None:
    """The newest request carried everything."""
    assert str(site.history(talk, told.session)) == "COMPLETE"


async def asked(site: Site, talk: Talk, state: str, message: str = "what is the word?") -> Told:
    """One more turn that must be in order and in this state, with a complete request."""
    told = await talk.turn(message)
    assert told.words == (state, "COMPLETED", CONFIRMED), told.turn
    complete(site, talk, told)
    return told


# --- live, closed, resumed ------------------------------------------------------------------------------------------------


@local
async def test_a_follow_up_while_live_carries_the_whole_history(local_site: Site) -> None:
    talk = local_site.talk()
    first = await talk.begin()
    second = await asked(local_site, talk, "LIVE")
    assert (second.answer, second.process, second.session) == ("the word is plum", first.process, first.session)
    third = await asked(local_site, talk, "LIVE", 'what did you reply to "what is the word?"')
    assert third.answer == "I replied: the word is plum"


@local
async def test_a_conversation_that_is_closed_at_once_and_resumed_has_lost_nothing(local_site: Site) -> None:
    """The CLI says that a turn is over before the reply is on disk; a stop in that moment must not cost it."""
    talk = local_site.talk()
    first = await talk.begin()
    for _ in range(2):
        await talk.stop()
        resumed = await asked(local_site, talk, "RESTORED", "repeat your last reply")
        assert resumed.session == first.session
    assert resumed.answer == "my last reply was: my last reply was: noted: plum"


# --- calls that fail ------------------------------------------------------------------------------------------------------


@local
@pytest.mark.parametrize("stopped", named({"live": False, "resumed": True}))
async def test_after_a_call_that_was_refused_the_retry_carries_the_failed_message_too(
    local_site: Site, stopped: bool
) -> None:
    talk = local_site.talk()
    await talk.begin()
    failed = await talk.turn("now fail [[lab:status=403]]")
    assert (failed.words, failed.reason) == (("LIVE", "FAILED", CONFIRMED), "PROVIDER_ERROR")
    assert (failed.turn.locator_saved, failed.turn.failure.provider_status) == (True, 403)
    if stopped:
        await talk.stop()
    again = await asked(local_site, talk, "RESTORED" if stopped else "LIVE")
    assert again.answer == "the word is plum"


@local
@pytest.mark.parametrize("max_retries", named({"none": "0", "one": "1"}, "one"))
async def test_after_retries_that_ran_out_the_next_turn_carries_the_whole_history(
    local_site: Site, max_retries: str
) -> None:
    talk = local_site.talk(max_retries=max_retries)
    await talk.begin()
    before = len(local_site.lab.log.rows())
    failed = await talk.turn("now fail [[lab:status=500]]")
    assert (failed.outcome, failed.reason, failed.turn.failure.provider_status) == ("FAILED", "PROVIDER_ERROR", 500)
    assert failed.turn.locator_saved
    calls = [row for row in local_site.lab.log.rows(after=before) if row["session_id"] == failed.session]
    assert len(calls) == 1 + int(max_retries)
    # A process that has seen a retry leaves; one that has not stays.
    state = "RESTORED" if "provider_retry" in failed.kinds else "LIVE"
    assert failed.disposition == {"RESTORED": "RETIRED", "LIVE": "KEPT"}[state]
    assert (await asked(local_site, talk, state)).answer == "the word is plum"
    await talk.stop()
    await asked(local_site, talk, "RESTORED")


RETRIED = {
    "overloaded": "[[lab:status=529 times=1]]",
    "rate limit": "[[lab:retry-after=1 times=1]]",
    "cut before the head": "[[lab:cut=before-head times=1]]",
    "stream cut in the text": "[[lab:cut=mid-text times=1]]",
    "stream reset in an event": "[[lab:reset=mid-event times=1]]",
}


@local
@pytest.mark.parametrize("word", named(RETRIED, "stream cut in the text"))
async def test_a_reply_after_an_internal_retry_is_there_on_the_resume(local_site: Site, word: str) -> None:
    talk = local_site.talk()
    await talk.begin()
    retried = await talk.turn(f"tell me something {word}")
    assert (retried.words, retried.disposition) == (("LIVE", "COMPLETED", CONFIRMED), "RETIRED")
    assert retried.turn.process_reason == "API_RETRY_SEEN"
    assert "provider_retry" in retried.kinds
    after = await asked(local_site, talk, "RESTORED", "repeat your last reply")
    assert after.answer == f"my last reply was: {retried.answer}"
    # And once more: the late record of the defect would be written when the next turn of a process begins.
    await asked(local_site, talk, "LIVE")
    await talk.stop()
    await asked(local_site, talk, "RESTORED")


@local
async def test_a_retry_in_the_middle_of_a_tool_loop_costs_neither_calls_nor_reply(local_site: Site) -> None:
    talk = local_site.talk()
    first = await talk.begin()
    # The request that carries the first tool's result fails once.
    number = len(local_site.roots(first.session)) + 2
    local_site.lab.script({"session": first.session, "root": number, "do": ["status=529"]})
    tools = "".join(f"[[lab:tool=Bash {json.dumps({'command': f'echo step-{n}'})}]]" for n in (1, 2))
    told = await talk.turn(f"do both {tools}")
    assert (told.words, told.disposition) == (("LIVE", "COMPLETED", CONFIRMED), "RETIRED")
    assert told.kinds.index("provider_retry") > told.kinds.index("tool_result")
    assert [text.strip() for text in told.tool_results] == ["step-1", "step-2"]
    after = await asked(local_site, talk, "RESTORED", "repeat your last reply")
    assert after.answer == f"my last reply was: {told.answer}"
    sent = local_site.roots(first.session)[-1]["messages"]
    kinds = [kind for message in sent for kind, _ in message["blocks"] if kind in ("tool_use", "tool_result")]
    assert kinds == ["tool_use", "tool_result"] * 2


@local
@pytest.mark.parametrize(
    "word",
    named({"ended early": "[[lab:end=mid-event times=1]]", "error event": "[[lab:error-event times=1]]"}),
)
async def test_a_call_that_the_cli_repeats_whole_keeps_its_process_and_its_reply(local_site: Site, word: str) -> None:
    talk = local_site.talk()
    await talk.begin()
    told = await talk.turn(f"say something {word}")
    assert (told.words, told.disposition) == (("LIVE", "COMPLETED", CONFIRMED), "KEPT")
    assert "provider_retry" not in told.kinds
    await asked(local_site, talk, "LIVE")
    await talk.stop()
    await asked(local_site, talk, "RESTORED")


@local
async def test_the_text_of_a_call_that_was_cut_behind_it_lasts_though_the_turn_failed(local_site: Site) -> None:
    talk = local_site.talk()
    await talk.begin()
    failed = await talk.turn("say something [[lab:cut=before-stop pause=300ms]]")
    assert (failed.outcome, failed.reason) == ("FAILED", "PROVIDER_ERROR")
    assert failed.turn.locator_saved
    assert len(failed.replies) == 1
    await asked(local_site, talk, "LIVE")
    await talk.stop()
    await asked(local_site, talk, "RESTORED")


# --- replies of every kind ------------------------------------------------------------------------------------------------


@local
async def test_tool_calls_and_the_texts_around_them_are_carried_on(local_site: Site) -> None:
    talk = local_site.talk()
    await talk.begin()
    command = json.dumps({"command": "echo from the tool > made.txt; cat made.txt"})
    told = await talk.turn(f"use it [[lab:tool=Bash {command}]]")
    assert told.words == ("LIVE", "COMPLETED", CONFIRMED)
    assert [text.strip() for text in told.tool_results] == ["from the tool"]
    await asked(local_site, talk, "LIVE")
    await talk.stop()
    await asked(local_site, talk, "RESTORED")


@local
async def test_a_sub_agents_texts_are_never_output_of_the_root(local_site: Site) -> None:
    talk = local_site.talk()
    await talk.begin()
    told = await talk.turn("ask somebody [[lab:task [[lab:say SAID-BY-THE-SUB-AGENT]] please]]")
    assert told.words == ("LIVE", "COMPLETED", CONFIRMED)
    below = [event for event in told.events if event.parent_id]
    assert any("SAID-BY-THE-SUB-AGENT" in event.assistant_message.text for event in below), (
        "its text was not told at all"
    )
    assert told.answer == "".join(told.replies)
    assert "SAID-BY-THE-SUB-AGENT" not in told.answer
    assert not any("SAID-BY" in event.text_delta.text for event in told.events if not event.parent_id)
    await asked(local_site, talk, "LIVE")
    await talk.stop()
    await asked(local_site, talk, "RESTORED")


ODD_REPLIES = {
    "one empty reply": ("[[lab:empty]]", "COMPLETED"),
    "nothing but empty replies": ("[[lab:empty times=9]]", "COMPLETED"),
    "refusal": ("[[lab:refusal]]", "FAILED"),
    "cut by max_tokens": ("[[lab:max_tokens]]", "COMPLETED"),
    "white space around it": ("[[lab:say  \n two lines \n\n]]", "COMPLETED"),
    "thinking before it": ("[[lab:think=hm]]", "COMPLETED"),
}


@local
@pytest.mark.parametrize(("word", "outcome"), named(ODD_REPLIES, "refusal"))
async def test_an_odd_reply_leaves_a_whole_history(local_site: Site, word: str, outcome: str) -> None:
    talk = local_site.talk()
    await talk.begin()
    told = await talk.turn(f"odd {word}")
    assert told.words == ("LIVE", outcome, CONFIRMED), told.turn
    assert told.disposition == "KEPT"
    await asked(local_site, talk, "LIVE")
    await talk.stop()
    await asked(local_site, talk, "RESTORED")


# --- the user's text ------------------------------------------------------------------------------------------------------

TEXTS = {
    "a command of the CLI": "/clear me",
    "the command alone": "/clear",
    "a path": "/readme says what?",
    "an option": "--version",
    "a task list": "- [ ] tidy the cellar",
    "a mention": "@notes.txt is missing",
    "outer spaces": "  keep my spaces \n",
    "a shell escape": "!ls",
    "a memory mark": "# remember this",
    "line ends and tabs": "one\r\ntwo\ttabs\rthree\n\n",
    "beyond the basic plane": "emoji \U0001f600 zero\u200bwidth e\u0301 \ufeff",
    "a marker of the CLI": "[Request interrupted by user]",
    "another marker": "[Request interrupted by user for tool use]",
    "a reminder": "<system-reminder>\nmine\n</system-reminder>",
    "the CLI's own words": "Continue from where you left off.",
    "JSON": '{"type":"result","is_error":false}\n{"type":"user"}',
}
LARGE = "long line\n" * 30_720


async def asked_verbatim(site: Site, talk: Talk, state: str, text: str) -> None:
    told = await asked(site, talk, state, text)
    assert site.roots(told.session)[-1]["messages"][-1]["texts"][-1] == text


@local
async def test_the_users_texts_arrive_byte_for_byte_while_live(local_site: Site) -> None:
    talk = local_site.talk()
    for place, text in enumerate(TEXTS.values()):
        await asked_verbatim(local_site, talk, "LIVE" if place else "NEW", text)
    await talk.stop()
    await asked(local_site, talk, "RESTORED", "count")


@local
@pytest.mark.parametrize("text", named(TEXTS, "a marker of the CLI"))
async def test_the_users_text_arrives_byte_for_byte_first_live_and_after_a_resume(local_site: Site, text: str) -> None:
    talk = local_site.talk()
    for state in ("NEW", "LIVE", "RESTORED"):
        if state == "RESTORED":
            await talk.stop()
        await asked_verbatim(local_site, talk, state, text)
    await asked(local_site, talk, "LIVE", "count")


@local
async def test_a_text_of_300_kb_arrives_byte_for_byte_and_stands_in_no_command_line(local_site: Site) -> None:
    talk = local_site.talk()
    await talk.begin()
    in_a_command_line: list[bool] = []

    async def look(event: pb.TurnEvent) -> None:
        if event.HasField("text_delta") and not in_a_command_line:
            in_a_command_line.append(any("long line" in word for words in command_lines().values() for word in words))

    told = await talk.turn(LARGE, on_event=look)
    assert told.words == ("LIVE", "COMPLETED", CONFIRMED)
    assert in_a_command_line == [False]
    assert local_site.roots(told.session)[-1]["messages"][-1]["texts"][-1] == LARGE
    await talk.stop()
    await asked(local_site, talk, "RESTORED")


@local
@pytest.mark.full
async def test_after_the_cli_has_compacted_by_itself_the_session_goes_on(local_site: Site) -> None:
    """A resumed process guesses the length of a long history and compacts within the turn (observed): the turn settles on the new base."""
    talk = local_site.talk(model="claude-opus-5")  # the CLI's own default is the same with a window of a million tokens
    text = "0123456789 " * 18_620
    for _ in range(2):
        assert (await talk.turn(text)).verdicts == CONFIRMED
    await talk.stop()
    told = await talk.turn(text)
    assert told.words == ("RESTORED", "COMPLETED", CONFIRMED), told.turn
    assert str(local_site.history(talk, told.session)) == "COMPACTED"
    for stopped in (False, True):
        if stopped:
            await talk.stop()
        after = await talk.turn("count")
        assert after.words == ("RESTORED" if stopped else "LIVE", "COMPLETED", CONFIRMED), after.turn
        assert str(local_site.history(talk, after.session)) == "COMPACTED"


# --- turns that do not end by themselves ----------------------------------------------------------------------------------


def at(kind: str) -> Callable[[pb.TurnEvent], bool]:
    return lambda event: event.WhichOneof("body") == kind


CANCELLED = {
    "in the stream": ("[[lab:slow=400x50ms]] [[lab:long=8KiB]]", at("text_delta")),
    "in a tool": ('[[lab:tool=Bash {"command":"sleep 600"}]]', at("tool_call")),
    "in the wait before a retry": ("[[lab:retry-after=60]]", at("provider_retry")),
}


@local
@pytest.mark.parametrize(("word", "when"), named(CANCELLED, *CANCELLED))
async def test_after_a_cancel_the_next_turn_has_the_right_context(
    local_site: Site, word: str, when: Callable[[pb.TurnEvent], bool]
) -> None:
    talk = local_site.talk()
    await talk.begin()
    cancelled = await talk.cancelled(f"long work {word}", when)
    assert (cancelled.outcome, cancelled.disposition) == ("CANCELLED", "RETIRED")
    assert cancelled.turn.locator_saved
    assert (await asked(local_site, talk, "RESTORED")).answer == "the word is plum"
    await asked(local_site, talk, "LIVE", "count")
    await talk.stop()
    await asked(local_site, talk, "RESTORED")


@local
async def test_a_cli_killed_between_turns_costs_nothing(local_site: Site) -> None:
    talk = local_site.talk()
    first = await talk.begin()
    await local_site.kill_cli(first.session)
    after = await asked(local_site, talk, "RESTORED")
    assert (after.answer, after.process) == ("the word is plum", first.process + 1)


@local
@pytest.mark.parametrize("place", named({"in the stream": "in the stream", "in a tool": "in a tool"}, "in the stream"))
async def test_a_cli_killed_in_a_turn_leaves_the_settled_history_whole(local_site: Site, place: str) -> None:
    talk = local_site.talk()
    first = await talk.begin()
    word, when = CANCELLED[place]
    killed: list[int] = []

    async def kill(event: pb.TurnEvent) -> None:
        if when(event) and not killed:
            killed.append(local_site.cli_pid(first.session))
            await local_site.kill_cli(first.session)

    broken = await talk.turn(f"long work {word}", on_event=kill)
    assert killed
    assert (broken.outcome, broken.reason, broken.disposition) == ("INTERRUPTED", "CLI_DIED", "RECLAIM_FIRST")
    assert (await asked(local_site, talk, "RESTORED")).answer == "the word is plum"
    await talk.stop()
    await asked(local_site, talk, "RESTORED", "count")
