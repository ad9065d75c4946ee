"""The store: durable writes that share a commit, isolated from each other, with the disk's faults as named errors."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import sqlite_utils
from sqlite_utils import Migrations

from standfast_chassis.database import Database
from standfast_chassis.errors import (
    StorageFullError,
    StoreBusyError,
    StoreClosedError,
    StoreDamagedError,
    StoreError,
    StoreForeignError,
    StoreTooNewError,
    StoreUnwritableError,
)


def migrations(name: str = "test", *, later: bool = False) -> Migrations:
    made = Migrations(name)

    @made(name="001_items")
    def items(db: sqlite_utils.Database) -> None:
        db.create_table("items", {"id": int, "text": str}, pk="id")
        db.create_table("parts", {"id": int, "item": int}, pk="id", foreign_keys=[("item", "items", "id")])

    if later:

        @made(name="002_more")
        def more(db: sqlite_utils.Database) -> None:
            db.create_table("more", {"id": int}, pk="id")

    return made


@pytest.fixture
async def db(tmp_path: Path) -> AsyncIterator[Database]:
    async with Database(tmp_path / "store.db", migrations()) as opened:
        yield opened


def insert(text: str) -> Callable[[sqlite_utils.Database], int]:
    def run(db: sqlite_utils.Database) -> int:
        found = db.conn.execute("INSERT INTO items (text) VALUES (?)", [text]).lastrowid
        assert found is not None
        return found

    return run


def texts(db: sqlite_utils.Database) -> list[str]:
    return [row["text"] for row in db.query("SELECT text FROM items ORDER BY id")]


class Gate:
    """Holds the writer thread inside a write until it is let go, so that others queue behind it."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, db: sqlite_utils.Database) -> None:
        self.entered.set()
        assert self.go_on.wait(20)

    async def wait_entered(self) -> None:
        assert await asyncio.to_thread(self.entered.wait, 20)


async def test_a_write_is_seen_by_reads_and_by_other_connections_once_it_returns(db: Database) -> None:
    assert await db.write(insert("one")) == 1
    assert await db.read(texts) == ["one"]
    other = sqlite3.connect(db.path)
    assert other.execute("SELECT text FROM items").fetchall() == [("one",)]
    other.close()


async def test_the_connection_is_set_up_for_durability(db: Database) -> None:
    def pragmas(opened: sqlite_utils.Database) -> list[object]:
        names = ("journal_mode", "synchronous", "foreign_keys")
        return [opened.conn.execute(f"PRAGMA {name}").fetchone()[0] for name in names]

    assert await db.write(pragmas) == ["wal", 2, 1]
    assert {os.stat(f"{db.path}{end}").st_mode & 0o777 for end in ("", "-wal", "-shm")} == {0o600}


async def test_tables_are_strict_and_foreign_keys_hold(db: Database) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        await db.write(lambda opened: opened.conn.execute("INSERT INTO items (id) VALUES ('word')").rowcount)
    with pytest.raises(sqlite3.IntegrityError):
        await db.write(lambda opened: opened.conn.execute("INSERT INTO parts (item) VALUES (77)").rowcount)


async def test_writes_that_are_queued_together_share_one_commit(db: Database) -> None:
    commits: list[str] = []
    await db.write(lambda opened: opened.conn.set_trace_callback(commits.append))
    gate = Gate()
    first = asyncio.create_task(db.write(gate))
    await gate.wait_entered()
    rest = [asyncio.create_task(db.write(insert(f"w{n}"))) for n in range(50)]
    await asyncio.sleep(0)
    commits.clear()
    gate.go_on.set()
    await asyncio.gather(first, *rest)
    # One for the gate's own transaction, one for all that had queued behind it.
    assert commits.count("COMMIT") == 2
    assert len(await db.read(texts)) == 50


async def test_a_function_that_raises_undoes_only_its_own_changes(db: Database) -> None:
    gate = Gate()
    blocker = asyncio.create_task(db.write(gate))
    await gate.wait_entered()

    def half_done(opened: sqlite_utils.Database) -> None:
        opened.table("items").insert({"text": "half"})
        raise LookupError("refused")

    tasks = [asyncio.create_task(db.write(fn)) for fn in (insert("before"), half_done, insert("after"))]
    await asyncio.sleep(0)
    gate.go_on.set()
    await blocker
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [int, LookupError, int]
    assert await db.read(texts) == ["before", "after"]


async def test_nested_atomic_blocks_are_savepoints_inside_the_write(db: Database) -> None:
    def nested(opened: sqlite_utils.Database) -> None:
        opened.table("items").insert({"text": "kept"})
        try:
            with opened.atomic():
                opened.table("items").insert({"text": "undone"})
                raise LookupError
        except LookupError:
            return

    await db.write(nested)
    assert await db.read(texts) == ["kept"]


