"""What the host agent's pure machines refuse. No gRPC here."""

from __future__ import annotations

from standfast_chassis.errors import StandfastError


class IllegalTransitionError(StandfastError):
    """An event that cannot happen in this state. Nothing was changed. `metadata`: machine, state, event."""

    reason = "ILLEGAL_TRANSITION"

    def __init__(self, machine: str, state: str, event: str) -> None:
        super().__init__(
            f"{machine}: {event} cannot happen in {state}", {"machine": machine, "state": state, "event": event}
        )


class AdmissionConflictError(StandfastError):
    """An activation was admitted before, for another message. Nothing was changed."""

    reason = "ADMISSION_INVALID"


class GrantInvalidError(StandfastError):
    """A signed grant or admission that is not what it must be. `metadata["field"]` names the place."""

    reason = "ADMISSION_INVALID"

    def __init__(self, field: str, expected: str, found: str) -> None:
        super().__init__(
            f"a grant's {field}: expected {expected}, found {found}. Nothing was sent; prepare the turn anew.",
            {"field": field, "expected": expected, "found": found},
        )
