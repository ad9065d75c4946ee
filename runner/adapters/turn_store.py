"""The runner's durable record: turns, and each conversation's locator record.

Every write resolves once it is on disk. What belongs together (a turn's end and the locator that becomes SAVED) is one
transaction.
"""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlite_utils

from runner.core.locator_record import LocatorRecord
from runner.core.message_queue import Hold
from runner.core.values import Cause, ConversationKey, NativeLocator, Outcome, TurnKey
from standfast.runner.v1 import runner_pb2
from standfast_chassis.database import Database


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """One turn as it is kept. `refusal`: why it was refused, for a turn that was."""

    key: TurnKey
    message_digest: str
    message_length: int
    agent: str
    accepted_at_ms: int
    is_over: bool
    snapshot: runner_pb2.Turn
    refusal: Cause | None


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """What this runner knows of a conversation."""

    key: ConversationKey
    agent: str
    settled_turns: int
    last_settled_turn: str | None
    locator: LocatorRecord


_KEY = "tenant = ? AND conversation_id = ? AND turn_id = ?"
_LOCATOR_COLUMNS = ("session_id", "cwd", "store", "agent")


class TurnStore:
    """The store in an open database with the migrations of `turn_schema`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def runner_id(self) -> str:
        """A stable id of this state folder, made once."""

        def write(db: sqlite_utils.Database) -> str:
            row = db.conn.execute("SELECT value FROM identity WHERE name = 'runner_id'").fetchone()
            if row is not None:
                return str(row[0])
            made = f"runner-{uuid.uuid4().hex}"
            db.conn.execute("INSERT INTO identity (name, value) VALUES ('runner_id', ?)", (made,))
            return made

        return await self._database.write(write)

    # --- turns --------------------------------------------------------------------------------------------------------
    async def accept(self, turn: StoredTurn, *, queued: bytes | None = None) -> StoredTurn | None:
        """Records a new turn. Gives the one that is recorded already under this key, and records nothing then.

        `queued`: the client's request, for a turn that waits; it and the turn are one transaction.
        """

        def write(db: sqlite_utils.Database) -> StoredTurn | None:
            found = _find(db, turn.key)
            if found is not None:
                return found
            db.conn.execute(
                "INSERT INTO conversations (tenant, conversation_id, agent, settled_turns) VALUES (?, ?, ?, 0) "
                "ON CONFLICT (tenant, conversation_id) DO NOTHING",
                (turn.key.tenant, turn.key.conversation_id, turn.agent),
            )
            db.conn.execute(
                "INSERT INTO turns (tenant, conversation_id, turn_id, message_digest, message_length, agent, "
                "accepted_at_ms, is_over, snapshot, refusal) VALUES (?, ?, ?, ?, ?, ?, ?, 0, ?, NULL)",
                (
                    *_key(turn.key),
                    turn.message_digest,
                    turn.message_length,
                    turn.agent,
                    turn.accepted_at_ms,
                    turn.snapshot.SerializeToString(),
                ),
            )
            if queued is not None:
                db.conn.execute(
                    "INSERT INTO queue (tenant, conversation_id, turn_id, request) VALUES (?, ?, ?, ?)",
                    (*_key(turn.key), queued),
                )
            return None

        return await self._database.write(write)

    async def find(self, key: TurnKey) -> StoredTurn | None:
        return await self._database.read(lambda db: _find(db, key))

    async def save_snapshot(self, key: TurnKey, snapshot: runner_pb2.Turn) -> None:
        """The turn as it stands, while it is not over."""

        def write(db: sqlite_utils.Database) -> None:
            db.conn.execute(
                f"UPDATE turns SET snapshot = ? WHERE {_KEY} AND is_over = 0",
                (snapshot.SerializeToString(), *_key(key)),
            )

        await self._database.write(write)

    async def verify_locator(self, key: TurnKey, locator: NativeLocator, snapshot: runner_pb2.Turn) -> None:
        """The runner's own verdict is Confirmed: the locator becomes VERIFIED. Raises LocatorMismatchError."""

        def write(db: sqlite_utils.Database) -> None:
            record = _conversation_of(db, key.conversation)
            _write_locator(db, key.conversation, record.locator.verify(key.turn_id, locator))
            db.conn.execute(
                f"UPDATE turns SET snapshot = ? WHERE {_KEY} AND is_over = 0",
                (snapshot.SerializeToString(), *_key(key)),
            )

        await self._database.write(write)

    async def finish(
        self,
        key: TurnKey,
        *,
        snapshot: runner_pb2.Turn,
        refusal: Cause | None = None,
        save: NativeLocator | None = None,
    ) -> None:
        """The turn is over. `save`: both sides confirmed this locator, it becomes SAVED; else what this turn verified is
        dropped. Raises LocatorMismatchError, and records nothing, when `save` is not what was verified.
        """

        def write(db: sqlite_utils.Database) -> None:
            record = _conversation_of(db, key.conversation)
            if save is not None:
                _write_locator(db, key.conversation, record.locator.save(key.turn_id, save))
                db.conn.execute(
                    "UPDATE conversations SET settled_turns = settled_turns + 1, last_settled_turn = ? "
                    "WHERE tenant = ? AND conversation_id = ?",
                    (key.turn_id, key.tenant, key.conversation_id),
                )
            elif record.locator.verified_by == key.turn_id:
                _write_locator(db, key.conversation, record.locator.discard(key.turn_id))
            db.conn.execute(
                f"UPDATE turns SET is_over = 1, snapshot = ?, refusal = ? WHERE {_KEY}",
                (snapshot.SerializeToString(), _refusal_text(refusal), *_key(key)),
            )
            db.conn.execute(f"DELETE FROM queue WHERE {_KEY}", _key(key))

        await self._database.write(write)

    async def forget(self, key: TurnKey) -> None:
        """Takes an unfinished turn out of the record: nothing of it was sent."""

        def write(db: sqlite_utils.Database) -> None:
            db.conn.execute(f"DELETE FROM turns WHERE {_KEY} AND is_over = 0", _key(key))

        await self._database.write(write)

    async def unresolved(self) -> list[StoredTurn]:
        """The turns that were not over when the runner stopped, oldest first; those that wait in a queue apart."""
        return await self._database.read(
            lambda db: [
                _turn(row)
                for row in _rows(
                    db,
                    "SELECT * FROM turns WHERE is_over = 0 AND NOT EXISTS (SELECT 1 FROM queue WHERE "
                    "queue.tenant = turns.tenant AND queue.conversation_id = turns.conversation_id AND "
                    "queue.turn_id = turns.turn_id) ORDER BY accepted_at_ms, turn_id",
                    (),
                )
            ]
        )

    # --- the queue ----------------------------------------------------------------------------------------------------
    async def queued(self) -> list[tuple[StoredTurn, bytes]]:
        """Every turn that waits, with the client's request, in the order in which they came."""
        return await self._database.read(
            lambda db: [
                (_turn(row), bytes(row["request"]))
                for row in _rows(
                    db,
                    "SELECT turns.*, queue.request FROM queue JOIN turns USING (tenant, conversation_id, turn_id) "
                    "WHERE turns.is_over = 0 ORDER BY queue.position",
                    (),
                )
            ]
        )

    async def dequeue(self, key: TurnKey) -> None:
        """The turn's message may be sent from now on: it is not in the queue any more. May be called again."""

        def write(db: sqlite_utils.Database) -> None:
            db.conn.execute(f"DELETE FROM queue WHERE {_KEY}", _key(key))

        await self._database.write(write)

    async def record_hold(self, key: ConversationKey, hold: Hold | None) -> None:
        """Why the conversation's queue is held; None: it is not."""

        def write(db: sqlite_utils.Database) -> None:
            conversation = (key.tenant, key.conversation_id)
            db.conn.execute("DELETE FROM queue_holds WHERE tenant = ? AND conversation_id = ?", conversation)
            if hold is not None:
                outcome = hold.outcome.value if hold.outcome is not None else None
                db.conn.execute(
                    "INSERT INTO queue_holds (tenant, conversation_id, after_turn, outcome, reason) VALUES (?, ?, ?, ?, ?)",
                    (*conversation, hold.after_turn, outcome, hold.reason),
                )

        await self._database.write(write)

    async def holds(self) -> dict[ConversationKey, Hold]:
        """The queues that are held."""
        return await self._database.read(
            lambda db: {
                ConversationKey(row["tenant"], row["conversation_id"]): Hold(
                    row["after_turn"], Outcome(row["outcome"]) if row["outcome"] is not None else None, row["reason"]
                )
                for row in _rows(db, "SELECT * FROM queue_holds", ())
            }
        )

    async def list_turns(self, key: ConversationKey, *, offset: int, limit: int) -> list[StoredTurn]:
        """Oldest first."""
        return await self._database.read(
            lambda db: [
                _turn(row)
                for row in _rows(
                    db,
                    "SELECT * FROM turns WHERE tenant = ? AND conversation_id = ? "
                    "ORDER BY accepted_at_ms, turn_id LIMIT ? OFFSET ?",
                    (key.tenant, key.conversation_id, limit, offset),
                )
            ]
        )

    # --- conversations ------------------------------------------------------------------------------------------------
    async def conversation(self, key: ConversationKey) -> StoredConversation | None:
        return await self._database.read(lambda db: _conversation(db, key))

    async def save_for_former_turn(self, key: TurnKey, locator: NativeLocator) -> None:
        """Another runner's turn was settled with both verdicts Confirmed, this runner's among them."""

        def write(db: sqlite_utils.Database) -> None:
            record = _conversation_of(db, key.conversation)
            saved = record.locator.verify(key.turn_id, locator).save(key.turn_id, locator)
            _write_locator(db, key.conversation, saved)
            db.conn.execute(
                "UPDATE conversations SET settled_turns = settled_turns + 1, last_settled_turn = ? "
                "WHERE tenant = ? AND conversation_id = ?",
                (key.turn_id, key.tenant, key.conversation_id),
            )

        await self._database.write(write)

    async def remove_conversation(self, key: ConversationKey) -> None:
        """Everything this runner knows of it. The tombstone is the manager's."""

        def write(db: sqlite_utils.Database) -> None:
            for table in ("turns", "conversations", "queue", "queue_holds"):
                db.conn.execute(
                    f"DELETE FROM {table} WHERE tenant = ? AND conversation_id = ?", (key.tenant, key.conversation_id)
                )

        await self._database.write(write)