async def test_a_commit_that_fails_fails_everything_in_it(db: Database) -> None:
    gate = Gate()
    blocker = asyncio.create_task(db.write(gate))
    await gate.wait_entered()

    def broken_later(opened: sqlite_utils.Database) -> None:
        # Deferred: found only at COMMIT.
        opened.conn.execute("PRAGMA defer_foreign_keys=ON")
        opened.conn.execute("INSERT INTO parts (item) VALUES (77)")

    tasks = [asyncio.create_task(db.write(fn)) for fn in (insert("innocent"), broken_later)]
    await asyncio.sleep(0)
    gate.go_on.set()
    await blocker
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [sqlite3.IntegrityError, sqlite3.IntegrityError]
    assert await db.read(texts) == []
    assert await db.write(insert("next")) == 1


@pytest.mark.parametrize("statements", [["COMMIT"], ["ROLLBACK"], ["ROLLBACK", "BEGIN"], ["COMMIT", "BEGIN"]])
async def test_a_function_that_ends_the_shared_transaction_fails_it_but_not_what_is_behind(
    db: Database, statements: list[str]
) -> None:
    gate = Gate()
    blocker = asyncio.create_task(db.write(gate))
    await gate.wait_entered()

    def against_the_rules(opened: sqlite_utils.Database) -> None:
        for statement in statements:
            opened.conn.execute(statement)
        if opened.conn.in_transaction:
            opened.table("items").insert({"text": "smuggled"})

    tasks = [asyncio.create_task(db.write(fn)) for fn in (insert("before"), against_the_rules, insert("behind"))]
    await asyncio.sleep(0)
    gate.go_on.set()
    # The gate's own function is in a transaction before these, which is over by then.
    await blocker
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[0], StoreError | sqlite3.Error)
    assert isinstance(results[1], StoreError | sqlite3.Error)
    assert isinstance(results[2], int)
    found = await db.read(texts)
    assert found[-1] == "behind"
    assert "smuggled" not in found


async def test_a_full_disk_is_named_and_what_was_settled_stays(db: Database) -> None:
    await db.write(insert("settled"))

    def no_more_pages(opened: sqlite_utils.Database) -> None:
        pages = opened.conn.execute("PRAGMA page_count").fetchone()[0]
        opened.conn.execute(f"PRAGMA max_page_count={pages}")

    await db.write(no_more_pages)
    with pytest.raises(StorageFullError) as caught:
        await db.write(insert("x" * 100_000))
    assert caught.value.metadata == {"path": str(db.path)}
    assert "Free space" in caught.value.message
    assert await db.read(texts) == ["settled"]
    await db.write(lambda opened: opened.conn.execute("PRAGMA max_page_count=100000").fetchone())
    await db.write(insert("again"))
    assert await db.read(texts) == ["settled", "again"]


async def test_a_full_disk_in_one_function_does_not_confirm_the_others_wrongly(db: Database) -> None:
    """SQLite may undo the whole transaction by itself; whoever is told "done" must find it done."""

    def no_more_pages(opened: sqlite_utils.Database) -> None:
        pages = opened.conn.execute("PRAGMA page_count").fetchone()[0]
        opened.conn.execute(f"PRAGMA max_page_count={pages + 2}")

    await db.write(no_more_pages)
    names = [f"w{n}" for n in range(20)]
    fns = [insert(name + "x" * (100_000 if n == 10 else 0)) for n, name in enumerate(names)]
    results = await asyncio.gather(*(db.write(fn) for fn in fns), return_exceptions=True)
    confirmed = [name for name, result in zip(names, results, strict=True) if isinstance(result, int)]
    assert await db.read(texts) == confirmed
    assert isinstance(results[10], StorageFullError)


async def test_a_read_cannot_write(db: Database) -> None:
    with pytest.raises(StoreUnwritableError):
        await db.read(insert("sneaky"))
    assert await db.read(texts) == []


@pytest.mark.parametrize("call", ["read", "write"])
async def test_a_lazy_result_is_refused_on_the_right_thread(db: Database, call: str) -> None:
    with pytest.raises(TypeError, match="list"):
        await getattr(db, call)(lambda opened: opened.query("SELECT 1"))
    with pytest.raises(TypeError, match="plain values"):
        await getattr(db, call)(lambda opened: opened.conn.execute("SELECT 1"))
    assert await db.write(insert("still works")) == 1


