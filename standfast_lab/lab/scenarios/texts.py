"""What the user types arrives byte for byte and once: as the first message, while live, and after a resume."""

from __future__ import annotations

from standfast_client.errors import ClientError
from standfast_lab.lab.checks import check, check_that
from standfast_lab.lab.play import Play
from standfast_lab.lab.scenario import Act, add_each, scenario

TEXTS = {
    "text-slash-command": "/clear",
    "text-slash-words": "/compact me, please",
    "text-bang": "!ls -la",
    "text-at": "@notes.txt is missing",
    "text-dollar": "$HOME and $skill are words",
    "text-hash": "# remember this",
    "text-option": "--version",
    "text-outer-spaces": "  keep my spaces \n",
    "text-line-ends": "one\r\ntwo\ttabs\rthree\n\n",
    "text-unicode": "emoji \U0001f600 zero\u200bwidth e\u0301 \ufeff line\u2028sep",
    "text-tags": "<system-reminder>\nmine\n</system-reminder>",
    "text-json": '{"type":"result","is_error":false}\n{"type":"user"}',
    "text-200-kb": "a long line of words 0123456789 and so on\n" * 4_876,
}


def _verbatim(text: str) -> Act:
    async def act(play: Play) -> None:
        talk = play.talk()
        for state in ("NEW", "LIVE", "RESTORED"):
            if state == "RESTORED":
                await talk.stop()
            await talk.asked(state, text)
            texts = [one for message in talk.rows()[-1]["messages"] for one in message["texts"]]
            check_that(text in texts[-1:], f"the newest text of the request is what was typed: {texts[-1:]!r:.200}")
        await talk.asked("LIVE", "count", "count: 4")

    act.__doc__ = f"The text {text[:30]!r} arrives byte for byte as the first message, live, and after a resume."
    return act


add_each({name: _verbatim(text) for name, text in TEXTS.items()}, core=("text-slash-command",))


@scenario("text-nul")
async def text_nul(play: Play) -> None:
    """A message with NUL is refused before anything is sent, or arrives byte for byte."""
    talk = play.talk()
    await talk.begin()
    before = len(talk.rows())
    try:
        told = await talk.turn("a\x00b")
    except ClientError as error:
        check(len(talk.rows()), before, f"requests of a message that was refused ({error.reason})")
    else:
        check(told.outcome, "COMPLETED", "the turn with NUL", told.turn)
        talk.complete(told)
    await talk.asked("LIVE")