def _key(key: TurnKey) -> tuple[str, str, str]:
    return (key.tenant, key.conversation_id, key.turn_id)


def _rows(db: sqlite_utils.Database, sql: str, parameters: Sequence[object]) -> list[dict[str, Any]]:
    cursor: sqlite3.Cursor = db.conn.execute(sql, tuple(parameters))
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _find(db: sqlite_utils.Database, key: TurnKey) -> StoredTurn | None:
    rows = _rows(db, f"SELECT * FROM turns WHERE {_KEY}", _key(key))
    return _turn(rows[0]) if rows else None


def _turn(row: dict[str, Any]) -> StoredTurn:
    return StoredTurn(
        key=TurnKey(row["tenant"], row["conversation_id"], row["turn_id"]),
        message_digest=row["message_digest"],
        message_length=row["message_length"],
        agent=row["agent"],
        accepted_at_ms=row["accepted_at_ms"],
        is_over=bool(row["is_over"]),
        snapshot=runner_pb2.Turn.FromString(row["snapshot"]),
        refusal=_refusal(row["refusal"]),
    )


def _conversation(db: sqlite_utils.Database, key: ConversationKey) -> StoredConversation | None:
    rows = _rows(
        db, "SELECT * FROM conversations WHERE tenant = ? AND conversation_id = ?", (key.tenant, key.conversation_id)
    )
    if not rows:
        return None
    row = rows[0]
    return StoredConversation(
        key=key,
        agent=row["agent"],
        settled_turns=row["settled_turns"],
        last_settled_turn=row["last_settled_turn"],
        locator=LocatorRecord(_locator(row, "saved"), _locator(row, "verified"), row["verified_by"]),
    )


