"""What the oracle says about one request."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from standfast_lab.oracle.conversation import Place


class Fault(StrEnum):
    """How one text differs."""

    MISSING = "MISSING"
    DOUBLED = "DOUBLED"
    SWAPPED = "SWAPPED"
    ROLE_CHANGED = "ROLE_CHANGED"
    TEXT_CHANGED = "TEXT_CHANGED"
    UNEXPECTED = "UNEXPECTED"


class State(StrEnum):
    """The verdict in a word. A CHANGED history holds every text in some form, but not as it was."""

    COMPLETE = "COMPLETE"
    COMPACTED = "COMPACTED"
    MISSING = "MISSING"
    CHANGED = "CHANGED"
    UNOBSERVED = "UNOBSERVED"


@dataclass(frozen=True)
class Difference:
    """One difference.

    `place` is where the text belongs (for UNEXPECTED: after which text it stands; None before all). `found_at` is
    (message, block) in the request, None if it is not there. SWAPPED names the place of the text it changed with in
    `other`; ROLE_CHANGED the role found; TEXT_CHANGED the first differing character.
    """

    fault: Fault
    place: Place | None
    found_at: tuple[int, int] | None = None
    other: Place | None = None
    role_found: str | None = None
    first_differing_char: int | None = None

    def __str__(self) -> str:
        what = f"{self.fault} {self.place or 'before turn 1'}"
        if self.other is not None:
            what += f" with {self.other}"
        if self.role_found is not None:
            what += f" to {self.role_found}"
        if self.first_differing_char is not None:
            what += f" at character {self.first_differing_char}"
        return what if self.found_at is None else f"{what} (message {self.found_at[0]}, block {self.found_at[1]})"


@dataclass(frozen=True)
class Verdict:
    """COMPLETE, or what differs, in the order of the conversation. `turn` is the first turn concerned; `request_n`
    the log row judged.

    `additions` are texts that the CLI wrote by itself; they do not break a history.
    """

    state: State
    turn: int | None = None
    differences: tuple[Difference, ...] = ()
    additions: tuple[str, ...] = ()
    request_n: int | None = None

    @property
    def is_complete(self) -> bool:
        """True only if every text was there, in order, in its role, as often as it was said."""
        return self.state is State.COMPLETE

    def __str__(self) -> str:
        if not self.differences:
            return str(self.state)
        return f"{self.state}{{{self.turn}}}: " + "; ".join(map(str, self.differences))
