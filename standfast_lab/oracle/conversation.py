"""What a history is compared with: the turns of a conversation as user and client saw them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

USER = "user"
ASSISTANT = "assistant"


class Outcome(StrEnum):
    """How a turn ended, as far as it decides which of its texts must last."""

    COMPLETED = "COMPLETED"  # user text and every assistant text last
    FAILED = "FAILED"  # ended by an error: the user text lasts, and the assistant texts that are listed
    NOT_ENDED = (
        "NOT_ENDED"  # interrupted: the user text lasts; a partial reply may, so assistant texts after it are not judged
    )


@dataclass(frozen=True)
class Turn:
    """One turn. `replies` are its assistant texts in order, those before a tool call too; empty ones are left out."""

    user: str
    replies: tuple[str, ...] = ()
    outcome: Outcome = Outcome.COMPLETED


@dataclass(frozen=True)
class Place:
    """Where a text belongs: turn from 1, and its index among the texts of the turn with that role, from 0."""

    turn: int
    role: str
    index: int = 0

    def __str__(self) -> str:
        return f"turn {self.turn} {self.role} text {self.index}"


@dataclass(frozen=True)
class Wanted:
    """One text that a complete history holds, in this role. One that is not required may be absent."""

    place: Place
    text: str
    is_required: bool = True


def wanted_texts(settled: tuple[Turn, ...], current: Turn | None) -> list[Wanted]:
    """Returns the texts in order. Of the turn under way the user text is required, its replies so far may be there."""
    wanted = []
    for number, turn in enumerate([*settled, current] if current else settled, 1):
        is_current = number > len(settled)
        wanted.append(Wanted(Place(number, USER), turn.user))
        for index, reply in enumerate(reply for reply in turn.replies if reply):
            must_last = not is_current and turn.outcome is not Outcome.NOT_ENDED
            wanted.append(Wanted(Place(number, ASSISTANT, index), reply, must_last))
    return wanted
