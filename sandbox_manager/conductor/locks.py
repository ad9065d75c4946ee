"""One lock a key: what happens to one conversation happens one after the other, in this process.

The store's compare-and-set is what keeps two processes apart; the lock keeps two tasks of one from doing the same work twice, such as
starting a container.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class KeyedLocks:
    """Locks by key. A lock exists while somebody holds or waits for it."""

    def __init__(self) -> None:
        self._locks: dict[Hashable, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def holding(self, key: Hashable) -> AsyncIterator[None]:
        """Waits for the key's lock and holds it. The wait is bounded by the caller's deadline, which cancels it."""
        lock, users = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[key]
            if users == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, users - 1)

    def is_held(self, key: Hashable) -> bool:
        """Whether somebody works on the key now, or waits to."""
        return key in self._locks
