"""Runs several write functions in one SQLite transaction, each in its own savepoint. On the writer thread only.

What it promises: an item without an error was committed; an item with one has left nothing behind, or (a function
that committed against the rules) nothing that anybody was told is there.
"""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import sqlite_utils

from standfast_chassis.errors import StoreError
from standfast_chassis.sqlite_faults import store_error

T = TypeVar("T")

_SAVEPOINT = "standfast_write"


class Write:
    """One queued function and the future of its caller. `fn` gets the database, its result goes to the caller."""

    __slots__ = ("abandoned", "error", "fn", "future", "result")

    def __init__(self, fn: Callable[[sqlite_utils.Database], Any], future: asyncio.Future[Any]) -> None:
        self.fn = fn
        self.future = future
        self.abandoned = False
        self.result: Any = None
        self.error: BaseException | None = None

    def settle(self) -> None:
        """On the loop: hands the result over, unless the caller has gone."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


def commit_together(db: sqlite_utils.Database, items: Iterable[Write], path: Path) -> None:
    """Runs the items and commits them; sets each one's result or error. `path`: named in errors.

    Raises what BEGIN raises (another process holds the lock, say): then the items without an error were not run.
    """
    left = deque(items)
    while left:
        _one_transaction(db, left, path)


def _one_transaction(db: sqlite_utils.Database, left: deque[Write], path: Path) -> None:
    conn = db.conn
    done: list[Write] = []
    conn.execute("BEGIN IMMEDIATE")
    while left:
        item = left.popleft()
        done.append(item)
        _run_one(db, item, path)
        if not conn.in_transaction:
            # SQLite undoes the whole transaction by itself on some errors (no space, an I/O error), and a function may
            # have ended it against the rules. The writes before it are undone, or not known to be durable.
            _fail(done, item.error or _ended_by_function(path), path)
            return
    try:
        conn.execute("COMMIT")
    except sqlite3.Error as error:
        if conn.in_transaction:
            conn.execute("ROLLBACK")
        _fail(done, error, path)


def _run_one(db: sqlite_utils.Database, item: Write, path: Path) -> None:
    conn = db.conn
    conn.execute(f"SAVEPOINT {_SAVEPOINT}")
    try:
        item.result = plain_result(item.fn(db))
        if conn.in_transaction:
            conn.execute(f"RELEASE SAVEPOINT {_SAVEPOINT}")
    except BaseException as error:  # noqa: BLE001 - handed to the caller, whose function this is
        item.error = translated(error, path)
        if conn.in_transaction:
            _undo_one(conn)


def _undo_one(conn: sqlite3.Connection) -> None:
    try:
        conn.execute(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
        conn.execute(f"RELEASE SAVEPOINT {_SAVEPOINT}")
    except sqlite3.Error:
        # The function ended the transaction and began another: nothing of that may be committed either.
        if conn.in_transaction:
            conn.execute("ROLLBACK")


def _fail(items: list[Write], cause: BaseException, path: Path) -> None:
    for item in items:
        if item.error is None:
            item.result = None
            item.error = translated(cause, path)


def _ended_by_function(path: Path) -> StoreError:
    return StoreError(
        f"{path}: a write function ended the shared transaction. It must not commit or roll back.", {"path": path}
    )


def translated(error: BaseException, path: Path) -> BaseException:
    """What the caller of a store function gets for this error."""
    ours = store_error(error, path)
    if ours is not None and ours is not error:
        ours.__cause__ = error
        return ours
    if isinstance(error, StopIteration):
        # A future cannot carry it.
        return RuntimeError("a store function raised StopIteration")
    return error


def plain_result(result: T) -> T:
    """Refuses what would still need the connection, on the wrong thread, when the caller looks at it."""
    if inspect.isgenerator(result) or inspect.iscoroutine(result) or isinstance(result, sqlite3.Cursor):
        raise TypeError(
            f"a store function returned a {type(result).__name__}; expected plain values. "
            "Turn rows into a list (`list(db.query(...))`) inside the function."
        )
    return result
