"""Which rules a fleet breaks on purpose. Everything off is the product as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Switches:
    """`let_slash_through`: a text that the CLI takes as a command passes the gate and the driver leaves off what prevents it.
    `retire_rules_on`: False keeps a process that its agent's rule would retire. `manager_checks_identity`,
    `runner_checks_identity`: False leaves only the other side's check. `pauses`: the folder in which a test asks a process to stop
    at a step (pauses.py).
    """

    let_slash_through: bool = False
    retire_rules_on: bool = True
    manager_checks_identity: bool = True
    runner_checks_identity: bool = True
    pauses: str | None = None

    def as_json(self) -> dict[str, Any]:
        """For the environment of a child process."""
        return asdict(self)

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> Switches:
        """From what `as_json` gave. An unknown switch is a TypeError."""
        return cls(**found)
