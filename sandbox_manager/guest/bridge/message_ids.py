"""Native message ids that sort by time, made from our own.

A native id is `msg_`, 12 hexadecimal digits of the low 48 bits of `(milliseconds << 12) | counter`, and 14 characters of base 62. The
server compares ids to find out what is answered already, so one must lie after everything in the session and not in the future (an id
from another clock makes the server skip the prompt, or ask the model again and again; one that does not sort makes Kilo leave out the
earlier history, observed). So the time is this machine's, the server's own. The 14 characters are made from our message's id, so that a
message can be looked up by it.
"""

import hashlib
import re
import string

NATIVE_ID = re.compile(r"msg_[0-9a-f]{12}[0-9A-Za-z]{14}")
_PREFIX = "msg_"
_TIME_DIGITS = 12
_SUFFIX_LENGTH = 14
_BASE_62 = string.digits + string.ascii_uppercase + string.ascii_lowercase
_MASK = (1 << 48) - 1


def native_id(own_id: str, now_ms: int, newest: str | None) -> str:
    """The native id of our message. `newest`: the greatest native id known in the session; ours is made to lie after it."""
    time = (now_ms << 12) & _MASK
    if newest is not None and NATIVE_ID.fullmatch(newest):
        time = max(time, (time_of(newest) + 1) & _MASK)
    return f"{_PREFIX}{time:0{_TIME_DIGITS}x}{suffix_of(own_id)}"


def suffix_of(own_id: str) -> str:
    """The 14 characters that stand for our message's id."""
    number = int.from_bytes(hashlib.sha256(own_id.encode("utf-8")).digest(), "big")
    characters = []
    for _ in range(_SUFFIX_LENGTH):
        number, at = divmod(number, len(_BASE_62))
        characters.append(_BASE_62[at])
    return "".join(characters)


def time_of(native: str) -> int:
    """The 48 bits of time and counter of a native id."""
    return int(native[len(_PREFIX) : len(_PREFIX) + _TIME_DIGITS], 16)


def newer(one: str | None, other: str | None) -> str | None:
    """The one that lies later; what is no native id does not count."""
    known = [native for native in (one, other) if native is not None and NATIVE_ID.fullmatch(native)]
    return max(known, default=None)