async def test_more_waiting_writes_than_the_bound_are_refused(tmp_path: Path) -> None:
    async with Database(tmp_path / "store.db", migrations(), queue_max=3) as db:
        gate = Gate()
        blocker = asyncio.create_task(db.write(gate))
        await gate.wait_entered()
        waiting = [asyncio.create_task(db.write(insert(f"w{n}"))) for n in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(StoreBusyError) as caught:
            await db.write(insert("one too many"))
        assert caught.value.metadata["queue_max"] == "3"
        gate.go_on.set()
        await asyncio.gather(blocker, *waiting)
        assert await db.read(texts) == ["w0", "w1", "w2"]


async def test_a_cancelled_caller_whose_function_had_not_begun_has_written_nothing(db: Database) -> None:
    gate = Gate()
    blocker = asyncio.create_task(db.write(gate))
    await gate.wait_entered()
    cancelled = asyncio.create_task(db.write(insert("never")))
    kept = asyncio.create_task(db.write(insert("kept")))
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    gate.go_on.set()
    await asyncio.gather(blocker, kept)
    assert await db.read(texts) == ["kept"]


async def test_close_flushes_what_is_queued_and_may_be_called_again(tmp_path: Path) -> None:
    db = Database(tmp_path / "store.db", migrations())
    await db.open()
    writes = [asyncio.create_task(db.write(insert(f"w{n}"))) for n in range(100)]
    await asyncio.sleep(0)
    await asyncio.gather(db.close(), db.close())
    await asyncio.gather(*writes)
    await db.close()
    with pytest.raises(StoreClosedError):
        await db.write(insert("late"))
    with pytest.raises(StoreClosedError):
        await db.read(texts)
    conn = sqlite3.connect(db.path)
    assert conn.execute("SELECT count(*) FROM items").fetchone() == (100,)
    conn.close()


async def test_close_is_bounded_when_the_disk_hangs(tmp_path: Path) -> None:
    db = Database(tmp_path / "store.db", migrations(), close_timeout_s=0.2)
    await db.open()
    gate = Gate()
    blocker = asyncio.create_task(db.write(gate))
    await gate.wait_entered()
    behind = asyncio.create_task(db.write(insert("behind")))
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await db.close()
    with pytest.raises(StoreClosedError):
        await behind
    gate.go_on.set()
    await blocker


async def test_a_store_of_a_newer_release_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with Database(path, migrations(later=True)) as newer:
        await newer.write(insert("kept"))
    with pytest.raises(StoreTooNewError) as caught:
        await Database(path, migrations()).open()
    assert caught.value.metadata["unknown_migrations"] == "002_more"
    async with Database(path, migrations(later=True)) as newer:
        assert await newer.read(texts) == ["kept"]


async def test_a_store_of_an_older_release_is_brought_up(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with Database(path, migrations()) as older:
        await older.write(insert("kept"))
    async with Database(path, migrations(later=True)) as newer:
        assert "more" in await newer.read(lambda opened: opened.table_names())
        assert await newer.read(texts) == ["kept"]


async def test_a_store_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with Database(path, migrations("manager")):
        pass
    with pytest.raises(StoreForeignError) as caught:
        await Database(path, migrations("runner")).open()
    assert (caught.value.metadata["found"], caught.value.metadata["expected"]) == ("manager", "runner")


async def test_a_damaged_file_is_refused_and_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(b"not a database" * 1000)
    with pytest.raises(StoreDamagedError):
        await Database(path, migrations()).open()
    assert path.read_bytes() == b"not a database" * 1000


async def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnwritableError) as caught:
        await Database(tmp_path / "missing" / "store.db", migrations()).open()
    assert str(tmp_path / "missing") in caught.value.message


async def test_a_file_locked_by_another_process_is_named(tmp_path: Path) -> None:
    async with Database(tmp_path / "store.db", migrations(), busy_timeout_s=0.05) as db:
        other = sqlite3.connect(db.path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusyError, match="locked"):
            await db.write(insert("x"))
        other.execute("ROLLBACK")
        other.close()
        assert await db.write(insert("y")) == 1


_WRITER = """
import asyncio, sys
from pathlib import Path
from tests.unit.chassis.test_database import insert, migrations
from standfast_chassis.database import Database

async def main():
    async with Database(Path(sys.argv[1]), migrations()) as db:
        async def client(n):
            for k in range(10_000):
                await db.write(insert(f"{n}-{k}"))
                print(f"{n}-{k}", flush=True)
        await asyncio.gather(*(client(n) for n in range(8)))

asyncio.run(main())
"""


async def test_what_was_confirmed_survives_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _WRITER, str(path), stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[3]
    )
    assert process.stdout is not None
    confirmed: list[str] = []
    async with asyncio.timeout(60):
        while len(confirmed) < 300:
            confirmed.append((await process.stdout.readline()).decode().strip())
        os.kill(process.pid, signal.SIGKILL)
        confirmed += (await process.stdout.read()).decode().split("\n")[:-1]
        await process.wait()
    async with Database(path, migrations()) as db:
        stored = set(await db.read(texts))
    assert confirmed[-1]
    assert set(confirmed) <= stored
    # At most what each of the eight clients had under way was stored without being confirmed.
    assert len(stored - set(confirmed)) <= 8
