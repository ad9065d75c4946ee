"""Parses a Codex rollout (JSON lines) from a record boundary on. Says what is there; judges nothing; never raises.

Each record is {timestamp, ordinal, type, payload}; ordinals count from 0 without a gap, over resumes, interrupts and compactions; a
resume and a kill write nothing, a fork's rollout goes on where its source's part ends (all observed on 0.171.0). So the chain is the
ordinals: a record that was taken out, or put in, breaks it, and `thread/resume` would not have said so.

    USER         a `response_item` message with the role user whose text is the user's own. Its uuid is the message id that it was sent
                 with, which the `item_completed` beside it carries, if that has the same text
    ASSISTANT    a message with the role assistant. Its text is what is printed of it: its parts joined, citations taken out
    TOOL         other response items: calls, results, thinking, and messages that the CLI writes itself (bookkeeping.py)
    BOOKKEEPING  `session_meta` as the first record, the kinds in bookkeeping.py, and the answer that a compaction asked for
    NEW_BASE     `compacted`, which replaces the history above it. Its uuid is that of the compaction's `item_completed` after it,
                 which is printed, too (observed)
    FOREIGN      anything else

A record of a turn hangs below that turn's user record, by the turn id that it carries; one of a turn that is not in this part hangs
nowhere. An assistant's text whose turn has no end mark after it is not on the chain: a turn that was settled has both.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass

from sandbox_manager.agents.codex.bookkeeping import (
    CITATION,
    EVENTS,
    OWN_PROVENANCES,
    RECORDS,
    TOOL_ITEMS,
    TURN_ENDS,
    USER_KIND,
)
from sandbox_manager.agents.codex.tap_reader import end_uuid, item_uuid, text_digest
from sandbox_manager.core.values import RecordKind, StoreRecordLine, StoreSegment


@dataclass(frozen=True, slots=True)
class _Raw:
    """One record as it stands in the file."""

    line: int
    ordinal: int | None
    type: str
    payload: dict[str, object]
    open_turn_id: str | None = None  # the turn that was begun last and has no end yet

    @property
    def turn_id(self) -> str | None:
        """The turn that it names. A list of tools names none: it belongs to the turn it stands in."""
        passthrough = self.payload.get("internal_chat_message_metadata_passthrough")
        found = passthrough if isinstance(passthrough, dict) else self.payload
        named = _text_or_none(found.get("turn_id"))
        return self.open_turn_id if named is None and self.type == "response_item" else named

    @property
    def event(self) -> str | None:
        return _text_or_none(self.payload.get("type")) if self.type == "event_msg" else None


def read_segment(data: bytes, *, from_start: bool) -> StoreSegment:
    """Parses `data`. `from_start` says that nothing lies before it, so it must begin with the session's own first record."""
    lines = data.split(b"\n")
    raws: list[_Raw] = []
    bad_lines: list[int] = []
    open_turn_id: str | None = None
    for number, line in enumerate(lines[:-1], start=1):
        one = _raw(number, line, open_turn_id)
        if one is None:
            bad_lines.append(number)
            continue
        raws.append(one)
        if one.event == "task_started":
            open_turn_id = one.turn_id
        elif one.event in TURN_ENDS:
            open_turn_id = None
    records = _records(raws, from_start=from_start)
    chain, left_at = _walk(raws, records)
    begins = left_at is None or (from_start and bool(raws) and len(chain) == len(raws) and _is_first(raws[0]))
    return StoreSegment(
        records=tuple(records),
        bad_lines=tuple(bad_lines),
        torn_tail=lines[-1] != b"",
        leaf=records[-1].uuid if records else None,
        chain=_without_open_ends(raws, records, chain),
        chain_exit=None if from_start else left_at,
        dangling=left_at if from_start and not begins else None,
        hanging=(_ordinal_name(raws[-1].ordinal),) if raws and raws[-1].ordinal is not None else (),
    )


def _ordinal_name(ordinal: int | None) -> str:
    return f"ordinal:{ordinal}"


def _raw(number: int, line: bytes, open_turn_id: str | None) -> _Raw | None:
    """One complete line, or None when it is no record: half of one, or two glued together."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    ordinal, payload = value.get("ordinal"), value.get("payload")
    return _Raw(
        line=number,
        ordinal=ordinal if type(ordinal) is int else None,
        type=_text_or_none(value.get("type")) or "",
        payload=payload if isinstance(payload, dict) else {},
        open_turn_id=open_turn_id,
    )


def _is_first(raw: _Raw) -> bool:
    """A session's first record: number 0, or the number at which a fork leaves its source."""
    base = raw.payload.get("history_base")
    start = base.get("end_ordinal_exclusive") if isinstance(base, dict) else 0
    return raw.type == "session_meta" and raw.ordinal == start


