"""A session of a SQLite store as lines: what lasts is in them, in order and for good; the database itself is only copied."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox_manager.agents.registry import agent_named
from sandbox_manager.core.values import RecordKind
from sandbox_manager.guest.database_reader import read_database
from sandbox_manager.guest.errors import OperationError
from sandbox_manager.guest.layout import Layout, local_layout
from sandbox_manager.guest.reaper import Reaper
from sandbox_manager.guest.store_reader import StoreAsk, StoreReading

SESSION = "ses_1"
TABLES = """
CREATE TABLE session (id text PRIMARY KEY, parent_id text, directory text NOT NULL, title text);
CREATE TABLE message (id text PRIMARY KEY, session_id text NOT NULL, time_created integer NOT NULL, data text NOT NULL);
CREATE TABLE part (id text PRIMARY KEY, message_id text NOT NULL, session_id text NOT NULL, data text NOT NULL);
"""


class Store:
    """A database as the server keeps it: open, in WAL mode, nothing of it in the main file by itself."""

    def __init__(self, folder: Path) -> None:
        for name in ("members/1/home/db", "run/slots/1", "sf/host", "workspace"):
            (folder / name).mkdir(parents=True)
        self.layout: Layout = local_layout(folder, folder / "sf" / "host", folder)
        self.path = folder / "members/1/home/db" / "store.db"
        self.database = sqlite3.connect(self.path)
        self.database.execute("PRAGMA journal_mode=WAL")
        self.database.executescript(TABLES)
        self.database.execute("INSERT INTO session VALUES (?, NULL, '/ws', 'title')", (SESSION,))
        self.database.commit()
        self._time = 0

    def say(self, message: str, role: str, *parts: dict[str, Any], session: str = SESSION, **data: Any) -> None:
        self._time += 1
        content = json.dumps({"role": role, **data})
        self.database.execute("INSERT INTO message VALUES (?, ?, ?, ?)", (message, session, self._time, content))
        for number, part in enumerate(parts):
            row = (f"prt_{message}_{number}", message, session, json.dumps(part))
            self.database.execute("INSERT INTO part VALUES (?, ?, ?, ?)", row)
        self.database.commit()

    def turn(self, number: int, said: str = "hello", answer: str = "hi") -> None:
        self.say(f"msg_{number}u", "user", text(said))
        parts = ({"type": "step-start"}, text(answer), {"type": "step-finish", "tokens": {"input": number}})
        self.say(f"msg_{number}a", "assistant", *parts, parentID=f"msg_{number}u", finish="stop", tokens={"input": 1})


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path)
    yield made
    made.database.close()


@pytest.fixture
async def reaper() -> AsyncIterator[Reaper]:
    made = Reaper()
    loop = asyncio.get_running_loop()
    made.install(loop)
    yield made
    loop.remove_signal_handler(17)


async def read(store: Store, reaper: Reaper, session: str = SESSION, prefix: int = 0) -> StoreReading:
    ask = StoreAsk(1, "home", ("db", "store.db"), prefix, 1 << 20)
    return await read_database(store.layout, reaper, ask, session, "opencode", 30)


def lines_of(reading: StoreReading) -> list[dict[str, Any]]:
    return [json.loads(line) for line in reading.tail.splitlines()]


async def test_the_session_and_its_lasting_messages_are_lines_in_order(store: Store, reaper: Reaper) -> None:
    store.turn(1)
    store.turn(2, "again", "yes")
    reading = await read(store, reaper)
    head, *messages = lines_of(reading)
    assert head == {"kind": "session", "id": SESSION, "directory": "/ws", "parent": None}
    assert [(one["id"], one["prev"], one["under"]) for one in messages] == [
        ("msg_1u", None, None),
        ("msg_1a", "msg_1u", "msg_1u"),
        ("msg_2u", "msg_1a", None),
        ("msg_2a", "msg_2u", "msg_2u"),
    ]
    assert messages[3]["parts"] == [text("yes")]
    assert reading.sha256 == hashlib.sha256(reading.tail).hexdigest()


async def test_a_new_turn_only_adds_lines_and_a_changed_old_byte_shows(store: Store, reaper: Reaper) -> None:
    store.turn(1)
    first = await read(store, reaper)
    store.turn(2)
    second = await read(store, reaper, prefix=first.length)
    assert second.prefix_sha256 == first.sha256
    store.database.execute("UPDATE part SET data = ? WHERE id = 'prt_msg_1a_1'", (json.dumps(text("ho")),))
    store.database.commit()
    assert (await read(store, reaper, prefix=first.length)).prefix_sha256 != first.sha256


async def test_what_a_server_may_still_change_or_take_away_is_not_in_the_lines(store: Store, reaper: Reaper) -> None:
    store.turn(1)
    before = await read(store, reaper)
    store.say("msg_e", "assistant", parentID="msg_1u", error={"name": "APIError"})
    store.say("msg_o", "assistant", text(""), parentID="msg_1u")
    store.database.execute("UPDATE session SET title = 'another'")
    store.database.execute(
        "UPDATE message SET data = json_set(data, '$.tokens.input', 9, '$.summary', json('{}')) WHERE id = 'msg_1u'"
    )
    store.database.commit()
    assert (await read(store, reaper)).sha256 == before.sha256


async def test_a_failed_answer_with_a_text_lasts(store: Store, reaper: Reaper) -> None:
    store.turn(1)
    store.say("msg_p", "assistant", text("half an ans"), parentID="msg_1u", error={"name": "MessageAbortedError"})
    last = lines_of(await read(store, reaper))[-1]
    assert (last["id"], last["error"]) == ("msg_p", "MessageAbortedError")


async def test_another_sessions_messages_are_not_in_the_lines(store: Store, reaper: Reaper) -> None:
    store.turn(1)
    before = await read(store, reaper)
    store.database.execute("INSERT INTO session VALUES ('ses_kid', 'ses_1', '/ws', 't')")
    store.say("msg_k", "user", text("child"), session="ses_kid")
    assert (await read(store, reaper)).sha256 == before.sha256


async def test_a_session_that_is_only_in_the_log_is_absent_without_it(
    store: Store, reaper: Reaper, tmp_path: Path
) -> None:
    store.turn(1)
    await read(store, reaper)
    wal = store.path.with_name("store.db-wal")
    assert wal.stat().st_size > 0
    wal.rename(tmp_path / "gone")
    with pytest.raises(OperationError) as refused:
        await read(store, reaper)
    assert refused.value.reason in ("ABSENT", "UNREADABLE")


@pytest.mark.parametrize("session", ["ses_2", "", "' OR 1=1 --"])
async def test_an_unknown_session_is_absent(store: Store, reaper: Reaper, session: str) -> None:
    with pytest.raises(OperationError) as refused:
        await read(store, reaper, session)
    assert refused.value.reason == "ABSENT"


async def test_a_missing_damaged_or_linked_database_is_refused_with_its_reason(tmp_path: Path, reaper: Reaper) -> None:
    store = Store(tmp_path)
    store.turn(1)
    store.database.close()
    content = store.path.read_bytes()
    store.path.write_bytes(b"this is no database" * 100)
    with pytest.raises(OperationError) as damaged:
        await read(store, reaper)
    store.path.unlink()
    with pytest.raises(OperationError) as missing:
        await read(store, reaper)
    (tmp_path / "elsewhere.db").write_bytes(content)
    store.path.symlink_to(tmp_path / "elsewhere.db")
    with pytest.raises(OperationError) as linked:
        await read(store, reaper)
    assert [one.value.reason for one in (damaged, missing, linked)] == ["UNREADABLE", "ABSENT", "SYMLINK"]


async def test_the_database_is_never_opened_and_no_copy_is_left(store: Store, reaper: Reaper) -> None:
    store.turn(1)
    folder = store.path.parent
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    await read(store, reaper)
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    assert list(store.layout.slots[1].private.iterdir()) == []


async def test_the_sandbox_side_reads_the_lines_as_a_chain(store: Store, reaper: Reaper) -> None:
    agent = agent_named("opencode")
    store.turn(1)
    first = await read(store, reaper)
    segment = agent.read_segment(first.tail, from_start=True)
    kinds = [record.kind for record in segment.records]
    assert kinds == [RecordKind.BOOKKEEPING, RecordKind.USER, RecordKind.ASSISTANT]
    assert (segment.leaf, segment.chain, segment.dangling) == ("msg_1a", ("msg_1a", "msg_1u"), None)
    assert (segment.bad_lines, segment.torn_tail, segment.hanging) == ((), False, ("msg_1a",))
    store.turn(2)
    new = agent.read_segment((await read(store, reaper, prefix=first.length)).tail, from_start=False)
    assert (new.chain, new.chain_exit) == (("msg_2a", "msg_2u"), "msg_1a")
    store.say("msg_3t", "assistant", {"type": "tool", "tool": "bash", "callID": "c", "state": {}}, finish="tool-calls")
    store.say("msg_4s", "user", text("made up", synthetic=True))
    store.say("msg_5c", "user", {"type": "compaction"})
    store.say("msg_6c", "assistant", text("all of it in short"), summary=True, finish="stop")
    rest = agent.read_segment((await read(store, reaper)).tail, from_start=True).records[5:]
    assert [one.kind for one in rest] == [
        RecordKind.TOOL,
        RecordKind.FOREIGN,
        RecordKind.NEW_BASE,
        RecordKind.NEW_BASE,
    ]
