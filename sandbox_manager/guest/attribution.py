"""Which processes belong to a slot.

In a container: by the four user ids in /proc/N/status (the owner of /proc/N misleads for undumpable processes).
In a retained folder the innocent processes of the same user run beside ours, so there never by user id, but by the
marker in the environment, by descent, and by the session the slot's process opened. A descendant of the supervisor
that none of these gives to a slot is reported, not killed.
"""

import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from .processes import Process, read_all, read_descendants, read_environ

MARKER_VARIABLE = "STANDFAST_SLOT_MARKER"


@dataclass(frozen=True)
class Census:
    """A slot's living processes, and those that come from some slot nobody can name."""

    owned: list[Process]
    unattributed: list[Process]


class Attribution(Protocol):
    """Finds a slot's processes in one scan."""

    def scan(self, is_thorough: bool) -> list[Process]:
        """Reads the process table. Where that costs, only a thorough scan reads all of it."""

    def census(self, slot: int, rows: Iterable[Process], is_thorough: bool = True) -> Census:
        """Sorts the rows of one scan."""

    def remember(self, slot: int, process: Process) -> None:
        """Notes a process the supervisor itself started for the slot."""


class UserAttribution:
    """By user id: a slot's user runs nothing but the slot's processes."""

    def __init__(self, uids: dict[int, int], helpers: Callable[[], frozenset[int]]) -> None:
        self._uids = uids
        self._helpers = helpers

    def scan(self, is_thorough: bool) -> list[Process]:
        """Always everything: a container has few processes."""
        return read_all()

    def census(self, slot: int, rows: Iterable[Process], is_thorough: bool = True) -> Census:
        """Sorts the rows of one scan."""
        uid, helpers = self._uids[slot], self._helpers()
        return Census([row for row in rows if uid in row.uids and not row.is_gone and row.pid not in helpers], [])

    def remember(self, slot: int, process: Process) -> None:
        """Nothing to note: the user id says it."""


class MarkerAttribution:
    """By marker, descent and session; `helpers` names the supervisor's own children of the moment."""

    def __init__(
        self, marker: str, helpers: Callable[[], frozenset[int]], environ: Callable[[int], bytes | None] = read_environ
    ) -> None:
        self._marker = marker
        self._helpers = helpers
        self._environ = environ
        self._known: dict[int, set[tuple[int, int]]] = {}
        self._innocent: frozenset[tuple[int, int]] | None = None
        self._sessions: dict[int, dict[int, int]] = {}  # by slot: a session's number and when its leader began
        # Reclaims of several slots scan at the same time, each in a thread.
        self._lock = threading.Lock()

    def marker_of(self, slot: int) -> str:
        """The value a slot's processes carry in their environment."""
        return f"{self._marker}.{slot}"

    def remember(self, slot: int, process: Process) -> None:
        """Notes a process the supervisor itself started for the slot, and the session it leads."""
        with self._lock:
            self._known.setdefault(slot, set()).add(process.key)
            if process.session == process.pid:
                self._sessions.setdefault(slot, {})[process.session] = process.start_time

    def scan(self, is_thorough: bool) -> list[Process]:
        """The supervisor is the reaper of its descendants: nothing of a slot gets out from below it, whatever it forks.

        What an earlier supervisor left behind is elsewhere; a thorough scan looks everywhere.
        """
        return read_all() if is_thorough else read_descendants(os.getpid())

    def census(self, slot: int, rows: Iterable[Process], is_thorough: bool = True) -> Census:
        """Sorts the rows of one scan; what was given to a slot once stays its own."""
        rows = list(rows)
        table = {row.pid: row for row in rows if not row.is_gone}
        helpers = self._helpers()
        innocent = self._innocent or frozenset()
        marked = {
            pid: owner
            for pid, row in table.items()
            if row.key not in innocent and (owner := self._slot_by_marker(pid)) is not None
        }
        with self._lock:
            self._forget_replaced({row.pid: row.start_time for row in rows})
            owners = self._owners(table, marked)
            self._learn(owners, table, is_thorough)
        strangers = [
            row
            for pid, row in table.items()
            if pid not in owners and pid not in helpers and self._descends_from_us(row, table)
        ]
        return Census([table[pid] for pid, owner in owners.items() if owner == slot], strangers)

    def _learn(self, owners: dict[int, int], table: dict[int, Process], is_thorough: bool) -> None:
        for pid, owner in owners.items():
            self._known.setdefault(owner, set()).add(table[pid].key)
        if not is_thorough:
            return
        if self._innocent is None:
            # Here before this supervisor started anything, and not marked: never a slot's. Their number is large.
            self._innocent = frozenset(row.key for pid, row in table.items() if pid not in owners)
        alive = {row.key for row in table.values()}
        sessions_alive = {row.session for row in table.values()}
        for known in self._known.values():
            known &= alive
        for sessions in self._sessions.values():
            # The number of an empty session may be given to a stranger.
            for number in sessions.keys() - sessions_alive:
                del sessions[number]

    def _forget_replaced(self, began: dict[int, int]) -> None:
        """A number is free for another process only when nobody is in its session any more: then whoever leads one of that number now,
        and all who are in it, are strangers.
        """
        for sessions in self._sessions.values():
            for number, start_time in list(sessions.items()):
                if began.get(number, start_time) != start_time:
                    del sessions[number]

    def _owners(self, table: dict[int, Process], marked: dict[int, int]) -> dict[int, int]:
        owners: dict[int, int] = {}
        for slot, known in self._known.items():
            owners.update({pid: slot for pid, row in table.items() if row.key in known})
        for slot, sessions in self._sessions.items():
            owners.update({pid: slot for pid, row in table.items() if row.session in sessions})
        for pid, slot in marked.items():
            owners.setdefault(pid, slot)
        owners.pop(os.getpid(), None)
        self._add_descendants(owners, table)
        return owners

    def _slot_by_marker(self, pid: int) -> int | None:
        text = self._environ(pid)
        prefix = f"{MARKER_VARIABLE}={self._marker}.".encode()
        if text is None or prefix not in text:
            return None
        for entry in text.split(b"\0"):
            if entry.startswith(prefix) and entry[len(prefix) :].isdigit():
                return int(entry[len(prefix) :])
        return None

    @staticmethod
    def _add_descendants(owners: dict[int, int], table: dict[int, Process]) -> None:
        found = True
        while found:
            fresh = {
                row.pid: owners[row.parent] for row in table.values() if row.pid not in owners and row.parent in owners
            }
            owners.update(fresh)
            found = bool(fresh)

    @staticmethod
    def _descends_from_us(row: Process, table: dict[int, Process]) -> bool:
        seen: set[int] = set()
        at: Process | None = row
        while at is not None and at.pid not in seen:
            if at.parent == os.getpid():
                return True
            seen.add(at.pid)
            at = table.get(at.parent)
        return False
