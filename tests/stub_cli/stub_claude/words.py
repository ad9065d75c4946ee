"""Words for the stub in a user text: `[[stub:WORD]]`. They go to the model as they are, like all of the text.

    sleep=SECONDS [at=POINT]      waits there
    exit=CODE [at=POINT]          leaves without another byte and without writing what the transcript still lacks
    kill [at=POINT]               ends itself by SIGKILL
    noise[=TEXT] [at=POINT]       prints a line that is no JSON
    long-line=8MiB [at=POINT]     prints one event of that size
    spawn=COMMAND [at=POINT]      starts a command that nobody waits for (`setsid sleep 600`)
    background                    leaves a background task pending at the end of the turn
    no-init                       prints no system/init in this turn
    no-lifecycle                  prints no command_lifecycle in this turn
    no-completed                  leaves out the last one only
    deaf                          answers an interrupt and goes on all the same
    late-transcript=SECONDS       writes the transcript that much later
    no-transcript                 writes nothing of this turn, ever

POINTS, in their order: started, init, requested, mid-stream, reply, result, completed.
`at` is `started` unless it says otherwise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

POINTS = ("started", "init", "requested", "mid-stream", "reply", "result", "completed")
_WORD = re.compile(r"\[\[stub:(?P<body>[^\[\]]*)\]\]")
_AT = re.compile(r" at=(?P<point>\S+)$")
_UNITS = {"B": 1, "KiB": 1024, "MiB": 1024 * 1024}
_KNOWN = frozenset(
    "sleep exit kill noise long-line spawn background no-init no-lifecycle no-completed deaf late-transcript "
    "no-transcript".split()
)


@dataclass(frozen=True)
class Word:
    """One word and where it works."""

    name: str
    value: str
    point: str


def read_words(text: str) -> list[Word]:
    """The words in a text, in order. An unknown word or point is a ValueError: a test that misspells one is to fail."""
    words = []
    for match in _WORD.finditer(text):
        body, point = match["body"], "started"
        if at := _AT.search(body):
            body, point = body[: at.start()], at["point"]
        name, _, value = body.partition("=")
        if name not in _KNOWN or point not in POINTS:
            raise ValueError(f"stub word {match[0]!r}: unknown word or point")
        words.append(Word(name, value, point))
    return words


def size_of(value: str) -> int:
    """Bytes of `8MiB`, `64KiB`, `10B`."""
    number, unit = re.fullmatch(r"(\d+)(B|KiB|MiB)", value).groups()  # type: ignore[union-attr]  # a bad size is to fail
    return int(number) * _UNITS[unit]
