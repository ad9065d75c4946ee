"""A durable SQLite store: one thread owns the writing connection, and writes that meet share one fsync.

    write(fn) ──▶ queue ──▶ writer thread: BEGIN IMMEDIATE · savepoint per fn · COMMIT ──▶ futures resolve
    read(fn)  ──────────────▶ reader thread: BEGIN · fn · ROLLBACK (a snapshot of what is committed)

It knows nothing about what is stored. Durability: a write's future resolves only after COMMIT returned, in WAL mode
with synchronous=FULL, so after a power loss or kill -9 what was confirmed is there.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypeVar

import sqlite_utils
from sqlite_utils import Migrations

from standfast_chassis.errors import (
    StoreBusyError,
    StoreClosedError,
    StoreError,
    StoreForeignError,
    StoreTooNewError,
)
from standfast_chassis.group_commit import Write, commit_together, plain_result, translated
from standfast_chassis.sqlite_faults import store_error, store_unwritable

T = TypeVar("T")
Synchronous = Literal["FULL", "NORMAL", "OFF"]


class Database:
    """An open store. Use it as `async with Database(path, migrations) as db:`.

    `path`: the file; its folder must exist. `migrations`: the store's whole history, with a name of its own; a file
    with a migration that is not among them is refused. `queue_max`: calls that may wait, for writes and reads each.
    `busy_timeout_s`: how long SQLite waits for another process's lock. `close_timeout_s`: bound of close().
    `synchronous`: "FULL" is the only value that keeps the promise above; others are for measurements.
    """

    def __init__(
        self,
        path: Path | str,
        migrations: Migrations,
        *,
        synchronous: Synchronous = "FULL",
        queue_max: int = 4096,
        batch_max: int = 512,
        busy_timeout_s: float = 5.0,
        close_timeout_s: float = 10.0,
    ) -> None:
        self.path = Path(path)
        self._migrations = migrations
        self._synchronous = synchronous
        self._queue_max = queue_max
        self._batch_max = batch_max
        self._busy_timeout_s = busy_timeout_s
        self._close_timeout_s = close_timeout_s
        self._queue: deque[Write] = deque()
        self._queue_lock = threading.Lock()
        self._is_draining = False
        self._reads_waiting = 0
        self._state: Literal["NEW", "OPEN", "CLOSING", "CLOSED"] = "NEW"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writer: ThreadPoolExecutor | None = None
        self._reader: ThreadPoolExecutor | None = None
        self._write_db: sqlite_utils.Database | None = None
        self._read_db: sqlite_utils.Database | None = None
        self._close_task: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------ life

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Opens the file, refuses one that is newer or foreign, applies missing migrations. Raises StoreError."""
        if self._state != "NEW":
            raise StoreClosedError(
                f"{self.path} was opened before (it is {self._state}); make a new Database.", {"path": self.path}
            )
        self._loop = asyncio.get_running_loop()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="store-writer")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="store-reader")
        try:
            await self._loop.run_in_executor(self._writer, self._open_writer)
            await self._loop.run_in_executor(self._reader, self._open_reader)
        except BaseException as error:
            self._state = "CLOSED"
            self._writer.submit(self._close_connections)
            self._writer.shutdown(wait=False)
            self._reader.shutdown(wait=False)
            if (ours := store_error(error, self.path)) is not None and ours is not error:
                raise ours from error
            raise
        self._state = "OPEN"

    async def close(self) -> None:
        """Finishes what is queued, then closes. May be called again, also while closing. Bounded."""
        if self._state in ("NEW", "CLOSED"):
            self._state = "CLOSED"
            return
        if self._close_task is None:
            self._state = "CLOSING"
            self._close_task = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._close_task)

    async def _close(self) -> None:
        assert self._loop is not None
        assert self._writer is not None
        assert self._reader is not None
        try:
            async with asyncio.timeout(self._close_timeout_s):
                # Behind whatever drain is under way: the executor has one thread and keeps the order.
                await self._loop.run_in_executor(self._writer, self._drain)
                await self._loop.run_in_executor(self._reader, self._close_reader)
                await self._loop.run_in_executor(self._writer, self._close_connections)
        except TimeoutError:
            # A commit that hangs in the kernel cannot be interrupted. What it holds was never confirmed.
            self._fail_queued(
                StoreClosedError(
                    f"{self.path} did not finish its writes within {self._close_timeout_s} s of closing. "
                    "Look at the disk; nothing unconfirmed may be relied on.",
                    {"path": self.path},
                )
            )
        finally:
            self._state = "CLOSED"
            self._writer.shutdown(wait=False, cancel_futures=True)
            self._reader.shutdown(wait=False, cancel_futures=True)

    # ----------------------------------------------------------------- calls

    async def write(self, fn: Callable[[sqlite_utils.Database], T]) -> T:
        """Runs `fn(db)` on the writer thread and returns its result once that is durable.

        `fn` runs inside a savepoint of a transaction that it shares with other writes: it must not commit, and only
        reads and writes the database. If it raises, its own changes are undone and the exception is raised here. If
        the shared COMMIT fails, everything in it is undone and all its callers get the error. A caller that is
        cancelled before its function began has written nothing; after that the write goes on.
        """
        self._require_open()
        assert self._loop is not None
        item = Write(fn, self._loop.create_future())
        with self._queue_lock:
            if len(self._queue) >= self._queue_max:
                raise self._queue_full("writes")
            self._queue.append(item)
            start = not self._is_draining
            self._is_draining = True
        if start:
            assert self._writer is not None
            self._writer.submit(self._drain)
        try:
            result: T = await item.future
        except asyncio.CancelledError:
            item.abandoned = True
            raise
        return result

    async def read(self, fn: Callable[[sqlite_utils.Database], T]) -> T:
        """Runs `fn(db)` on a second connection that cannot write; it sees one snapshot of what is committed."""
        self._require_open()
        assert self._loop is not None
        if self._reads_waiting >= self._queue_max:
            raise self._queue_full("reads")
        self._reads_waiting += 1
        try:
            return await self._loop.run_in_executor(self._reader, self._run_read, fn)
        except (sqlite3.Error, OSError) as error:
            if (ours := store_error(error, self.path)) is not None:
                raise ours from error
            raise
        finally:
            self._reads_waiting -= 1

    def _require_open(self) -> None:
        if self._state != "OPEN":
            raise StoreClosedError(
                f"{self.path} is {self._state}: expected it open. Nothing was read or written.", {"path": self.path}
            )

    def _queue_full(self, what: str) -> StoreBusyError:
        return StoreBusyError(
            f"{self.path}: {self._queue_max} {what} are waiting already, which is the bound. Nothing was written; "
            "retry after a pause, and look at the disk if this lasts.",
            {"path": self.path, "queue_max": self._queue_max},
        )

    # ------------------------------------------------------ on the writer thread

    def _open_writer(self) -> None:
        if not self.path.exists():
            # Made before SQLite does, so that it, its -wal and its -shm are readable by the owner alone.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        elif not os.access(self.path, os.W_OK):
            raise store_unwritable(self.path, "this process may not write it")
        db = self._connect()
        self._write_db = db
        mode = db.conn.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        if mode != "wal":
            raise store_unwritable(self.path, f"expected journal mode wal, found {mode}")
        db.conn.execute(f"PRAGMA synchronous={self._synchronous}")
        self._refuse_unknown_migrations(db)
        self._migrations.apply(db)

    def _connect(self) -> sqlite_utils.Database:
        conn = sqlite3.connect(
            self.path, timeout=self._busy_timeout_s, isolation_level=None, check_same_thread=True, cached_statements=512
        )
        conn.execute("PRAGMA foreign_keys=ON")
        # strict=True makes every table that sqlite-utils creates a STRICT one: a wrong type is refused, not coerced.
        return sqlite_utils.Database(conn, strict=True, execute_plugins=False)

    def _refuse_unknown_migrations(self, db: sqlite_utils.Database) -> None:
        if Migrations.migrations_table not in db.table_names():
            return
        # Nothing is applied to an empty database, so there every registered migration is pending.
        empty = sqlite_utils.Database(memory=True)
        registered = {migration.name for migration in self._migrations.pending(empty)}
        empty.close()
        applied = [migration.name for migration in self._migrations.applied(db)]
        unknown = [name for name in applied if name not in registered]
        if unknown:
            raise StoreTooNewError(
                f"{self.path} was written by a newer release: it has {', '.join(unknown)}, which this release does "
                "not know. Nothing was changed; start the newer release again.",
                {"path": self.path, "unknown_migrations": ",".join(unknown)},
            )
        rows = db.conn.execute(f"SELECT DISTINCT migration_set FROM [{Migrations.migrations_table}]").fetchall()
        foreign = sorted({str(row[0]) for row in rows} - {self._migrations.name})
        if foreign:
            raise StoreForeignError(
                f"{self.path} is a store of {', '.join(foreign)}; expected one of {self._migrations.name}. "
                "Nothing was changed; give each process a state folder of its own.",
                {"path": self.path, "found": ",".join(foreign), "expected": self._migrations.name},
            )

    def _drain(self) -> None:
        """Commits batch after batch until nothing is queued. The outermost loop of the writer thread."""
        while True:
            with self._queue_lock:
                batch: list[Write] = []
                while self._queue and len(batch) < self._batch_max:
                    batch.append(self._queue.popleft())
                if not batch:
                    self._is_draining = False
                    return
            batch = [item for item in batch if not item.abandoned]
            if not batch:
                continue
            try:
                self._commit(batch)
            except BaseException as error:  # noqa: BLE001 - the outermost frame of the thread's work
                # Whatever went wrong outside the functions themselves: nobody's write may be taken for durable.
                for item in batch:
                    item.error = item.error or translated(error, self.path)
            self._hand_over(batch)

    def _commit(self, batch: list[Write]) -> None:
        assert self._write_db is not None
        commit_together(self._write_db, batch, self.path)

    def _hand_over(self, batch: list[Write]) -> None:
        assert self._loop is not None
        # RuntimeError: the loop was closed without closing the store. What is committed stays committed.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(_settle_all, batch)

    def _fail_queued(self, error: StoreError) -> None:
        with self._queue_lock:
            left = list(self._queue)
            self._queue.clear()
        for item in left:
            item.error = error
            item.settle()

    def _close_connections(self) -> None:
        if self._write_db is not None:
            self._write_db.conn.close()
            self._write_db = None

    # ------------------------------------------------------ on the reader thread

    def _open_reader(self) -> None:
        db = self._connect()
        db.conn.execute("PRAGMA query_only=ON")
        self._read_db = db

    def _run_read(self, fn: Callable[[sqlite_utils.Database], T]) -> T:
        assert self._read_db is not None
        conn = self._read_db.conn
        conn.execute("BEGIN")
        try:
            return plain_result(fn(self._read_db))
        finally:
            if conn.in_transaction:
                conn.execute("ROLLBACK")

    def _close_reader(self) -> None:
        if self._read_db is not None:
            self._read_db.conn.close()
            self._read_db = None


def _settle_all(batch: list[Write]) -> None:
    for item in batch:
        item.settle()
