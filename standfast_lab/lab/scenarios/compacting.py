"""The CLI compacts by itself because its context is nearly full: a new base, on which the session goes on."""

from __future__ import annotations

from standfast_lab.lab.checks import check, check_that
from standfast_lab.lab.play import LabTalk, Play
from standfast_lab.lab.scenario import scenario
from standfast_lab.lab.talk import CONFIRMED, Told

# Nearly all of a window of a million tokens, and more than a smaller one; and text enough that there is something to compact.
NEARLY_FULL = "[[lab:usage=980000x50 times=1]] [[lab:long=1MiB times=1]]"


@scenario("native-compaction")
async def native_compaction(play: Play) -> None:
    """The provider says that the context is nearly full: the CLI compacts within a turn, and the session goes on live and resumed."""
    talk = play.talk()
    first = await talk.begin()
    await _in_order(talk, "LIVE", f"fill it {NEARLY_FULL}")
    await _in_order(talk, "LIVE", "and now?")
    told = await _in_order(talk, "LIVE", "count")
    check(_history(talk), "COMPACTED", "the history after the compaction", told.turn)
    await talk.stop()
    told = await _in_order(talk, "RESTORED", "count")
    check((told.session, _history(talk)), (first.session, "COMPACTED"), "session and history after a stop", told.turn)


async def _in_order(talk: LabTalk, state: str, message: str) -> Told:
    state = talk.state_due(state)
    told = await talk.turn(message)
    check(told.words, (state, "COMPLETED", CONFIRMED), f"turn {message[:40]!r}", told.turn)
    check_that(_history(talk) in ("COMPLETE", "COMPACTED"), f"nothing is lost: {_history(talk)}", told.turn)
    return told


def _history(talk: LabTalk) -> str:
    """What the newest request says of the history. A compaction's own request is the conversation's, too."""
    return str(talk.play.site.history(talk, talk.first))
