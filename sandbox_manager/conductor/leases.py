"""Leases by elapsed time: of turns (claims and activations) and of hosts. In memory only.

A wall clock may jump, and a manager that was down has not seen its callers' renewals. So a lease is counted from when this process
granted or last renewed it, and a restarted manager gives each open turn one full lease from its start.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

Clock = Callable[[], float]


class Leases(Generic[K]):
    """Leases of one kind. `lease_s` is their length; `clock` gives monotonic seconds."""

    def __init__(self, lease_s: float, clock: Clock) -> None:
        self.lease_s = lease_s
        self._clock = clock
        self._ends: dict[K, float] = {}

    def renew(self, key: K) -> int:
        """Starts or renews a lease; returns its length in milliseconds."""
        self._ends[key] = self._clock() + self.lease_s
        return int(self.lease_s * 1000)

    def left_s(self, key: K) -> float:
        """Seconds until it ends; 0 or less when it has ended. A lease that nobody was given has ended."""
        end = self._ends.get(key)
        return end - self._clock() if end is not None else 0.0

    def is_live(self, key: K) -> bool:
        """Whether the lease has time left."""
        return self.left_s(key) > 0

    def known(self) -> list[K]:
        """Every key that was given a lease and not ended."""
        return list(self._ends)

    def end(self, key: K) -> None:
        """Ends a lease now. Ending an ended one says so again."""
        self._ends.pop(key, None)
