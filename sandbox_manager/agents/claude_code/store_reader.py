"""Parses Claude Code's transcript (JSON lines) from a record boundary on. Says what is there; judges nothing; never raises.

Which record is what (2.1.220, headless):

    USER         a `user` record with a text of its own: no tool result in it, not written by the CLI itself
    ASSISTANT    an `assistant` record of a real model with a text block that is not blank
    TOOL         tool calls and results, thinking, blank texts (written, never printed), interrupt markers, texts that the CLI wrote
                 to go on (`isMeta`), summaries of a compaction, records of a side chain: they need an admitted turn
    BOOKKEEPING  the kinds in bookkeeping.py, and assistant records of the model `<synthetic>`
    NEW_BASE     `system` / `compact_boundary`
    FOREIGN      anything else

The chain is what the model will see after a resume: from the leaf (the last `user` or `assistant` record that has a uuid and is on no
side chain) along `parentUuid`. The late `api_error` record of the retry defect shows here: the leaf's walk passes it and misses the
reply.

One answer of the provider becomes several records, one a content block, with the same `message.id`, and with parallel tool calls the
walk goes through one of them only. The CLI puts the others back when it resumes (they share the id), so they count as on the chain.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from sandbox_manager.agents.claude_code.bookkeeping import (
    COMPACT_BOUNDARY,
    INTERRUPT_MARKERS,
    SYNTHETIC_MODEL,
    WITH_UUID,
    WITHOUT_UUID,
)
from sandbox_manager.agents.claude_code.tap_reader import text_digest
from sandbox_manager.core.values import RecordKind, StoreRecordLine, StoreSegment

_LASTING = frozenset({RecordKind.USER, RecordKind.ASSISTANT, RecordKind.TOOL, RecordKind.NEW_BASE})


@dataclass(frozen=True, slots=True)
class _Parsed:
    """A record line, and what only the walk needs."""

    record: StoreRecordLine
    may_be_leaf: bool
    answer_id: str | None  # message.id of an assistant record: the provider's answer it is a block of


def read_segment(data: bytes, *, from_start: bool) -> StoreSegment:
    """Parses `data`. `from_start` says that nothing lies before it, so a parent that is not in it is nowhere."""
    lines = data.split(b"\n")
    torn_tail = lines[-1] != b""
    parsed: list[_Parsed] = []
    bad_lines: list[int] = []
    for number, line in enumerate(lines[:-1], start=1):
        one = _record(number, line)
        if one is None:
            bad_lines.append(number)
        else:
            parsed.append(one)
    leaf = next((one.record.uuid for one in reversed(parsed) if one.may_be_leaf), None)
    chain, chain_exit = _walk(parsed, leaf)
    dangling = chain_exit if from_start else None
    return StoreSegment(
        records=tuple(one.record for one in parsed),
        bad_lines=tuple(bad_lines),
        torn_tail=torn_tail,
        leaf=leaf,
        chain=_with_siblings(parsed, chain),
        chain_exit=None if from_start else chain_exit,
        dangling=dangling,
        hanging=_hanging(parsed, chain),
    )


def _walk(parsed: list[_Parsed], leaf: str | None) -> tuple[tuple[str, ...], str | None]:
    """The uuids from the leaf on, newest first, and the parent at which the walk left the segment.

    A uuid can be in the file twice after a compaction, which appends kept records again; the later one is the valid one.
    """
    by_uuid = {one.record.uuid: one.record for one in parsed if one.record.uuid is not None}
    seen: dict[str, None] = {}
    at = leaf
    while at is not None and at in by_uuid and at not in seen:
        seen[at] = None
        at = by_uuid[at].parent
    # A walk that comes back to itself reaches no beginning: the parent it stopped at is said, and stands in nobody's anchors.
    return tuple(seen), at


def _with_siblings(parsed: list[_Parsed], chain: tuple[str, ...]) -> tuple[str, ...]:
    on_chain = set(chain)
    answers = {one.answer_id for one in parsed if one.record.uuid in on_chain and one.answer_id is not None}
    siblings = tuple(
        one.record.uuid
        for one in parsed
        if one.record.uuid is not None and one.record.uuid not in on_chain and one.answer_id in answers
    )
    return chain + siblings


def _hanging(parsed: list[_Parsed], chain: tuple[str, ...]) -> tuple[str, ...]:
    """The newest lasting record of the chain and everything below it. Empty when the chain holds no lasting record."""
    kinds = {one.record.uuid: one.record.kind for one in parsed if one.record.uuid is not None}
    newest = next((uuid for uuid in chain if kinds[uuid] in _LASTING), None)
    if newest is None:
        return ()
    found: dict[str, None] = {newest: None}
    # Parents stand before their children in the file, except for records that a compaction appended again: so until nothing is new.
    grew = True
    while grew:
        grew = False
        for one in parsed:
            uuid, parent = one.record.uuid, one.record.parent
            if uuid is not None and uuid not in found and parent in found:
                found[uuid] = None
                grew = True
    return tuple(found)


def _record(number: int, line: bytes) -> _Parsed | None:
    """One complete line, or None when it is no record: half of one, or two glued together."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    message = value.get("message")
    message = message if isinstance(message, dict) else {}
    uuid, parent = _text_or_none(value.get("uuid")), _text_or_none(value.get("parentUuid"))
    kind = _kind(value, message, has_uuid=uuid is not None)
    type_ = value.get("type")
    return _Parsed(
        record=StoreRecordLine(
            line=number,
            kind=kind,
            uuid=uuid,
            parent=parent,
            text_digests=tuple(text_digest(text) for text in _texts(message.get("content"))),
            session_id=_text_or_none(value.get("sessionId")),
        ),
        may_be_leaf=uuid is not None and type_ in ("user", "assistant") and value.get("isSidechain") is not True,
        answer_id=_text_or_none(message.get("id")) if type_ == "assistant" else None,
    )


