"""Reads the texts of one log row as the oracle compares them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Seen:
    """One text of a request. `variants` are the texts that it may stand for; `at` is (message, block)."""

    role: str
    variants: tuple[str, ...]
    at: tuple[int, int]

    @property
    def text(self) -> str:
        """The text as it was sent."""
        return self.variants[0]


def seen_texts(messages: list[Mapping[str, Any]], wanted: Collection[str], joins_user_texts: bool) -> list[Seen]:
    """Returns the texts in order.

    A block that looks like a reminder is one of the CLI's own, unless it is exactly a text that somebody said.
    A CLI that joins two user messages (Claude) appends a line feed to the earlier block, so a block with a text after
    it in the same message may stand for its text without that line feed.
    """
    digests = {_digest(text): text for text in wanted}
    found = []
    for number, message in enumerate(messages):
        last = max((i for i, (kind, _) in enumerate(message["blocks"]) if kind in ("text", "reminder")), default=-1)
        for place, (kind, index) in enumerate(message["blocks"]):
            if kind == "text":
                text = message["texts"][index]
            elif kind == "reminder" and message["reminders"][index]["sha256"] in digests:
                text = digests[message["reminders"][index]["sha256"]]
            else:
                continue
            is_joined = joins_user_texts and message["role"] == "user" and place < last and text.endswith("\n")
            variants = (text, text[:-1]) if is_joined else (text,)
            found.append(Seen(message["role"], variants, (number, place)))
    return found


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
