"""The records of a session file: one JSON object a line, version 1. Pure.

    {"v": 1, "kind": KIND, "id": ID, "parent": ID of the record before | null, "at_ms": TIME, "data": {...}}

    session     first of all: session_id, cwd, agent_version, forked_from
    message     one message of the transcript (`transcript_json`); the id of a person's message is the message id it came with.
                A steering message has "steers": the id of the turn it came into. "facts": what the host tells the model right
                before it, of calls that an interruption left open
    started     a call that may change something is about to run: call_id
    intent      a write intent of a call, before the write: call_id, intent (raw JSON text, of any version)
    repair      a repair record of the attempt loop, as it gave it
    compaction  from here on the history is: summary, then the messages from tail_from on; agreements as they were
    end         the turn is over: message_id, outcome, reason, usage

A line that is an object of another version or kind is kept as it is. It may be skipped only if the history does not depend on it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from direct_agent.transcript import Message
from direct_agent.transcript_json import TranscriptFormatError, from_json, to_json

VERSION = 1
KINDS = frozenset({"session", "message", "started", "intent", "repair", "compaction", "end"})
_OF_HISTORY = frozenset({"session", "message", "compaction"})


@dataclass(frozen=True, slots=True)
class Record:
    """One record of this version. `at_ms`: milliseconds since 1970, UTC."""

    kind: str
    id: str
    parent: str | None
    at_ms: int
    data: Mapping[str, Any] = field(hash=False)

    @property
    def message(self) -> Message:
        """The message of a `message` record."""
        return from_json(self.data["message"])

    def text(self, name: str) -> str | None:
        value = self.data.get(name)
        return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class RawRecord:
    """An object that this version does not read. `is_of_history`: what the model was told may depend on it."""

    line: bytes
    is_of_history: bool


@dataclass(frozen=True, slots=True)
class Damage:
    """A complete line that is no record: half of one, or two glued together. `number` counts from 1."""

    number: int


Line = Record | RawRecord | Damage


def encode(record: Record) -> bytes:
    """One line with its line end."""
    value = {
        "v": VERSION,
        "kind": record.kind,
        "id": record.id,
        "parent": record.parent,
        "at_ms": record.at_ms,
        "data": record.data,
    }
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode("utf-8") + b"\n"
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can spell and UTF-8 cannot carry
        return json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n"


def decode(line: bytes, number: int) -> Line:
    """One line without its line end."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return Damage(number)
    if not isinstance(value, dict):
        return Damage(number)
    kind = value.get("kind")
    is_known = value.get("v") == VERSION and type(value.get("v")) is int and kind in KINDS
    record = _record(value) if is_known else None
    if record is None:
        return RawRecord(line, is_of_history=kind in _OF_HISTORY)
    return record


def _record(value: dict[str, Any]) -> Record | None:
    match value:
        case {"kind": str(kind), "id": str(id_), "parent": str() | None as parent, "data": dict(data)}:
            at_ms = value.get("at_ms")
            record = Record(kind, id_, parent, at_ms if type(at_ms) is int else 0, data)
            return record if _is_whole(record) else None
        case _:
            return None


def _is_whole(record: Record) -> bool:
    match record.kind:
        case "message":
            try:
                return record.message is not None
            except (TranscriptFormatError, KeyError):
                return False
        case "session":
            return record.text("session_id") is not None and record.text("cwd") is not None
        case "compaction":
            return record.text("summary") is not None and record.text("tail_from") is not None
        case "intent":
            return record.text("call_id") is not None and record.text("intent") is not None
        case "started":
            return record.text("call_id") is not None
        case "end":
            return record.text("message_id") is not None and record.text("outcome") is not None
        case _:
            return True


def message_data(message: Message, *, steers: str | None = None, facts: str | None = None) -> dict[str, Any]:
    """The data of a `message` record."""
    data: dict[str, Any] = {"message": to_json(message)}
    if steers is not None:
        data["steers"] = steers
    if facts is not None:
        data["facts"] = facts
    return data


def compaction_data(summary: str, tail_from: str, agreements: str | None) -> dict[str, Any]:
    """The data of a `compaction` record. `tail_from`: the record of the first message that stays as it is."""
    return {"summary": summary, "tail_from": tail_from, "agreements": agreements}
