"""Numbers a turn's events 1, 2, 3 ... without gaps, and says whether a replay is whole. Pure.

The driver's events of a turn are a function of the bytes that the CLI printed. So after a restart the same bytes give
the same events again, and a replay goes on exactly where the record ends: `take_from_driver` drops what is recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Resume(Enum):
    """Whether no event after the asked-for one is missing."""

    OK = "OK"
    GAP = "GAP"


@dataclass(slots=True)
class Ledger:
    """The counters of one turn. `last_sequence`: the newest number given; 0 before the first."""

    last_sequence: int = 0
    from_driver: int = 0  # how many of the numbered events came from the driver
    _skip: int = 0

    def number(self, *, from_driver: bool) -> int:
        """The number of the next event."""
        self.last_sequence += 1
        if from_driver:
            self.from_driver += 1
        return self.last_sequence

    def begin_replay(self) -> None:
        """The driver reads the turn's bytes again from their beginning."""
        self._skip = self.from_driver

    def take_from_driver(self) -> bool:
        """Whether the driver's next event is new; False for one that was recorded before the replay began."""
        if self._skip == 0:
            return True
        self._skip -= 1
        return False


def resume_of(*, after_sequence: int, first_kept: int, last_kept: int, last_sequence: int) -> Resume:
    """Kept are `first_kept` to `last_kept` (none when the first is greater); the turn has `last_sequence` events."""
    if after_sequence > last_sequence:
        return Resume.GAP
    if after_sequence == last_sequence:
        return Resume.OK
    return Resume.OK if first_kept <= after_sequence + 1 and last_kept == last_sequence else Resume.GAP
