"""One open session: its history in memory and its journal on disk, in step. A record is in the history once it is durable."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from direct_agent.session.errors import SessionError
from direct_agent.session.history import History
from direct_agent.session.journal import Journal, Reach
from direct_agent.session.records import Record, decode, encode

NowMs = Callable[[], int]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _nothing(_point: str) -> None:
    pass


class Session:
    """Made by `SessionFolder`. All writing goes through one thread, in the order in which it was asked for."""

    def __init__(self, path: Path, journal: Journal, history: History, *, now_ms: NowMs = _now_ms) -> None:
        self.path = path
        self.history = history
        self._journal = journal
        self._now_ms = now_ms
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="session")

    @property
    def session_id(self) -> str:
        header = self.history.header
        assert header is not None
        return header.session_id

    def close(self) -> None:
        """Waits for a write that is under way. Repeating it changes nothing."""
        self._pool.shutdown(wait=True)
        self._journal.close()

    async def append(self, *entries: tuple[str, Mapping[str, Any], str | None]) -> tuple[str, ...]:
        """Appends (kind, data, id or None) together and gives their ids, once all of them are durable.

        Raises SessionWriteError; then none of them counts. A caller that is cancelled meanwhile learns it only after the write.
        """
        records, parent = [], self.history.last_record_id
        for kind, data, id_ in entries:
            record = Record(kind, id_ or str(uuid.uuid4()), parent, self._now_ms(), data)
            records.append(record)
            parent = record.id
        # Read back from the very line that is written, so that a load gives the same values.
        lines = [encode(record) for record in records]
        write = asyncio.get_running_loop().run_in_executor(self._pool, self._journal.append, lines)
        is_cancelled = False
        while not write.done():
            try:
                await asyncio.shield(write)
            except asyncio.CancelledError:
                is_cancelled = True
        write.result()
        for line in lines:
            again = decode(line[:-1], 0)
            assert isinstance(again, Record), "a record that was written can be read"
            self.history.add(again)
        if is_cancelled:
            raise asyncio.CancelledError
        return tuple(record.id for record in records)


class SessionFolder:
    """All sessions of one home: `HOME/.standfast-direct/sessions/ID.jsonl`. Blocking."""

    def __init__(self, home: Path, *, reach: Reach = _nothing, now_ms: NowMs = _now_ms) -> None:
        self.folder = home / ".standfast-direct" / "sessions"
        self._reach = reach
        self._now_ms = now_ms

    def path_of(self, session_id: str) -> Path:
        """Raises SessionError for an id that is no plain name."""
        if not _is_plain(session_id):
            raise SessionError("NO_SUCH_SESSION", "expected a session id of letters, digits, '-' and '_'")
        return self.folder / f"{session_id}.jsonl"

    def create(self, session_id: str, *, cwd: str, agent_version: str) -> Session:
        """A new, empty session. It is on disk before anything is said about it."""
        data = {"session_id": session_id, "cwd": cwd, "agent_version": agent_version, "forked_from": None}
        header = Record("session", str(uuid.uuid4()), None, self._now_ms(), data)
        return self._loaded(session_id, Journal.create(self.path_of(session_id), [encode(header)], reach=self._reach))

    def open(self, session_id: str) -> Session:
        """A session that is kept. Raises SessionError."""
        return self._loaded(session_id, Journal.open(self.path_of(session_id), reach=self._reach))

    def fork(self, session_id: str, child_id: str, *, after: str | None = None) -> Session:
        """A copy under a new id, up to the end of the turn with the message id `after`, or of the newest ended turn.

        No prompt, no model call. The records are copied byte for byte, also those that this version does not read; only the header
        is the child's own. Asking again for the same child gives the same child. Raises SessionError.
        """
        source = Journal.open(self.path_of(session_id), reach=self._reach)
        try:
            lines = source.read()
        finally:
            source.close()
        # The whole source must be sound, not only the part that is copied.
        history = History.load([decode(line, number) for number, line in enumerate(lines, 1)], session_id=session_id)
        kept = _until_end_of(lines, after)
        assert history.header is not None
        header = decode(lines[0], 1)
        assert isinstance(header, Record)
        data = {**header.data, "session_id": child_id, "forked_from": session_id}
        # The same record id as the source's header: what follows hangs from it.
        first = encode(Record("session", header.id, None, self._now_ms(), data))
        path = self.path_of(child_id)
        if path.exists():
            return self._same_child(child_id, session_id)
        lines_out = [first, *(line + b"\n" for line in kept)]
        return self._loaded(child_id, Journal.create(path, lines_out, reach=self._reach))

    def _same_child(self, child_id: str, session_id: str) -> Session:
        child = self.open(child_id)
        header = child.history.header
        if header is None or header.forked_from != session_id:
            child.close()
            raise SessionError("SESSION_EXISTS", f"expected no session {child_id}, or a fork of {session_id}")
        return child

    def _loaded(self, session_id: str, journal: Journal) -> Session:
        try:
            lines = [decode(line, number) for number, line in enumerate(journal.read(), 1)]
            history = History.load(lines, session_id=session_id)
        except BaseException:
            journal.close()
            raise
        return Session(self.path_of(session_id), journal, history, now_ms=self._now_ms)


def _until_end_of(lines: Sequence[bytes], message_id: str | None) -> Sequence[bytes]:
    """The lines after the header up to the wanted `end` record, and what belongs to no turn right after it."""
    end = 0
    for at, line in enumerate(lines):
        record = decode(line, at + 1)
        if isinstance(record, Record) and record.kind == "end" and message_id in (None, record.text("message_id")):
            end = at
    if message_id is not None and end == 0:
        raise SessionError("NO_SUCH_SESSION", f"expected an ended turn {message_id} in the session, found none")
    return lines[1 : end + 1]


def _is_plain(name: str) -> bool:
    return 0 < len(name) <= 100 and name.isascii() and all(char.isalnum() or char in "-_" for char in name)
