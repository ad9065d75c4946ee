"""The list of scenarios: a name, what it shows, and a function that plays it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from standfast_lab.lab.play import Play

Act = Callable[[Play], Awaitable[None]]


@dataclass(frozen=True)
class Scenario:
    """`is_core`: part of the short set. `is_alone`: it disturbs the whole product, so nothing runs beside it."""

    name: str
    shows: str
    act: Act
    is_core: bool
    is_alone: bool


SCENARIOS: dict[str, Scenario] = {}


def scenario(name: str, *, core: bool = False, alone: bool = False) -> Callable[[Act], Act]:
    """Puts a function on the list; the first line of its docstring says what it shows."""

    def add(act: Act) -> Act:
        if name in SCENARIOS:
            raise ValueError(f"two scenarios are called {name}")
        shows = (act.__doc__ or "").strip().partition("\n")[0]
        SCENARIOS[name] = Scenario(name, shows, act, core, alone)
        return act

    return add


def add_each(names: dict[str, Act], *, core: tuple[str, ...] = ()) -> None:
    """Puts scenarios on the list that differ in a value only."""
    for name, act in names.items():
        scenario(name, core=name in core)(act)