def _walk(raws: list[_Raw], records: list[StoreRecordLine]) -> tuple[tuple[str, ...], str | None]:
    """The records from the last one up while their ordinals go down by one, and the ordinal that comes before the last of them."""
    chain: list[str] = []
    expected: int | None = raws[-1].ordinal if raws else None
    for raw, record in zip(reversed(raws), reversed(records), strict=True):
        if raw.ordinal is None or raw.ordinal != expected:
            break
        chain.append(record.uuid or "")
        expected = raw.ordinal - 1
    return tuple(chain), _ordinal_name(expected) if raws else None


def _without_open_ends(raws: list[_Raw], records: list[StoreRecordLine], chain: tuple[str, ...]) -> tuple[str, ...]:
    last_end = {raw.turn_id: raw.line for raw in raws if raw.event in TURN_ENDS}
    open_ended = {
        record.uuid
        for raw, record in zip(raws, records, strict=True)
        if record.kind is RecordKind.ASSISTANT and last_end.get(raw.turn_id, 0) < raw.line
    }
    return tuple(uuid for uuid in chain if uuid not in open_ended)


# --- records ----------------------------------------------------------------------------------------------------------------------------
def _records(raws: list[_Raw], *, from_start: bool) -> list[StoreRecordLine]:
    named_beside = {**_client_ids(raws), **_compaction_ids(raws)}
    kinds = [_kind(raw, is_first=from_start and raw.line == 1) for raw in raws]
    for at in _summaries(raws, kinds):
        kinds[at] = RecordKind.BOOKKEEPING
    times: Counter[tuple[str | None, str]] = Counter()
    uuids: list[str] = []
    for raw, kind in zip(raws, kinds, strict=True):
        uuids.append(_uuid(raw, kind, named_beside, times))
    user_of_turn: dict[str | None, str] = {}
    for raw, kind, uuid in zip(raws, kinds, uuids, strict=True):
        if kind is RecordKind.USER:
            user_of_turn.setdefault(raw.turn_id, uuid)
    return [
        StoreRecordLine(
            line=raw.line,
            kind=kind,
            uuid=uuid,
            parent=_parent(raw, uuid, user_of_turn),
            text_digests=_digests(raw, kind),
            session_id=_session_id(raw),
        )
        for raw, kind, uuid in zip(raws, kinds, uuids, strict=True)
    ]


def _kind(raw: _Raw, *, is_first: bool) -> RecordKind:
    if raw.ordinal is None:
        return RecordKind.FOREIGN
    match raw.type:
        case "session_meta":
            # Only at the top: a second one in mid-file would be another session's.
            return RecordKind.BOOKKEEPING if is_first else RecordKind.FOREIGN
        case "compacted":
            return RecordKind.NEW_BASE
        case "event_msg":
            return RecordKind.BOOKKEEPING if raw.event in EVENTS else RecordKind.FOREIGN
        case "response_item":
            return _item_kind(raw)
        case _:
            return RecordKind.BOOKKEEPING if raw.type in RECORDS else RecordKind.FOREIGN


def _summaries(raws: list[_Raw], kinds: list[RecordKind]) -> list[int]:
    """Where a compaction's own answer stands: right above its `compacted`, which carries its text on and takes it off the history.

    It is never printed. With a text that is not carried on, or with anything but bookkeeping in between, it is what it seems to be.
    """
    found = []
    for at, raw in enumerate(raws):
        if raw.type != "compacted":
            continue
        above = next((n for n in range(at - 1, -1, -1) if kinds[n] is not RecordKind.BOOKKEEPING), None)
        message = raw.payload.get("message")
        if above is None or kinds[above] is not RecordKind.ASSISTANT or not isinstance(message, str):
            continue
        if message.endswith("".join(_texts(raws[above].payload))):
            found.append(above)
    return found


def _item_kind(raw: _Raw) -> RecordKind:
    if raw.payload.get("type") != "message":
        return RecordKind.TOOL if raw.payload.get("type") in TOOL_ITEMS else RecordKind.FOREIGN
    match raw.payload.get("role"):
        case "assistant":
            return RecordKind.ASSISTANT
        case "developer":
            return RecordKind.TOOL
        case "user":
            return RecordKind.TOOL if _is_the_clis_own(raw) else RecordKind.USER
        case _:
            return RecordKind.FOREIGN


