"""What is the same in Pi's printed events and in its session file: a message, and its texts. Pure.

Pi prints a message without the id of its record. Role, time and content together tell one message from another, in both places alike
(observed: the record holds the very message that `message_end` prints).
"""

from __future__ import annotations

import hashlib
import json


def text_digest(text: str) -> str:
    """sha256 of a text's UTF-8 bytes. Half surrogate pairs, which JSON can carry, keep their own bytes."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def texts_of(content: object) -> list[str]:
    """The texts of a content: a plain text is one; else those of its text blocks, in order."""
    if isinstance(content, str):
        return [content] if content else []
    if not isinstance(content, list):
        return []
    return [
        text
        for block in content
        if isinstance(block, dict) and block.get("type") == "text" and isinstance(text := block.get("text"), str)
    ]


def message_key(message: dict[str, object]) -> str:
    """A name of the message that its event and its record have in common."""
    content = json.dumps(message.get("content"), sort_keys=True, ensure_ascii=True)
    return f"{message.get('role')}@{message.get('timestamp')}#{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def compaction_key(summary: object) -> str:
    """The same for a compaction, by its summary."""
    return f"compaction#{text_digest(summary if isinstance(summary, str) else '')[:16]}"
