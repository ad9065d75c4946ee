"""What a turn needs from its surroundings: the model, and somebody who hears and answers. Each has a real one and one for tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from direct_agent.ports import Cancellation
from direct_agent.transcript import AssistantMessage, Transcript, Usage


@dataclass(frozen=True, slots=True)
class Accepted:
    """A round's accepted answer, with what all its attempts used."""

    message: AssistantMessage
    usage: Usage


@dataclass(frozen=True, slots=True)
class NotAnswered:
    """A round without one. `reason` is a stable word of the attempt loop; `error` is for a person and holds no secret and no body."""

    reason: str
    error: str
    usage: Usage
    status: int | None = None


RoundOutcome = Accepted | NotAnswered


class Rounds(Protocol):
    """Asks the model. Owns all its attempts."""

    async def ask(
        self, transcript: Transcript, instructions: str, cancel: Cancellation, *, has_pending_unknown: bool
    ) -> RoundOutcome:
        """One round. When `cancel` is set it comes back at once. `has_pending_unknown`: it may not wait for a better time."""

    async def ask_aside(self, transcript: Transcript, instructions: str, cancel: Cancellation) -> RoundOutcome:
        """An auxiliary call without tools (a summary). Finite; gives no partial text."""


class Audience(Protocol):
    """Who hears what happens. Does not block; a slow hearer is its own matter."""

    def say(self, event: Mapping[str, Any]) -> None:
        """One event: an object with a "type"."""
