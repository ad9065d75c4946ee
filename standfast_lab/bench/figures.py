"""Figures: what was measured, against what, the goal, and whether it is met. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure. `value` is a ratio, a difference or a rate in `unit`; `goal` None: told, not judged.

    `bound`: whether the value may be at most or must be at least the goal. `detail`: the medians, the 99th percentiles and how many of
    each it was made of, by name, in their own units.
    """

    name: str
    what: str
    value: float
    unit: str
    goal: float | None
    bound: Literal["at most", "at least"] = "at most"
    detail: dict[str, float | int | str] = field(default_factory=dict)

    @property
    def is_met(self) -> bool | None:
        """None where there is no goal."""
        if self.goal is None:
            return None
        return self.value <= self.goal if self.bound == "at most" else self.value >= self.goal

    def as_json(self) -> dict[str, object]:
        """One JSON object."""
        return {**asdict(self), "value": round(self.value, 4), "is_met": self.is_met}


def median(values: Sequence[float]) -> float:
    """The middle value; of none it is NaN, which meets no goal."""
    return statistics.median(values) if values else math.nan


def p99(values: Sequence[float]) -> float:
    """The 99th percentile: the smallest value that 99 of 100 do not exceed. With fewer than 100 values it is the greatest."""
    if not values:
        return math.nan
    return sorted(values)[math.ceil(len(values) * 0.99) - 1]


def summed_up(prefix: str, values: Sequence[float], unit: str = "ms") -> dict[str, float | int | str]:
    """Median, 99th percentile and count, as details of a figure."""
    return {
        f"{prefix}_median_{unit}": round(median(values), 3),
        f"{prefix}_p99_{unit}": round(p99(values), 3),
        f"{prefix}_n": len(values),
    }
