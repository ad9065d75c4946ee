"""What the manager's pure machines and rules refuse. A class has a reason and its facts; it knows no gRPC."""

from __future__ import annotations

from standfast_chassis.errors import StandfastError


class RuleError(StandfastError):
    """Base of what the manager's rules refuse."""


class IllegalTransitionError(RuleError):
    """An event that cannot happen in this state. Nothing was changed. `metadata`: machine, state, event."""

    reason = "ILLEGAL_TRANSITION"

    def __init__(self, machine: str, state: str, event: str) -> None:
        super().__init__(
            f"{machine}: {event} cannot happen in {state}", {"machine": machine, "state": state, "event": event}
        )


class StaleGenerationError(RuleError):
    """It was decided on an older generation than the one in force. Nothing was changed."""

    reason = "GENERATION_STALE"

    def __init__(self, of: str, expected: int, found: int) -> None:
        super().__init__(
            f"{of}: the generation in force is {expected}, this was decided on {found}",
            {"of": of, "expected": expected, "found": found},
        )


class LocatorMismatchError(RuleError):
    """The request's locator is not the saved one. `metadata`: expected, found (session ids)."""

    reason = "LOCATOR_MISMATCH"


class LocatorRequiredError(RuleError):
    """A retained conversation has no locator anywhere."""

    reason = "LOCATOR_REQUIRED"


class LegacyConversationError(RuleError):
    """CONTINUE on a conversation of which no native session is retained here: open a new one."""

    reason = "LEGACY_CONVERSATION"


class ConversationExistsError(RuleError):
    """NEW on a conversation that is known."""

    reason = "CONVERSATION_EXISTS"


class StoreBehindError(RuleError):
    """A host has a container of this conversation that the manager does not know. `metadata`: container_id."""

    reason = "STORE_BEHIND"


class MessageChangedError(RuleError):
    """The same turn id with another message."""

    reason = "MESSAGE_CHANGED"


class TurnElsewhereError(RuleError):
    """The turn runs under another runner. `metadata`: address."""

    reason = "TURN_ELSEWHERE"


class ConversationBusyError(RuleError):
    """Another turn of the conversation is not resolved yet. `metadata`: turn_id."""

    reason = "CONVERSATION_BUSY"
