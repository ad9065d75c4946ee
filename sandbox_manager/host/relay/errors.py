"""What the relay's owner (the host agent) can get wrong, each with a reason and its facts."""

from __future__ import annotations

from standfast_chassis.errors import StandfastError


class RelayError(StandfastError):
    """Base of the relay's own errors."""

    reason = "RELAY_ERROR"


class UnknownSandboxError(RelayError):
    """The sandbox has no listener here: open it first."""

    reason = "RELAY_UNKNOWN_SANDBOX"


class SandboxOpenError(RelayError):
    """The sandbox has a listener already: close it first."""

    reason = "RELAY_SANDBOX_OPEN"


class SlotTakenError(RelayError):
    """The slot, or its secret, is registered differently: revoke it first."""

    reason = "RELAY_SLOT_TAKEN"


class UnknownSlotError(RelayError):
    """The slot is not registered."""

    reason = "RELAY_UNKNOWN_SLOT"


class ActivationError(RelayError):
    """Another activation is open in this slot, or the named one is not known."""

    reason = "RELAY_ACTIVATION"


class ProviderKeyError(RelayError):
    """The provider's key could not be read, or is not one."""

    reason = "RELAY_PROVIDER_KEY"