def _is_the_clis_own(raw: _Raw) -> bool:
    """Whether the CLI says of each part that it wrote it itself. Whatever it does not say that of is taken as a user's."""
    passthrough = raw.payload.get("internal_chat_message_metadata_passthrough")
    if not isinstance(passthrough, dict):
        return False
    kinds, metadata = passthrough.get("content_item_kinds"), passthrough.get("content_item_metadata")
    if not isinstance(kinds, list) or not isinstance(metadata, list) or not kinds or USER_KIND in kinds:
        return False
    return len(kinds) == len(metadata) and all(_provenance(one) in OWN_PROVENANCES for one in metadata)


def _provenance(metadata: object) -> str | None:
    found = metadata.get("provenance") if isinstance(metadata, dict) else None
    return _text_or_none(found.get("type")) if isinstance(found, dict) else None


def _client_ids(raws: list[_Raw]) -> dict[int, str]:
    """Line of a user's response item -> the message id, from the user item that follows it in the same turn with the same text."""
    found: dict[int, str] = {}
    waiting: dict[str | None, _Raw] = {}
    for raw in raws:
        if raw.type == "response_item" and raw.payload.get("role") == "user" and not _is_the_clis_own(raw):
            waiting[raw.turn_id] = raw
        elif raw.event == "item_completed":
            item = raw.payload.get("item")
            if not isinstance(item, dict) or item.get("type") != "UserMessage":
                continue
            user, client_id = waiting.pop(raw.turn_id, None), item.get("client_id")
            if user is not None and isinstance(client_id, str) and _texts(item) == _texts(user.payload):
                found[user.line] = client_id
    return found


def _compaction_ids(raws: list[_Raw]) -> dict[int, str]:
    """Line of a `compacted` record -> the name of its compaction, from the item that follows it."""
    found: dict[int, str] = {}
    waiting: _Raw | None = None
    for raw in raws:
        item = raw.payload.get("item") if raw.event == "item_completed" else None
        if raw.type == "compacted":
            waiting = raw
        elif waiting is not None and isinstance(item, dict) and item.get("type") == "ContextCompaction":
            found[waiting.line] = item_uuid(raw.turn_id or "", str(item.get("id")), 0)
            waiting = None
    return found


def _uuid(raw: _Raw, kind: RecordKind, named_beside: dict[int, str], times: Counter[tuple[str | None, str]]) -> str:
    if raw.event in TURN_ENDS and raw.turn_id is not None:
        return end_uuid(raw.turn_id)
    item_id = _text_or_none(raw.payload.get("id"))
    if raw.type != "response_item" or item_id is None:
        return named_beside.get(raw.line, _ordinal_name(raw.ordinal))
    if kind is RecordKind.USER:
        return named_beside.get(raw.line, item_id)
    key = (raw.turn_id, item_id)
    uuid = item_uuid(raw.turn_id or "", item_id, times[key])
    times[key] += 1
    return uuid


def _parent(raw: _Raw, uuid: str, user_of_turn: dict[str | None, str]) -> str | None:
    """What it hangs below: its turn's first user record."""
    user = user_of_turn.get(raw.turn_id) if raw.turn_id is not None else None
    return user if user != uuid else None


def _digests(raw: _Raw, kind: RecordKind) -> tuple[str, ...]:
    if raw.type != "response_item" or raw.payload.get("type") != "message":
        return ()
    texts = _texts(raw.payload)
    if kind is RecordKind.ASSISTANT:
        return (text_digest(_as_printed("".join(texts))),)
    return tuple(text_digest(text) for text in texts)


def _as_printed(text: str) -> str:
    opening, closing = CITATION
    while (start := text.find(opening)) >= 0:
        end = text.find(closing, start)
        text = text[:start] + (text[end + len(closing) :] if end >= 0 else "")
    return text


def _texts(fields: dict[str, object]) -> list[str]:
    content = fields.get("content")
    parts = content if isinstance(content, list) else []
    return [text for part in parts if isinstance(part, dict) and isinstance(text := part.get("text"), str)]


def _session_id(raw: _Raw) -> str | None:
    if raw.type == "session_meta":
        return _text_or_none(raw.payload.get("id"))
    if raw.type == "token_usage_record" or raw.event == "item_completed":
        return _text_or_none(raw.payload.get("thread_id"))
    return None


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None
