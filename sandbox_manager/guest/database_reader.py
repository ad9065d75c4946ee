"""Renders one session of a slot's SQLite store as lines: one for the session, one for each *lasting* message, in order.

The database itself is never opened. A child under the slot's user copies the file and its `-wal` (again until both are as they were when
the copy began), opens the copy, and writes the lines. The same lines come of the same messages, so a digest from byte 0 shows that an old
one was changed; a new turn adds lines at the end. What a server may still change or take away in an old message (titles, summaries,
times, token counts, an errored empty answer) is not in them.

    {"kind":"session","id":S,"directory":D,"parent":P}
    {"kind":"message","id":M,"prev":M0,"role":R,"under":U,"session":S,"finish":F,"error":E,"parts":[..]}

Lasting: user messages, and assistant messages that ended without an error or hold text. Parts: texts, reasoning, tool calls with their
input and result; marks of steps and snapshots are left out.
"""

import asyncio
import contextlib
import errno
import functools
import json
import os
import shutil
import signal
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .errors import OperationError
from .layout import Layout
from .reaper import Reaper
from .spawn import become, run_forked
from .store_reader import StoreAsk, StoreReading, check_components, check_file, measured, open_store

RENDERERS = ("opencode",)
_TRIES = 20
_ROOM_FACTOR = 3
_CHUNK_BYTES = 1 << 20
_LEFT_OUT = frozenset({"step-start", "step-finish", "snapshot", "patch", "retry"})


async def read_database(
    layout: Layout, reaper: Reaper, ask: StoreAsk, session: str, renderer: str, timeout_s: float
) -> StoreReading:
    """Reads the rendered lines as if they were the store's bytes; raises OperationError."""
    check_components(ask.components)
    sink = os.memfd_create("rendered")
    try:
        pid = run_forked(functools.partial(render, layout, ask, session, renderer, sink))
        try:
            status = await asyncio.wait_for(reaper.exit_of(pid), timeout_s)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            raise OperationError("UNREADABLE", f"the store could not be rendered within {timeout_s} s") from None
        if status.code != 0:
            raise _refusal(status.code)
        os.lseek(sink, 0, os.SEEK_SET)
        return await asyncio.to_thread(measured, sink, os.fstat(sink).st_size, ask)
    finally:
        os.close(sink)


# A forked child has only its exit code, an errno, to say why.
_CODES = {
    "ABSENT": errno.ENOENT,
    "SYMLINK": errno.ELOOP,
    "NOT_REGULAR": errno.ENXIO,
    "OWNER": errno.EPERM,
    "NLINK": errno.EMLINK,
    "ENOSPC": errno.ENOSPC,
}
_REFUSALS = {**{code: reason for reason, code in _CODES.items()}, errno.EDQUOT: "ENOSPC"}


def _refusal(code: int | None) -> OperationError:
    number = code or errno.EIO
    reason = _REFUSALS.get(number, "UNREADABLE")
    return OperationError(reason, f"the store could not be rendered: {os.strerror(number)}", errno=number)


def render(layout: Layout, ask: StoreAsk, session: str, renderer: str, sink: int) -> None:
    """Run in a forked child: becomes the slot, and writes the lines to `sink`. Raises OSError; ENOENT: no such session or store."""
    if renderer not in RENDERERS:
        raise OSError(errno.EINVAL, "no such renderer")
    place = layout.slots[ask.slot]
    become(place)
    folder = None
    try:
        folder = Path(tempfile.mkdtemp(prefix="standfast-copy-", dir=_place_for_copy(layout, ask)))
        copy = folder / "copy.db"
        _copy(layout, ask, copy)
        with os.fdopen(os.dup(sink), "wb") as out:
            for line in _lines(copy, session):
                out.write(json.dumps(line, separators=(",", ":"), sort_keys=True).encode("ascii") + b"\n")
    except sqlite3.Error:
        raise OSError(errno.EIO, "the store is no database that can be read") from None
    except OperationError as error:
        raise OSError(_CODES.get(error.reason, errno.EIO), str(error)) from error
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _place_for_copy(layout: Layout, ask: StoreAsk) -> Path:
    """The slot's private folder lies in memory and is small; a large database is copied beside its home's other files."""
    place = layout.slots[ask.slot]
    sizes = _stamp(layout, ask)
    wanted = _ROOM_FACTOR * sum(stamp[1] for stamp in sizes if stamp is not None)
    space = os.statvfs(place.private)
    return place.private if space.f_bavail * space.f_frsize > wanted else place.home


