"""What a tool is: a name and schema for the model, subjects for the permission rules, and the work itself.

Two kinds. A *plain* tool does its work in `run`. A *change* tool only plans: it says what each file held and is to hold. Recording the
intents and writing are the executor's, in that order, so no change tool can write before its intents are durable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

Arguments = Mapping[str, Any]
"""Parsed arguments that agree with the tool's schema."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """What the model is told. `parameters` is a JSON schema of one object."""

    name: str
    description: str
    parameters: Mapping[str, Any] = field(hash=False)
    is_read_only: bool


@dataclass(frozen=True, slots=True)
class Output:
    """What the model sees of a call that ran to its end. `is_error`: it ran, and did not do what was asked."""

    text: str
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """One file as it was read and as it is to become. `path` is absolute as named, `resolved_path` with links resolved.

    `before` and `after` are decoded texts; `mode` are the permission bits to keep, None for a new file.
    """

    path: str
    resolved_path: str
    existed: bool
    before: str
    after: str
    encoding: str
    mode: int | None

    @property
    def is_needed(self) -> bool:
        return not self.existed or self.before != self.after


class Tool(Protocol):
    """Either kind."""

    @property
    def spec(self) -> ToolSpec: ...

    def subjects(self, arguments: Arguments) -> tuple[str, ...]:
        """What the permission rules look at: a command, or paths relative to the workspace."""


class PlainTool(Tool, Protocol):
    """Does its work itself, and changes no file through this house's own hands."""

    async def run(self, arguments: Arguments) -> Output:
        """Raises ToolError for what it refuses. Cancellation ends whatever it started."""


class ChangeTool(Tool, Protocol):
    """Says what is to be written; writes nothing."""

    def plan(self, arguments: Arguments) -> tuple[Change, ...]:
        """Reads the targets. Blocking. Raises ToolError."""

    def report(self, changes: tuple[Change, ...]) -> str:
        """The result's text, once all of them are on disk."""
