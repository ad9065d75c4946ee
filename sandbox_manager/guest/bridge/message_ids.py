"""Native message ids that sort by time, made from our own.

A native id is `msg_`, 12 hexadecimal digits of the low 48 bits of `(milliseconds << 12) | counter`, and 14 characters of base 62. The
server compares ids to find out what is answered already, so one must lie after everything in the session and not in the future (an id
from another clock makes the server skip the prompt, or ask the model again and again; one that does not sort makes Kilo leave out the
earlier history, observed). So the time is this machine's, the server's own; the 14 characters are our message's id, by which everyone
who reads the server's traffic or its store knows the message.
"""

import re

OWN_ID = re.compile(r"[0-9A-Za-z]{14}")
NATIVE_ID = re.compile(r"msg_[0-9a-f]{12}[0-9A-Za-z]{14}")
_PREFIX = "msg_"
_TIME_DIGITS = 12
_MASK = (1 << 48) - 1


def native_id(own_id: str, now_ms: int, newest: str | None) -> str:
    """The native id of our message. `newest`: the greatest native id known in the session; ours is made to lie after it."""
    time = (now_ms << 12) & _MASK
    if newest is not None and NATIVE_ID.fullmatch(newest):
        time = max(time, (time_of(newest) + 1) & _MASK)
    return f"{_PREFIX}{time:0{_TIME_DIGITS}x}{own_id}"


def time_of(native: str) -> int:
    """The 48 bits of time and counter of a native id."""
    return int(native[len(_PREFIX) : len(_PREFIX) + _TIME_DIGITS], 16)


def own_id_of(native: str) -> str | None:
    """The last 14 characters of a native id; None for anything else."""
    return native[-14:] if NATIVE_ID.fullmatch(native) else None


def newer(one: str | None, other: str | None) -> str | None:
    """The one that lies later; what is no native id does not count."""
    known = [native for native in (one, other) if native is not None and NATIVE_ID.fullmatch(native)]
    return max(known, default=None)
