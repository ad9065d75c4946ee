"""The sandbox manager's domain errors: a reason and its facts, no gRPC. `status.py` gives each reason its code."""

from __future__ import annotations

from collections.abc import Mapping

from standfast_chassis.errors import StandfastError


class ManagerError(StandfastError):
    """Base of the manager's own errors."""


class RequestInvalidError(ManagerError):
    """A required field is missing or out of range. `metadata["field"]`."""

    reason = "REQUEST_INVALID"

    def __init__(self, field: str, expected: str, found: str) -> None:
        super().__init__(
            f"{field}: expected {expected}, found {found}.", {"field": field, "expected": expected, "found": found}
        )


class IdInvalidError(ManagerError):
    """An id is empty, too long, or holds a character that is not allowed."""

    reason = "ID_INVALID"

    def __init__(self, field: str, found: str) -> None:
        super().__init__(
            f"{field}: expected 1 to 128 characters of A-Z, a-z, 0-9, '.', '_', ':' and '-', found {found}.",
            {"field": field, "found": found},
        )


class AgentUnknownError(ManagerError):
    """No agent of that name in this build."""

    reason = "AGENT_UNKNOWN"


class SettingUnknownError(ManagerError):
    """The agent has no such setting, or the value is not allowed."""

    reason = "SETTING_UNKNOWN"


class ConversationRemovedError(ManagerError):
    """The conversation was removed; its id is not used again."""

    reason = "CONVERSATION_REMOVED"


class ConversationUnknownError(ManagerError):
    """No such conversation."""

    reason = "CONVERSATION_UNKNOWN"


class TurnUnknownError(ManagerError):
    """No such turn."""

    reason = "TURN_UNKNOWN"


class TurnOverError(ManagerError):
    """The turn was admitted, settled, given up or refused before: it takes no other grant."""

    reason = "ACTIVATION_USED"


class TurnResolvedError(ManagerError):
    """Somebody else has given the turn up since: whoever still works on it decides on old facts."""

    reason = "GENERATION_STALE"


class ContextLostError(ManagerError):
    """The native context cannot be confirmed. Nothing was sent and nothing overwritten."""

    reason = "CONTEXT_LOST"

    def __init__(
        self, cause: str, *, cure: str, readable: str, expected: str | None = None, observed: str | None = None
    ) -> None:
        facts = {"cause": cause, "cure": cure, "readable": readable}
        found = ""
        if expected is not None or observed is not None:
            facts |= {"expected": str(expected), "observed": str(observed)}
            found = f" Expected {expected}, found {observed}."
        super().__init__(
            f"The native context cannot be confirmed: {cause}.{found} Nothing was sent. {cure} Still readable: {readable}.",
            facts,
        )
        self.cause = cause


class NativeSessionMismatchError(ManagerError):
    """The session that answered is not the expected one."""

    reason = "NATIVE_SESSION_MISMATCH"


class SessionNotResumedError(ManagerError):
    """The CLI refused the native resume."""

    reason = "SESSION_NOT_RESUMED"


class HandshakeFailedError(ManagerError):
    """The CLI did not answer its native start as it must."""

    reason = "HANDSHAKE_FAILED"


class NotAdmittedError(ManagerError):
    """Refused by name before anything was sent, and not LOST: there is no settled turn that could be, or nobody answered."""

    def __init__(self, reason: str, *, expected: str, observed: str, cure: str) -> None:
        super().__init__(
            f"The turn is not admitted ({reason}): expected {expected}, found {observed}. Nothing was sent. {cure}.",
            {"expected": expected, "observed": observed, "cure": cure},
        )
        self.reason = reason


class AgentMismatchError(ManagerError):
    """The conversation belongs to another agent."""

    reason = "AGENT_MISMATCH"


class ImageRetiredError(ManagerError):
    """A retained container's image is no longer accepted. Nothing was touched."""

    reason = "IMAGE_RETIRED"


class NoHostError(ManagerError):
    """No registered host is READY for this agent."""

    reason = "NO_HOST"


class HostUnknownError(ManagerError):
    """The host is not registered, or not in this lease generation: it must attest first."""

    reason = "HOST_UNKNOWN"


class HostUnavailableError(ManagerError):
    """The host agent does not answer, or has no lease; that says nothing about its containers."""

    reason = "HOST_UNAVAILABLE"


class HostAnsweredError(ManagerError):
    """The host agent answered with an error of its own: its reason is passed on."""

    def __init__(self, reason: str, message: str, metadata: Mapping[str, object] | None = None) -> None:
        super().__init__(message, metadata)
        self.reason = reason


class SignatureInvalidError(ManagerError):
    """A signed statement is not by the key, kind or nonce that it must be."""

    reason = "TOKEN_REJECTED"


class AttestationRefusedError(ManagerError):
    """A host's evidence does not show what the manifest names. The metadata has item, expected and found."""

    def __init__(self, reason: str, message: str, metadata: Mapping[str, object]) -> None:
        super().__init__(message, metadata)
        self.reason = reason


class ActivationUnknownError(ManagerError):
    """No such activation."""

    reason = "ACTIVATION_UNKNOWN"


class ActivationExpiredError(ManagerError):
    """The activation lease ran out."""

    reason = "ACTIVATION_EXPIRED"


class AdmissionInvalidError(ManagerError):
    """The message is not the claimed one."""

    reason = "ADMISSION_INVALID"


class ObservationPendingError(ManagerError):
    """The host agent is still observing the activation."""

    reason = "OBSERVATION_PENDING"


class NotEndedError(ManagerError):
    """There is no native end to settle."""

    reason = "NOT_ENDED"


class NativeEndSeenError(ManagerError):
    """The turn has native end evidence: settle it, do not abandon it."""

    reason = "NATIVE_END_SEEN"


class CapabilityNotBuiltError(ManagerError):
    """The capability comes with a later release."""

    reason = "CAPABILITY_NOT_BUILT"

    def __init__(self, capability: str) -> None:
        super().__init__(
            f"this build has no {capability} yet; it comes with a later release.", {"capability": capability}
        )


class ManifestError(ManagerError):
    """The release manifest is missing, unreadable or incomplete."""

    reason = "MANIFEST_UNUSABLE"
