"""What a witness says. Three-valued: only CONFIRMED lets anything be saved."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """CONFIRMED: expected and observed agree. CONTRADICTED: they differ. UNPROVEN: there is not enough evidence."""

    CONFIRMED = "CONFIRMED"
    CONTRADICTED = "CONTRADICTED"
    UNPROVEN = "UNPROVEN"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with its reason. `reason` is None only for CONFIRMED; `observed` is None where nothing was seen."""

    verdict: Verdict
    reason: str | None
    expected: str
    observed: str | None