def _kind(value: dict[str, object], message: dict[str, object], *, has_uuid: bool) -> RecordKind:
    type_ = value.get("type")
    if not isinstance(type_, str):
        return RecordKind.FOREIGN
    if not has_uuid:
        return RecordKind.BOOKKEEPING if type_ in WITHOUT_UUID else RecordKind.FOREIGN
    if type_ == "system" and value.get("subtype") == COMPACT_BOUNDARY:
        return RecordKind.NEW_BASE
    if type_ in WITH_UUID:
        return RecordKind.BOOKKEEPING
    if type_ not in ("user", "assistant") or message.get("role") != type_:
        return RecordKind.FOREIGN
    if value.get("isSidechain") is True:
        return RecordKind.TOOL
    return _user_kind(value, message) if type_ == "user" else _assistant_kind(message)


def _user_kind(value: dict[str, object], message: dict[str, object]) -> RecordKind:
    blocks = _blocks(message.get("content"))
    if blocks is None:
        return RecordKind.FOREIGN
    types = [block.get("type") for block in blocks]
    if value.get("isMeta") is True or value.get("isCompactSummary") is True or "tool_result" in types:
        return RecordKind.TOOL
    if types and all(type_ == "text" for type_ in types):
        texts = _texts(message.get("content"))
        return RecordKind.TOOL if len(texts) == 1 and texts[0] in INTERRUPT_MARKERS else RecordKind.USER
    return RecordKind.FOREIGN


def _assistant_kind(message: dict[str, object]) -> RecordKind:
    if message.get("model") == SYNTHETIC_MODEL:
        return RecordKind.BOOKKEEPING
    blocks = _blocks(message.get("content"))
    if blocks is None:
        return RecordKind.FOREIGN
    return RecordKind.ASSISTANT if any(text.strip() for text in _texts(blocks)) else RecordKind.TOOL


def _blocks(content: object) -> list[dict[str, object]] | None:
    """The content as blocks; a plain text is one text block. None when it is neither."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if isinstance(content, list) and all(isinstance(block, dict) for block in content):
        return content
    return None


def _texts(content: object) -> list[str]:
    blocks = _blocks(content) or []
    return [text for block in blocks if block.get("type") == "text" and isinstance(text := block.get("text"), str)]


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None