def _conversation_of(db: sqlite_utils.Database, key: ConversationKey) -> StoredConversation:
    found = _conversation(db, key)
    if found is None:
        raise LookupError(f"conversation {key} has no record; it is made when its first turn is accepted")
    return found


def _locator(row: dict[str, Any], prefix: str) -> NativeLocator | None:
    if row[f"{prefix}_session_id"] is None:
        return None
    return NativeLocator(
        agent=row[f"{prefix}_agent"],
        native_session_id=row[f"{prefix}_session_id"],
        cwd=row[f"{prefix}_cwd"],
        store=row[f"{prefix}_store"],
    )


def _write_locator(db: sqlite_utils.Database, key: ConversationKey, record: LocatorRecord) -> None:
    columns = [f"{prefix}_{name} = ?" for prefix in ("saved", "verified") for name in _LOCATOR_COLUMNS]
    values: list[str | None] = []
    for locator in (record.saved, record.verified):
        values += (
            [None] * len(_LOCATOR_COLUMNS)
            if locator is None
            else [locator.native_session_id, locator.cwd, locator.store, locator.agent]
        )
    db.conn.execute(
        f"UPDATE conversations SET {', '.join(columns)}, verified_by = ? WHERE tenant = ? AND conversation_id = ?",
        (*values, record.verified_by, key.tenant, key.conversation_id),
    )


def _refusal_text(refusal: Cause | None) -> str | None:
    if refusal is None:
        return None
    return json.dumps({"reason": refusal.reason, "message": refusal.message, "metadata": dict(refusal.metadata)})


def _refusal(text: str | None) -> Cause | None:
    if text is None:
        return None
    found = json.loads(text)
    return Cause(found["reason"], found["message"], tuple(sorted(found["metadata"].items())))
