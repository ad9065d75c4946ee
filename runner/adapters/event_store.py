"""The numbered events of turns, in a file of their own: `events.sqlite` beside the runner's store.

An event is on its way to a client as soon as it is written; a kill of the runner loses none. It is not synced to the
disk one by one: that would put a disk's latency before every piece of text, and promise what nobody relies on. What a
power loss takes is read again from the host agent's journal, or said to be missing. The promises (a turn, its end, a
saved locator) are in the runner's store, which is synced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import sqlite_utils
from sqlite_utils import Migrations

from runner.core.values import ConversationKey, TurnKey
from standfast_chassis.database import Database

migrations = Migrations("standfast.runner.events")

_KEY = "tenant = ? AND conversation_id = ? AND turn_id = ?"


@migrations()
def m001_events(db: sqlite_utils.Database) -> None:
    """One row an event. `from_driver`: how many of the turn's events up to this one came from the driver."""
    # Without rowid: events of one turn lie together, and are read in their order.
    db.conn.execute(
        "CREATE TABLE events (tenant TEXT NOT NULL, conversation_id TEXT NOT NULL, turn_id TEXT NOT NULL, "
        "sequence INTEGER NOT NULL, from_driver INTEGER NOT NULL, event BLOB NOT NULL, "
        "PRIMARY KEY (tenant, conversation_id, turn_id, sequence)) STRICT, WITHOUT ROWID"
    )


@dataclass(frozen=True, slots=True)
class NumberedEvent:
    """One event as it is kept: `event` is a serialised TurnEvent."""

    sequence: int
    from_driver: int
    event: bytes


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of a turn's events. `first` and `last` are sequences."""

    first: int
    last: int
    from_driver: int


class EventStore:
    """The store in an open database. The last event of a turn, TurnSettled, is not here: it is the turn itself."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @staticmethod
    def database(path: Path) -> Database:
        """The database for `path`; open it with `async with`."""
        return Database(path, migrations, synchronous="NORMAL")

    async def append(self, key: TurnKey, events: Sequence[NumberedEvent]) -> None:
        """Adds events. The same numbers again replace what was there: a write may be tried twice."""
        if not events:
            return

        def write(db: sqlite_utils.Database) -> None:
            db.conn.executemany(
                "INSERT OR REPLACE INTO events (tenant, conversation_id, turn_id, sequence, from_driver, event) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                [(*_key(key), event.sequence, event.from_driver, event.event) for event in events],
            )

        await self._database.write(write)

    async def events(self, key: TurnKey, *, after_sequence: int, limit: int) -> list[NumberedEvent]:
        """In order."""

        def read(db: sqlite_utils.Database) -> list[NumberedEvent]:
            rows = db.conn.execute(
                f"SELECT sequence, from_driver, event FROM events WHERE {_KEY} AND sequence > ? "
                "ORDER BY sequence LIMIT ?",
                (*_key(key), after_sequence, limit),
            ).fetchall()
            return [NumberedEvent(int(row[0]), int(row[1]), bytes(row[2])) for row in rows]

        return await self._database.read(read)

    async def kept(self, key: TurnKey) -> Kept | None:
        """None when no event is kept."""

        def read(db: sqlite_utils.Database) -> Kept | None:
            row = db.conn.execute(
                f"SELECT MIN(sequence), MAX(sequence), MAX(from_driver) FROM events WHERE {_KEY}", _key(key)
            ).fetchone()
            return None if row[0] is None else Kept(int(row[0]), int(row[1]), int(row[2]))

        return await self._database.read(read)

    async def forget(self, key: TurnKey) -> None:
        def write(db: sqlite_utils.Database) -> None:
            db.conn.execute(f"DELETE FROM events WHERE {_KEY}", _key(key))

        await self._database.write(write)

    async def remove_conversation(self, key: ConversationKey) -> None:
        def write(db: sqlite_utils.Database) -> None:
            db.conn.execute(
                "DELETE FROM events WHERE tenant = ? AND conversation_id = ?", (key.tenant, key.conversation_id)
            )

        await self._database.write(write)


def _key(key: TurnKey) -> tuple[str, str, str]:
    return (key.tenant, key.conversation_id, key.turn_id)
