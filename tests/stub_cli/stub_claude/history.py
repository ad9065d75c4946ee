"""What the model is sent: from the transcript's chain after a resume, from memory while the process lives.

The walk goes from the last user or assistant record along `parentUuid`, so a late `api_error` record takes the reply beside it out
of the history, as it does in the real program (facts of 2.1.220). Neighbouring user texts become one message, the earlier one with a
line feed. A user text that never had a reply gets `No response requested.`
"""

from __future__ import annotations

from typing import Any

from .transcript import Record

Message = dict[str, Any]

NO_RESPONSE = "No response requested."
INTERRUPTED = "[Request interrupted by user]"
INTERRUPTED_TOOL = "[Request interrupted by user for tool use]"
SYNTHETIC = "<synthetic>"

_REMINDERS = (
    "<system-reminder>\nThe following skills are available: stub.\n</system-reminder>",
    "<system-reminder>\nAnswer the user's message. This context may or may not be relevant.\n</system-reminder>",
)


def leaf_of(records: list[Record]) -> str | None:
    """The uuid of the last record that a conversation can go on from."""
    return next(
        (
            str(record["uuid"])
            for record in reversed(records)
            if record.get("uuid") and record.get("type") in ("user", "assistant") and not record.get("isSidechain")
        ),
        None,
    )


def messages_of(records: list[Record]) -> list[Message]:
    """The messages of the leaf's chain, oldest first, as the API takes them."""
    by_uuid = {record["uuid"]: record for record in records if record.get("uuid")}
    chain: list[Record] = []
    seen: set[str] = set()
    at = leaf_of(records)
    while at is not None and at in by_uuid and at not in seen:
        seen.add(at)
        chain.append(by_uuid[at])
        at = by_uuid[at].get("parentUuid")
    chain.reverse()
    messages = [
        {"role": record["type"], "content": list(_blocks(record["message"].get("content")))}
        for record in chain
        if record.get("type") in ("user", "assistant") and record.get("message", {}).get("model") != SYNTHETIC
    ]
    last = chain[-1] if chain else None
    if last is not None and last.get("type") == "user" and not _is_marker(last):
        messages.append({"role": "assistant", "content": [{"type": "text", "text": NO_RESPONSE}]})
    return messages


def request_messages(history: list[Message]) -> list[Message]:
    """The history as one request carries it: roles alternate, reminders stand before the first user text."""
    merged: list[Message] = []
    for message in history:
        blocks = [dict(block) for block in message["content"] if block.get("text") != ""]
        if merged and merged[-1]["role"] == message["role"]:
            before = merged[-1]["content"]
            if message["role"] == "user" and before and before[-1].get("type") == "text":
                before[-1]["text"] += "\n"
            before.extend(blocks)
        else:
            merged.append({"role": message["role"], "content": blocks})
    if merged and merged[0]["role"] == "user":
        merged[0]["content"][:0] = [{"type": "text", "text": text} for text in _REMINDERS]
    return merged


def _blocks(content: object) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _is_marker(record: Record) -> bool:
    return any(block.get("text") in (INTERRUPTED, INTERRUPTED_TOOL) for block in _blocks(record["message"]["content"]))
