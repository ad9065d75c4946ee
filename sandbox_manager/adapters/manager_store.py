"""The manager's store in one SQLite file, behind the port of `store_port.py`. It keeps records and decides nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import sqlite_utils

from sandbox_manager.adapters.manager_schema import TABLES, migrations
from sandbox_manager.adapters.record_rows import from_row, to_row
from sandbox_manager.adapters.store_port import (
    Change,
    Conversation,
    Delete,
    Insert,
    Record,
    TurnStory,
    Update,
    WriteConflictError,
)
from sandbox_manager.core.records import (
    ActivationRecord,
    AdmissionRecord,
    ConversationRef,
    GroupRecord,
    HostRecord,
    KeyRecord,
    LeftoverRecord,
    LocatorRecord,
    MemberRecord,
    SettlementRecord,
    StoreRecordRow,
    TombstoneRecord,
    TurnRecord,
)
from standfast_chassis.database import Database

R = TypeVar("R")

_OPEN = "state in ('CLAIMED', 'PREPARED', 'ADMITTED')"
_OF_CONVERSATION = "tenant = ? and conversation_id = ?"


class SqliteManagerStore:
    """The port over an open database. Reads are snapshots; a commit is durable when it returns."""

    def __init__(self, db: Database) -> None:
        self._db = db

    @property
    def database_in_use(self) -> Database:
        """The open database, for those who look after it."""
        return self._db

    @staticmethod
    def database(path: Path) -> Database:
        """The database to enter as an async context manager."""
        return Database(path, migrations)

    async def conversation(self, ref: ConversationRef) -> Conversation:
        return await self._db.read(lambda db: _conversation(db, ref))

    async def conversations(self, tenant: str, after: str | None, limit: int) -> Sequence[Conversation]:
        def read(db: sqlite_utils.Database) -> list[Conversation]:
            behind = "rowid > coalesce((select rowid from members where member_id = ?), 0)"
            members = _all(db, MemberRecord, f"tenant = ? and {behind} order by rowid limit ?", [tenant, after, limit])
            return [_conversation(db, member.ref) for member in members]

        return await self._db.read(read)

    async def turn(self, ref: ConversationRef, turn_id: str) -> TurnStory | None:
        return await self._db.read(
            lambda db: _story(db, f"{_OF_CONVERSATION} and turn_id = ?", [ref.tenant, ref.conversation_id, turn_id])
        )

    async def turn_of_activation(self, activation_id: str) -> TurnStory | None:
        def read(db: sqlite_utils.Database) -> TurnStory | None:
            activation = _one(db, ActivationRecord, "activation_id = ?", [activation_id])
            if activation is None:
                return None
            key = [activation.tenant, activation.conversation_id, activation.turn_id]
            return _story(db, f"{_OF_CONVERSATION} and turn_id = ?", key, activation_id)

        return await self._db.read(read)

    async def settlement_by_request(self, request_id: str) -> SettlementRecord | None:
        return await self._db.read(lambda db: _one(db, SettlementRecord, "request_id = ?", [request_id]))

    async def open_turns(self) -> Sequence[TurnRecord]:
        return await self._db.read(lambda db: _all(db, TurnRecord, f"{_OPEN} order by rowid"))

    async def group(self, group_id: str) -> GroupRecord | None:
        return await self._db.read(lambda db: _one(db, GroupRecord, "group_id = ?", [group_id]))

    async def groups(self) -> Sequence[GroupRecord]:
        return await self._db.read(lambda db: _all(db, GroupRecord, "released = 0 order by rowid"))

    async def hosts(self) -> Sequence[HostRecord]:
        return await self._db.read(lambda db: _all(db, HostRecord, "1 = 1 order by rowid"))

    async def host(self, host_id: str) -> HostRecord | None:
        return await self._db.read(lambda db: _one(db, HostRecord, "host_id = ?", [host_id]))

    async def keys(self) -> Sequence[KeyRecord]:
        return await self._db.read(lambda db: _all(db, KeyRecord, "1 = 1 order by rowid"))

    async def commit(self, changes: Sequence[Change]) -> None:
        def write(db: sqlite_utils.Database) -> None:
            for change in changes:
                _apply(db, change)

        await self._db.write(write)


def _apply(db: sqlite_utils.Database, change: Change) -> None:
    match change:
        case Insert(record):
            _insert(db, record)
        case Update(record):
            _update(db, record)
        case Delete(record):
            table = TABLES[type(record)]
            row = to_row(record)
            done = db.conn.execute(
                f"delete from [{table.name}] where {_key(table.key)} and revision = ?",
                [*(row[name] for name in table.key), record.revision],
            )
            _require_one(done, record)


def _insert(db: sqlite_utils.Database, record: Record) -> None:
    row = to_row(record)
    names = ", ".join(f"[{name}]" for name in row)
    marks = ", ".join("?" * len(row))
    try:
        db.conn.execute(f"insert into [{TABLES[type(record)].name}] ({names}) values ({marks})", list(row.values()))
    except sqlite3.IntegrityError as error:
        raise _conflict(record, "its key, or another value that must be unique, is taken") from error


def _update(db: sqlite_utils.Database, record: Record) -> None:
    table = TABLES[type(record)]
    row = to_row(record)
    row["revision"] = record.revision + 1
    changed = [name for name in row if name not in table.key]
    try:
        done = db.conn.execute(
            f"update [{table.name}] set {', '.join(f'[{name}] = ?' for name in changed)}"
            f" where {_key(table.key)} and revision = ?",
            [*(row[name] for name in changed), *(row[name] for name in table.key), record.revision],
        )
    except sqlite3.IntegrityError as error:
        raise _conflict(record, "a value that must be unique is taken") from error
    _require_one(done, record)


def _require_one(done: sqlite3.Cursor, record: Record) -> None:
    if done.rowcount != 1:
        raise _conflict(record, f"expected it at revision {record.revision}, found another one or none")


def _conflict(record: Record, found: str) -> WriteConflictError:
    table = TABLES[type(record)]
    return WriteConflictError(
        f"A {table.name} record has changed since it was read: {found}. Nothing was written; ask again.",
        {"table": table.name, "expected_revision": record.revision},
    )


def _key(names: tuple[str, ...]) -> str:
    return " and ".join(f"[{name}] = ?" for name in names)


def _all(db: sqlite_utils.Database, kind: type[R], where: str, values: Sequence[Any] = ()) -> list[R]:
    # Not db.query: it looks at the statement's words each time, which costs as much as a small read does.
    found = db.conn.execute(f"select * from [{TABLES[kind].name}] where {where}", list(values))
    names = [column[0] for column in found.description]
    return [from_row(kind, dict(zip(names, row, strict=True))) for row in found.fetchall()]


def _one(db: sqlite_utils.Database, kind: type[R], where: str, values: Sequence[Any]) -> R | None:
    found = _all(db, kind, where, values)
    return found[0] if found else None


def _conversation(db: sqlite_utils.Database, ref: ConversationRef) -> Conversation:
    key = [ref.tenant, ref.conversation_id]
    member = _one(db, MemberRecord, _OF_CONVERSATION, key)
    turns = db.conn.execute(f"select count(*) from turns where {_OF_CONVERSATION}", key).fetchone()[0]
    return Conversation(
        ref=ref,
        tombstone=_one(db, TombstoneRecord, _OF_CONVERSATION, key),
        member=member,
        group=_one(db, GroupRecord, "group_id = ?", [member.group_id]) if member is not None else None,
        locator=_one(db, LocatorRecord, _OF_CONVERSATION, key),
        store=_one(db, StoreRecordRow, _OF_CONVERSATION, key),
        open_turns=tuple(_all(db, TurnRecord, f"{_OF_CONVERSATION} and {_OPEN} order by ordinal", key)),
        leftovers=tuple(_all(db, LeftoverRecord, f"{_OF_CONVERSATION} order by rowid", key)),
        turns=int(turns),
    )


def _story(
    db: sqlite_utils.Database, where: str, values: Sequence[Any], activation_id: str | None = None
) -> TurnStory | None:
    """A turn with what belongs to the activation asked for, else to the turn's own."""
    turn = _one(db, TurnRecord, where, values)
    if turn is None:
        return None
    of_activation = ("activation_id = ?", [activation_id or turn.activation_id])
    return TurnStory(
        turn=turn,
        activation=_one(db, ActivationRecord, *of_activation),
        admission=_one(db, AdmissionRecord, *of_activation),
        settlement=_one(db, SettlementRecord, *of_activation),
    )
