"""What a turn needs from its surroundings: the model, and somebody who hears and answers. Each has a real one and one for tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from direct_agent.ports import Cancellation
from direct_agent.recovery.facts import FileFinding
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


@dataclass(frozen=True, slots=True)
class Past:
    """What an interrupted turn left open. `has_unknown`: a call whose outcome is neither known nor proved. `findings`: what the
    targets of such calls held when this turn began, by call id.
    """

    has_unknown: bool = False
    findings: Mapping[str, tuple[FileFinding, ...]] = field(default_factory=dict)


class Rounds(Protocol):
    """Asks the model. Owns all its attempts."""

    def begin_turn(self) -> None:
        """A turn begins: its limits are counted from here."""

    async def ask(self, transcript: Transcript, instructions: str, cancel: Cancellation, past: Past) -> RoundOutcome:
        """One round. When `cancel` is set it comes back at once. While `past` has an unknown it does not wait for better times."""

    def taken_summary(self) -> str | None:
        """The summary that the last round needed to fit, once; None when it needed none. It covers all before the last message of
        the person.
        """

    async def ask_aside(self, transcript: Transcript, instructions: str, cancel: Cancellation) -> RoundOutcome:
        """An auxiliary call without tools (a summary). Finite; gives no partial text."""


class Audience(Protocol):
    """Who hears what happens. Does not block; a slow hearer is its own matter."""

    def say(self, event: Mapping[str, Any]) -> None:
        """One event: an object with a "type"."""
