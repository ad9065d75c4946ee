"""The words in which verdicts and decisions are given. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sandbox_manager.core.values import Verdict


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that speaks against. `weighs` is what it makes of the verdict; `expected` and `found` hold no content of a turn."""

    code: str
    expected: str
    found: str
    weighs: Verdict = Verdict.CONTRADICTED


class StoreVerdict(Enum):
    """What the native store's proof came to at a settlement (design chapter 4)."""

    CONFIRMED = "CONFIRMED"
    PROMISED = "PROMISED"  # not yet on disk when the wait ran out; the next proof must find it
    CONTRADICTED = "CONTRADICTED"
    UNPROVEN = "UNPROVEN"
    UNWRITABLE = "UNWRITABLE"  # a known cause: no space, or not writable


class Outcome(Enum):
    """How a turn ended."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    INTERRUPTED = "INTERRUPTED"
    TIMED_OUT = "TIMED_OUT"
    UNANSWERED_QUESTION = "UNANSWERED_QUESTION"
    NOT_SENT = "NOT_SENT"
    REFUSED = "REFUSED"


def weigh(reasons: tuple[Reason, ...]) -> Verdict:
    """One contradiction contradicts; else one doubt leaves it unproven; else it is confirmed."""
    weights = {reason.weighs for reason in reasons}
    if Verdict.CONTRADICTED in weights:
        return Verdict.CONTRADICTED
    return Verdict.UNPROVEN if Verdict.UNPROVEN in weights else Verdict.CONFIRMED
