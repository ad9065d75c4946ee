"""The provider refuses, overloads, runs out: how the turn ends, and that the next one knows everything."""

from __future__ import annotations

from standfast_lab.lab.checks import check, check_that
from standfast_lab.lab.play import Play
from standfast_lab.lab.scenario import scenario


@scenario("call-refused")
async def call_refused(play: Play) -> None:
    """A call is refused (403): the turn fails and is settled, the next turn carries its message too."""
    talk = play.talk()
    await talk.begin()
    failed = await talk.ends("now fail [[lab:status=403]]", play.ending)
    talk.check_status(failed, 403)
    await talk.asked(play.ending.next_state)


@scenario("call-refused-then-resume", core=True)
async def call_refused_then_resume(play: Play) -> None:
    """A failed turn is settled and its session is kept: after a stop it is resumed."""
    talk = play.talk()
    first = await talk.begin()
    await talk.ends("now fail [[lab:status=400]]", play.ending)
    await talk.stop()
    after = await talk.asked("RESTORED")
    check(after.session, first.session, "the native session")


@scenario("first-call-refused")
async def first_call_refused(play: Play) -> None:
    """The very first call fails: the session is kept all the same."""
    talk = play.talk()
    failed = await talk.ends(f"{talk.first} [[lab:status=403]]", play.ending, state="NEW")
    after = await talk.asked(play.ending.next_state, "count", "count: 2")
    check(after.session, failed.session, "the native session")
    await talk.stop()
    await talk.asked("RESTORED", "count", "count: 3")


@scenario("internal-retry", core=True)
async def internal_retry(play: Play) -> None:
    """The CLI repeats a call that was overloaded (529): the reply that came after it is there on the resume."""
    talk = play.talk()
    await talk.begin()
    retried = await talk.ends("tell me something [[lab:status=529 times=1]]", play.ending)
    await talk.asked(play.ending.next_state, "repeat your last reply", f"my last reply was: {retried.answer}")
    await talk.asked("LIVE")
    await talk.stop()
    await talk.asked("RESTORED")


@scenario("rate-limit")
async def rate_limit(play: Play) -> None:
    """429 with Retry-After once: the turn comes to its reply, and the resume has it."""
    talk = play.talk()
    await talk.begin()
    retried = await talk.ends("tell me something [[lab:retry-after=1 times=1]]", play.ending)
    await talk.stop()
    await talk.asked("RESTORED", "repeat your last reply", f"my last reply was: {retried.answer}")


@scenario("retries-exhausted")
async def retries_exhausted(play: Play) -> None:
    """The provider fails for good (500) until the CLI's own retries have run out: FAILED, settled, and the next turn goes on."""
    talk = play.talk(**play.agent.few_retries)
    await talk.begin()
    await talk.ends("now fail [[lab:status=500]]", play.ending)
    await talk.asked(play.ending.next_state)
    await talk.stop()
    await talk.asked("RESTORED")


@scenario("quota", core=True)
async def quota(play: Play) -> None:
    """The quota is used up (429 without an end): FAILED with that status; when there is quota again the next turn goes on."""
    talk = play.talk(**play.agent.few_retries)
    await talk.begin()
    failed = await talk.ends("now fail [[lab:status=429 type=insufficient_quota]]", play.ending)
    talk.check_status(failed, 429)
    await talk.asked(play.ending.next_state)
    await talk.stop()
    await talk.asked("RESTORED")


@scenario("retry-in-a-tool-loop")
async def retry_in_a_tool_loop(play: Play) -> None:
    """The request that carries a tool's result fails once: neither calls nor reply are lost."""
    talk = play.talk()
    await talk.begin()
    words = [play.agent.shell(f"echo step-{n}") for n in (1, 2)]
    asked = f"do both, {talk.word} {''.join(words)}"
    # The first request gets its first call, the second one, which carries the result, fails once.
    calls = [word.removeprefix("[[lab:").removesuffix("]]") for word in words]
    play.site.lab.script({"text": asked, "do": calls}, {"text": asked, "do": ["status=529"]})
    told = await talk.ends(asked, play.ending)
    found = [text for text in told.tool_results if "step-" in text]
    check_that(len(found) == 2 and "step-1" in found[0] and "step-2" in found[1], f"both tools ran once: {found}")
    await talk.asked(play.ending.next_state, "repeat your last reply", f"my last reply was: {told.answer}")
