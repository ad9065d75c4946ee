"""Parses the rendered session of an OpenCode or Kilo database from a record boundary on. Says what is there; judges nothing; never raises.

The supervisor renders one line for the session and one for each lasting message, in order. Each message names the one before it, so the
chain is the order itself: a message that is gone or put in between breaks it.

    BOOKKEEPING  the session's line (its id, directory and parent: a change of it changes the old part's digest)
    USER         a user's message with texts only
    ASSISTANT    an assistant message with a text
    TOOL         an assistant message without one: tool calls, reasoning
    NEW_BASE     what a compaction writes: its own user message, and the summary
    FOREIGN      anything else, also a user's text that the server made up (`synthetic`): no prompt of ours
"""

from __future__ import annotations

import json
from typing import Any

from sandbox_manager.agents.bridged.messages import text_digest
from sandbox_manager.core.values import RecordKind, StoreRecordLine, StoreSegment

_LASTING = frozenset({RecordKind.USER, RecordKind.ASSISTANT, RecordKind.TOOL, RecordKind.NEW_BASE})


def read_segment(data: bytes, *, from_start: bool) -> StoreSegment:
    """Parses `data`. `from_start` says that nothing lies before it, so a message that is not in it is nowhere."""
    lines = data.split(b"\n")
    records: list[StoreRecordLine] = []
    bad_lines: list[int] = []
    for number, line in enumerate(lines[:-1], start=1):
        record = _record(number, line)
        if record is None:
            bad_lines.append(number)
        else:
            records.append(record)
    by_id = {one.uuid: one for one in records if one.uuid is not None}
    leaf = next((one.uuid for one in reversed(records) if one.uuid is not None), None)
    chain: dict[str, None] = {}
    at = leaf
    while at is not None and at in by_id and at not in chain:
        chain[at] = None
        at = by_id[at].parent
    return StoreSegment(
        records=tuple(records),
        bad_lines=tuple(bad_lines),
        torn_tail=lines[-1] != b"",
        leaf=leaf,
        chain=tuple(chain),
        chain_exit=None if from_start else at,
        dangling=at if from_start else None,
        hanging=(leaf,) if leaf is not None else (),
    )


def _record(number: int, line: bytes) -> StoreRecordLine | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    if value.get("kind") == "session":
        return StoreRecordLine(number, RecordKind.BOOKKEEPING, None, None, (), _text(value.get("id")))
    parts = value.get("parts")
    if value.get("kind") != "message" or not isinstance(value.get("id"), str) or not isinstance(parts, list):
        return StoreRecordLine(number, RecordKind.FOREIGN, _text(value.get("id")), None, (), None)
    kind, texts = _kind(value, [part for part in parts if isinstance(part, dict)])
    return StoreRecordLine(
        line=number,
        kind=kind,
        uuid=value["id"],
        parent=_text(value.get("prev")),
        text_digests=tuple(text_digest(text) for text in texts),
        session_id=_text(value.get("session")),
    )


def _kind(value: dict[str, Any], parts: list[dict[str, Any]]) -> tuple[RecordKind, list[str]]:
    """The kind, and the texts that count."""
    types = {part.get("type") for part in parts}
    texts = [
        part["text"]
        for part in parts
        if part.get("type") == "text"
        and isinstance(part.get("text"), str)
        and part["text"]
        and part.get("synthetic") is not True
        and part.get("ignored") is not True
    ]
    match value.get("role"):
        case "user" if "compaction" in types:
            return RecordKind.NEW_BASE, texts
        case "user" if types == {"text"} and len(texts) == len(parts):
            return RecordKind.USER, texts
        case "assistant" if value.get("is_summary") is True:
            return RecordKind.NEW_BASE, texts
        case "assistant":
            return (RecordKind.ASSISTANT if texts else RecordKind.TOOL), texts
        case _:
            return RecordKind.FOREIGN, texts


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
