"""The session's file: `$HOME/.claude/projects/<slug>/<session id>.jsonl`.

As in the real program records reach the disk a moment after the events that tell of them (20 to 99 ms here, fixed by the session
id), in one append; an orderly end writes the rest at once, a SIGKILL loses it. A file that cannot be written is no error to it.
"""

from __future__ import annotations

import json
import os
import threading
import time
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import VERSION
from .printer import new_uuid

Record = dict[str, Any]


def slug_of(cwd: str) -> str:
    """The folder name for a working directory."""
    return "".join(c if c.isascii() and c.isalnum() else "-" * (2 if ord(c) > 0xFFFF else 1) for c in cwd)


def path_of(home: str, cwd: str, session_id: str) -> Path:
    """Where the transcript lies."""
    return Path(home) / ".claude" / "projects" / slug_of(cwd) / f"{session_id}.jsonl"


def read_records(path: Path) -> list[Record]:
    """The readable records; lines that are none are passed over in silence, as the real program does."""
    records = []
    with suppress(OSError):
        for line in path.read_bytes().split(b"\n"):
            with suppress(ValueError):
                record = json.loads(line)
                if isinstance(record, dict):
                    records.append(record)
    return records


class Transcript:
    """Appends in the background. `leaf` is the uuid the next record hangs on."""

    def __init__(self, path: Path, session_id: str, cwd: str, leaf: str | None) -> None:
        self.path = path
        self.leaf = leaf
        self.extra_delay_s = 0.0
        self.is_muted = False
        self._session_id = session_id
        self._cwd = cwd
        self._delay_s = 0.02 + zlib.crc32(session_id.encode()) % 80 / 1000
        self._pending: list[Record] = []
        self._deadline: float | None = None
        self._changed = threading.Condition()
        threading.Thread(target=self._flush_when_due, daemon=True).start()

    def chained(self, record: Record, *, uuid: str | None = None, parent: str | None = None) -> str:
        """Adds a record with a uuid, below the leaf (or below `parent`), and makes it the leaf."""
        whole = {
            "parentUuid": self.leaf if parent is None else parent,
            "isSidechain": False,
            **record,
            "uuid": uuid or new_uuid(),
            "timestamp": _now(),
            "userType": "external",
            "entrypoint": "sdk-cli",
            "cwd": self._cwd,
            "sessionId": self._session_id,
            "version": VERSION,
            "gitBranch": "HEAD",
        }
        self.leaf = str(whole["uuid"])
        self._add(whole)
        return self.leaf

    def loose(self, record: Record) -> None:
        """Adds a record that is on no chain."""
        self._add({**record, "sessionId": self._session_id})

    def queue_operation(self, operation: str) -> None:
        """enqueue or dequeue."""
        self._add(
            {"type": "queue-operation", "operation": operation, "timestamp": _now(), "sessionId": self._session_id}
        )

    def turn_ended(self) -> None:
        """Records of a finished turn are on disk no sooner than the delay from now."""
        with self._changed:
            if self._deadline is not None:
                self._deadline = time.monotonic() + self._delay_s + self.extra_delay_s
                self._changed.notify()

    def flush(self) -> None:
        """Writes what is pending now."""
        with self._changed:
            self._write()

    def _add(self, record: Record) -> None:
        if self.is_muted:
            return
        with self._changed:
            self._pending.append(record)
            if self._deadline is None:
                self._deadline = time.monotonic() + self._delay_s + self.extra_delay_s
                self._changed.notify()

    def _flush_when_due(self) -> None:
        while True:
            with self._changed:
                while self._deadline is None or self._deadline > time.monotonic():
                    self._changed.wait(None if self._deadline is None else self._deadline - time.monotonic())
                self._write()

    def _write(self) -> None:
        data = b"".join(
            json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass") + b"\n"
            for record in self._pending
        )
        self._pending.clear()
        self._deadline = None
        if not data:
            return
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
            finally:
                os.close(fd)


def _now() -> str:
    seconds = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds * 1000) % 1000:03d}Z"