def _copy(layout: Layout, ask: StoreAsk, target: Path) -> None:
    """Copies file and `-wal`, until neither changed while it was copied."""
    for _ in range(_TRIES):
        before = _stamp(layout, ask)
        _copy_one(layout, ask, target)
        wal = target.with_name(target.name + "-wal")
        wal.unlink(missing_ok=True)
        if before[1] is not None:
            _copy_one(layout, _wal_of(ask), wal)
        if _stamp(layout, ask) == before:
            return
    raise OSError(errno.EBUSY, "the store did not hold still")


def _wal_of(ask: StoreAsk) -> StoreAsk:
    return StoreAsk(ask.slot, ask.base, (*ask.components[:-1], ask.components[-1] + "-wal"), 0, 0)


def _stamp(layout: Layout, ask: StoreAsk) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    return _stamp_one(layout, ask), _optional(lambda: _stamp_one(layout, _wal_of(ask)))


def _stamp_one(layout: Layout, ask: StoreAsk) -> tuple[int, ...]:
    fd = open_store(layout, ask)
    try:
        facts = os.fstat(fd)
    finally:
        os.close(fd)
    check_file(layout, ask, facts)
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


def _optional(read: Callable[[], tuple[int, ...]]) -> tuple[int, ...] | None:
    try:
        return read()
    except OperationError as error:
        if error.reason == "ABSENT":
            return None
        raise


def _copy_one(layout: Layout, ask: StoreAsk, target: Path) -> None:
    with os.fdopen(open_store(layout, ask), "rb", buffering=0) as source, target.open("wb") as sink:
        shutil.copyfileobj(source, sink, _CHUNK_BYTES)


def _lines(copy: Path, session: str) -> Iterator[dict[str, Any]]:
    with sqlite3.connect(copy) as database:
        row = database.execute("SELECT directory, parent_id FROM session WHERE id = ?", (session,)).fetchone()
        if row is None:
            raise OSError(errno.ENOENT, "no such session in the store")
        yield {"kind": "session", "id": session, "directory": row[0], "parent": row[1]}
        previous = None
        messages = "SELECT id, data FROM message WHERE session_id = ? ORDER BY time_created, id"
        for message, data in database.execute(messages, (session,)).fetchall():
            parts = database.execute("SELECT data FROM part WHERE message_id = ? ORDER BY id", (message,)).fetchall()
            line = _message(message, session, previous, _object(data), [_object(part[0]) for part in parts])
            if line is not None:
                previous = message
                yield line


def _object(data: object) -> dict[str, Any]:
    try:
        value = json.loads(data) if isinstance(data, str) else None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise OSError(errno.EIO, "a record of the store is no JSON object")
    return value


def _message(
    message: str, session: str, previous: str | None, data: dict[str, Any], parts: list[dict[str, Any]]
) -> dict[str, Any] | None:
    """The line of a lasting message; None for one that may still go."""
    role, finish, error = data.get("role"), data.get("finish"), data.get("error")
    if role == "assistant":
        has_text = any(part.get("type") == "text" and part.get("text") for part in parts)
        if not has_text and (error is not None or finish is None):
            return None
    return {
        "kind": "message",
        "id": message,
        "prev": previous,
        "role": role,
        "under": data.get("parentID"),
        "session": session,
        "finish": finish,
        "error": error.get("name") if isinstance(error, dict) else None,
        "is_summary": role == "assistant" and data.get("summary") is True,
        "parts": [_part(part) for part in parts if part.get("type") not in _LEFT_OUT],
    }


def _part(part: dict[str, Any]) -> dict[str, Any]:
    kind = part.get("type")
    match kind:
        case "text" | "reasoning":
            return {name: part[name] for name in ("type", "text", "synthetic", "ignored") if name in part}
        case "tool":
            state = part.get("state")
            state = state if isinstance(state, dict) else {}
            kept = {name: state[name] for name in ("status", "input", "output", "error") if name in state}
            return {"type": kind, "tool": part.get("tool"), "call": part.get("callID"), **kept}
        case _:
            return {name: value for name, value in part.items() if name not in ("time", "id")}
