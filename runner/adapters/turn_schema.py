"""The runner's store: its tables, and how they came about. `runner.sqlite` in the runner's state folder, synced at every
write; the events of turns lie beside it (`event_store.py`).
"""

from __future__ import annotations

from typing import Any

import sqlite_utils
from sqlite_utils import Migrations

migrations = Migrations("standfast.runner")


@migrations()
def m001_turns(db: sqlite_utils.Database) -> None:
    """Turns, and conversations with their locator record.

    `turns.is_over` 0 marks what must be resolved after a restart. `turns.snapshot` is the proto that a client gets.
    `refusal` is JSON, set for a turn that was refused. A locator is four columns, all or none.
    """
    identity: Any = db["identity"]
    identity.create({"name": str, "value": str}, pk="name", not_null={"name", "value"})
    turns: Any = db["turns"]
    turns.create(
        {
            "tenant": str,
            "conversation_id": str,
            "turn_id": str,
            "message_digest": str,
            "message_length": int,
            "agent": str,
            "accepted_at_ms": int,
            "is_over": int,
            "snapshot": bytes,
            "refusal": str,
        },
        pk=("tenant", "conversation_id", "turn_id"),
        not_null={
            "tenant",
            "conversation_id",
            "turn_id",
            "message_digest",
            "message_length",
            "agent",
            "accepted_at_ms",
            "is_over",
            "snapshot",
        },
    )
    db.conn.execute("CREATE INDEX turns_open ON turns (tenant, conversation_id, turn_id) WHERE is_over = 0")
    turns.create_index(["tenant", "conversation_id", "accepted_at_ms"])
    conversations: Any = db["conversations"]
    conversations.create(
        {
            "tenant": str,
            "conversation_id": str,
            "agent": str,
            "settled_turns": int,
            "last_settled_turn": str,
            "saved_session_id": str,
            "saved_cwd": str,
            "saved_store": str,
            "saved_agent": str,
            "verified_session_id": str,
            "verified_cwd": str,
            "verified_store": str,
            "verified_agent": str,
            "verified_by": str,
        },
        pk=("tenant", "conversation_id"),
        not_null={"tenant", "conversation_id", "agent", "settled_turns"},
    )


@migrations()
def m002_queue(db: sqlite_utils.Database) -> None:
    """Messages that wait, and why a conversation's queue is held.

    A row of `queue` belongs to a row of `turns` that is not over; it goes right before its message may be sent, or with the
    turn's end. `position` is their order. `request` is the client's StartTurnRequest as it came.
    """
    db.conn.execute(
        "CREATE TABLE queue (position INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, conversation_id TEXT NOT NULL, "
        "turn_id TEXT NOT NULL, request BLOB NOT NULL, UNIQUE (tenant, conversation_id, turn_id)) STRICT"
    )
    db.conn.execute(
        "CREATE TABLE queue_holds (tenant TEXT NOT NULL, conversation_id TEXT NOT NULL, after_turn TEXT NOT NULL, outcome TEXT, "
        "reason TEXT NOT NULL, PRIMARY KEY (tenant, conversation_id)) STRICT, WITHOUT ROWID"
    )
