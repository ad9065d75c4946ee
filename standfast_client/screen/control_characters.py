"""Text of a model or a tool is not allowed to steer the terminal: control characters are shown, not sent."""

from __future__ import annotations

import re

# C0 but tab and line feed, DEL, and C1; and what turns the direction of text round.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def shown(text: str) -> str:
    """`text` with every steering character as a visible one. A CR LF stays a line end."""
    return _STEERING.sub(_visible, text.replace("\r\n", "\n"))


def _visible(match: re.Match[str]) -> str:
    number = ord(match.group())
    if number < 0x20:
        return chr(0x2400 + number)
    return "\u2421" if number == 0x7F else f"\\u{number:04x}"
