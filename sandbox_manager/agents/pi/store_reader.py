"""Parses Pi's session file (JSON lines, version 3) from a record boundary on. Says what is there; judges nothing; never raises.

Which entry is what (1.6.0):

    USER         a `message` of the role user
    ASSISTANT    a `message` of the role assistant that has a text
    TOOL         an assistant message without a text (a tool call, a failed try), tool results, the system message, and a `context_edit`
                 of an entry of this part: they need an admitted turn
    BOOKKEEPING  the first line (the header, whose id is the session's), and the kinds in bookkeeping.py
    NEW_BASE     a `compaction`
    FOREIGN      anything else, a `context_edit` of an older entry among it: Pi takes out only what the turn itself has failed with

The leaf is the newest entry of any kind, and the chain is walked from it along `parentId`: so does the CLI when it resumes. An entry that a
`context_edit` took out stays on the chain in the file, but the model does not see it, so it is not on the chain here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from sandbox_manager.agents.pi.bookkeeping import ANYTIME, COMPACTION, CONTEXT_EDIT, HEADER, MESSAGE, TURN_ROLES
from sandbox_manager.agents.pi.messages import compaction_key, message_key, text_digest, texts_of
from sandbox_manager.core.values import RecordKind, StoreRecordLine, StoreSegment

_LASTING = frozenset({RecordKind.USER, RecordKind.ASSISTANT, RecordKind.TOOL, RecordKind.NEW_BASE})


@dataclass(frozen=True, slots=True)
class _Parsed:
    """A record line, and the entry that it takes out of the model's context."""

    record: StoreRecordLine
    edits: str | None = None


def read_segment(data: bytes, *, from_start: bool) -> StoreSegment:
    """Parses `data`. `from_start` says that nothing lies before it, so a parent that is not in it is nowhere."""
    lines = data.split(b"\n")
    parsed: list[_Parsed] = []
    bad_lines: list[int] = []
    known: set[str] = set()
    for number, line in enumerate(lines[:-1], start=1):
        one = _entry(number, line, known, may_be_header=from_start and number == 1)
        if one is None:
            bad_lines.append(number)
            continue
        parsed.append(one)
        if one.record.uuid is not None:
            known.add(one.record.uuid)
    leaf = next((one.record.uuid for one in reversed(parsed) if one.record.uuid is not None), None)
    chain, chain_exit = _walk(parsed, leaf)
    taken_out = {one.edits for one in parsed if one.edits is not None}
    return StoreSegment(
        records=tuple(one.record for one in parsed),
        bad_lines=tuple(bad_lines),
        torn_tail=lines[-1] != b"",
        leaf=leaf,
        chain=tuple(uuid for uuid in chain if uuid not in taken_out),
        chain_exit=None if from_start else chain_exit,
        dangling=chain_exit if from_start else None,
        hanging=_hanging(parsed, chain),
    )


def _walk(parsed: list[_Parsed], leaf: str | None) -> tuple[tuple[str, ...], str | None]:
    """The ids from the leaf on, newest first, and the parent at which the walk left the segment."""
    by_id = {one.record.uuid: one.record for one in parsed if one.record.uuid is not None}
    seen: dict[str, None] = {}
    at = leaf
    while at is not None and at in by_id and at not in seen:
        seen[at] = None
        at = by_id[at].parent
    # A walk that comes back to itself reaches no beginning: the parent it stopped at is said, and stands in nobody's anchors.
    return tuple(seen), at


def _hanging(parsed: list[_Parsed], chain: tuple[str, ...]) -> tuple[str, ...]:
    """The newest lasting entry of the chain and everything below it. Empty when the chain holds no lasting entry."""
    kinds = {one.record.uuid: one.record.kind for one in parsed if one.record.uuid is not None}
    newest = next((uuid for uuid in chain if kinds[uuid] in _LASTING), None)
    if newest is None:
        return ()
    found: dict[str, None] = {newest: None}
    for one in parsed:  # a parent stands before its children
        if one.record.uuid is not None and one.record.parent in found:
            found[one.record.uuid] = None
    return tuple(found)


def _entry(number: int, line: bytes, known: set[str], *, may_be_header: bool) -> _Parsed | None:
    """One complete line, or None when it is no entry: half of one, or two glued together."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    if value.get("type") == HEADER:
        session_id = _text_or_none(value.get("id"))
        is_header = may_be_header and session_id is not None
        kind = RecordKind.BOOKKEEPING if is_header else RecordKind.FOREIGN
        return _Parsed(StoreRecordLine(number, kind, None, None, (), session_id))
    message = value.get("message")
    message = message if isinstance(message, dict) else {}
    uuid = _text_or_none(value.get("id"))
    target = _text_or_none(value.get("targetId")) if value.get("type") == CONTEXT_EDIT else None
    kind = RecordKind.FOREIGN if uuid is None or uuid in known else _kind(value, message, target, known)
    return _Parsed(
        StoreRecordLine(
            line=number,
            kind=kind,
            uuid=uuid,
            parent=_text_or_none(value.get("parentId")),
            text_digests=tuple(text_digest(text) for text in texts_of(message.get("content"))),
            session_id=None,
            printed_as=_printed_as(value, message),
        ),
        edits=target,
    )


def _kind(value: dict[str, object], message: dict[str, object], target: str | None, known: set[str]) -> RecordKind:
    type_, role = value.get("type"), message.get("role")
    if type_ in ANYTIME:
        return RecordKind.BOOKKEEPING
    if type_ == COMPACTION:
        return RecordKind.NEW_BASE
    if type_ == CONTEXT_EDIT:
        return RecordKind.TOOL if target in known and value.get("replacement") is None else RecordKind.FOREIGN
    if type_ != MESSAGE:
        return RecordKind.FOREIGN
    if role in TURN_ROLES:
        return RecordKind.TOOL
    texts = texts_of(message.get("content"))
    match role:
        case "user":
            return RecordKind.USER if _is_text_only(message.get("content")) else RecordKind.FOREIGN
        case "assistant":
            return RecordKind.ASSISTANT if any(texts) else RecordKind.TOOL
        case _:
            return RecordKind.FOREIGN


def _is_text_only(content: object) -> bool:
    if isinstance(content, list):
        return all(isinstance(block, dict) and block.get("type") == "text" for block in content)
    return isinstance(content, str)


def _printed_as(value: dict[str, object], message: dict[str, object]) -> str | None:
    match value.get("type"):
        case "message":
            return message_key(message)
        case "compaction":
            return compaction_key(value.get("summary"))
        case _:
            return None  # an appended entry is printed with its own id


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None
