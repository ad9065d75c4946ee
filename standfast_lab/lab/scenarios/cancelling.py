"""A turn is cancelled in each place where it can be; the next one has the right context."""

from __future__ import annotations

from collections.abc import Callable

from standfast.runner.v1 import runner_pb2 as pb
from standfast_lab.lab.checks import check
from standfast_lab.lab.play import Play, at
from standfast_lab.lab.scenario import scenario

SLEEP_S = "600"
STREAM = "[[lab:slow=400x50ms]] [[lab:long=8KiB]]"


async def _cancelled(play: Play, word: str, when: Callable[[pb.TurnEvent], bool]) -> None:
    talk = play.talk()
    first = await talk.begin()
    cancelled = await talk.cancelled(f"long work {word}", when)
    check(cancelled.outcome, "CANCELLED", "the outcome", cancelled.turn)
    check(cancelled.turn.locator_saved, True, "the locator is saved", cancelled.turn)
    # Now, not after the next turn: its start would clear away what the cancel had left.
    check(play.site.others_in_sandbox(first, SLEEP_S), [], "processes of the tool that are left")
    after = await talk.asked(play.agent.after_cancel)
    check(after.session, first.session, "the native session")
    await talk.asked("LIVE", "again, please")
    await talk.stop()
    await talk.asked("RESTORED")


@scenario("cancel-while-streaming", core=True)
async def cancel_while_streaming(play: Play) -> None:
    """A cancel in the middle of a reply."""
    await _cancelled(play, STREAM, at("text_delta"))


@scenario("cancel-in-a-tool", core=True)
async def cancel_in_a_tool(play: Play) -> None:
    """A cancel while a tool runs: its process is gone, too."""
    await _cancelled(play, play.agent.shell(f"sleep {SLEEP_S}"), at("tool_call"))


@scenario("cancel-in-a-retry-wait")
async def cancel_in_a_retry_wait(play: Play) -> None:
    """A cancel while the CLI waits to repeat a call."""
    await _cancelled(play, "[[lab:retry-after=60]]", at("provider_retry"))
