"""Recognises one refusal: the server demands reasoning of an earlier turn back.

A 400 whose text names the field and says that it has to be passed back. Gateways word the demand differently, so the
verb may be "pass" or "send" and the obligation "must be" or "has to be"; the field's name is never optional. Any other
400, a bare one above all, is not guessed to be this.
"""

from __future__ import annotations

import re

_FIELDS = ("content[].thinking", "reasoning_content", "reasoning_text")
_DEMAND = re.compile(r"(?:must|ha(?:s|ve) to|needs? to) be (?:passed|sent) back")


def is_replay_refusal(status: int, text: str) -> bool:
    """`text` is at most the first 4 KiB of the body; letter case does not matter."""
    if status != 400:
        return False
    low = text.lower()
    return any(field in low for field in _FIELDS) and _DEMAND.search(low) is not None
