"""Parses the built-in agent's session file from a record boundary on. Says what is there; judges nothing; never raises.

    USER         a message of the person
    ASSISTANT    an accepted answer with a text that is not blank
    TOOL         answers without text, results, host messages, and the kinds that belong to a turn: started, intent, repair, end
    BOOKKEEPING  the header
    NEW_BASE     compaction
    FOREIGN      anything else, also records of another version

Each record names the one before it, so the chain is the file itself, read backwards. Half a line at the end is harmless here: nobody was
told of it, and the agent sets it aside when it opens the session, before it writes anything. So it is not reported as a torn end.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sandbox_manager.agents.direct.bookkeeping import COMPACTION, HEADER, MESSAGE, OF_A_TURN, VERSION
from sandbox_manager.agents.direct.tap_reader import text_digest
from sandbox_manager.core.values import RecordKind, StoreRecordLine, StoreSegment

_LASTING = frozenset({RecordKind.USER, RecordKind.ASSISTANT, RecordKind.TOOL, RecordKind.NEW_BASE})


@dataclass(frozen=True, slots=True)
class _Walk:
    """From the leaf on, newest first, and where it left the segment."""

    chain: tuple[str, ...]
    exit: str | None


def read_segment(data: bytes, *, from_start: bool) -> StoreSegment:
    """Parses `data`. `from_start` says that nothing lies before it, so a parent that is not in it is nowhere."""
    records: list[StoreRecordLine] = []
    bad_lines: list[int] = []
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        record = _record(number, line, may_be_header=from_start and number == 1)
        if record is None:
            bad_lines.append(number)
        else:
            records.append(record)
    by_uuid = {one.uuid: one for one in records if one.uuid is not None}
    leaf = next((one.uuid for one in reversed(records) if one.uuid is not None), None)
    walk = _walked(by_uuid, leaf)
    return StoreSegment(
        records=tuple(records),
        bad_lines=tuple(bad_lines),
        torn_tail=False,
        leaf=leaf,
        chain=walk.chain,
        chain_exit=None if from_start else walk.exit,
        dangling=walk.exit if from_start else None,
        hanging=_hanging(by_uuid, walk.chain),
    )


def _walked(by_uuid: dict[str, StoreRecordLine], leaf: str | None) -> _Walk:
    seen: dict[str, None] = {}
    at = leaf
    while at is not None and at in by_uuid and at not in seen:
        seen[at] = None
        at = by_uuid[at].parent
    return _Walk(tuple(seen), at)


def _hanging(by_uuid: dict[str, StoreRecordLine], chain: tuple[str, ...]) -> tuple[str, ...]:
    """The newest lasting record of the chain and everything after it."""
    newest = next((uuid for uuid in chain if by_uuid[uuid].kind in _LASTING), None)
    if newest is None:
        return ()
    return tuple(reversed(chain[: chain.index(newest) + 1]))


def _record(number: int, line: bytes, *, may_be_header: bool) -> StoreRecordLine | None:
    """One complete line, or None when it is no record: half of one, or two glued together."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    data = value.get("data")
    data = data if isinstance(data, dict) else {}
    kind, digests = _kind(value, data, may_be_header=may_be_header)
    return StoreRecordLine(
        line=number,
        kind=kind,
        uuid=_text(value, "id"),
        parent=_text(value, "parent"),
        text_digests=digests,
        session_id=_text(data, "session_id") if value.get("kind") == HEADER else None,
    )


def _kind(value: dict[str, Any], data: dict[str, Any], *, may_be_header: bool) -> tuple[RecordKind, tuple[str, ...]]:
    if value.get("v") != VERSION or _text(value, "id") is None:
        return RecordKind.FOREIGN, ()
    match value.get("kind"):
        case kind if kind == HEADER:
            return (RecordKind.BOOKKEEPING if may_be_header else RecordKind.FOREIGN), ()
        case kind if kind == COMPACTION:
            return RecordKind.NEW_BASE, ()
        case kind if kind == MESSAGE:
            return _message(data.get("message"))
        case kind if kind in OF_A_TURN:
            return RecordKind.TOOL, ()
        case _:
            return RecordKind.FOREIGN, ()


def _message(message: Any) -> tuple[RecordKind, tuple[str, ...]]:
    if not isinstance(message, dict):
        return RecordKind.FOREIGN, ()
    text = _text(message, "text")
    match message.get("role"):
        case "user" if text is not None:
            return (RecordKind.TOOL if message.get("host") is True else RecordKind.USER), (text_digest(text),)
        case "assistant" if text is not None:
            return (RecordKind.ASSISTANT if text.strip() else RecordKind.TOOL), ((text_digest(text),) if text else ())
        case "tool":
            return RecordKind.TOOL, ()
        case _:
            return RecordKind.FOREIGN, ()


def _text(value: dict[str, Any], name: str) -> str | None:
    found = value.get(name)
    return found if isinstance(found, str) else None
