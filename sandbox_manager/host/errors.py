"""The host agent's domain errors: a reason and its facts, no gRPC. `status.py` gives each reason its code."""

from __future__ import annotations

from standfast_chassis.errors import StandfastError


class HostError(StandfastError):
    """Base of the host agent's own errors."""


class ActivationUsedError(HostError):
    """An activation can be attached once: after a cut nobody may send its message again."""

    reason = "ACTIVATION_USED"

    def __init__(self, activation_id: str) -> None:
        super().__init__(
            f"activation {activation_id} was attached before; each can be attached once. Prepare the turn anew.",
            {"activation_id": activation_id},
        )


class ActivationUnknownError(HostError):
    """The journal has no such activation."""

    reason = "ACTIVATION_UNKNOWN"

    def __init__(self, activation_id: str) -> None:
        super().__init__(f"this host's journal has no activation {activation_id}.", {"activation_id": activation_id})


class GenerationStaleError(HostError):
    """A newer generation of the group or member was seen: whoever sent this decided on old facts."""

    reason = "GENERATION_STALE"

    def __init__(self, subject: str, *, expected: int, found: int) -> None:
        super().__init__(
            f"{subject}: generation {found} came after {expected} was seen; nothing was done.",
            {"subject": subject, "expected": expected, "found": found},
        )


class TokenInvalidError(HostError):
    """A grant or admission is not signed by the registered manager, or is no such token."""

    reason = "TOKEN_REJECTED"


class AdmissionInvalidError(HostError):
    """An admission is for another activation, process or message."""

    reason = "ADMISSION_INVALID"


class GateRefusedError(HostError):
    """A frame broke the grammar; nothing of it was written."""

    reason = "GATE_REFUSED"


class SandboxUnknownError(HostError):
    """The group's container does not run under this host agent."""

    reason = "SUPERVISOR_UNAVAILABLE"


class ContainerGoneError(HostError):
    """A retained container was asked for and the engine has none of that id."""

    reason = "CONTAINER_GONE"


class ContainerChangedError(HostError):
    """The container that answers is not the recorded one."""

    reason = "CONTAINER_CHANGED"


class ImageRetiredError(HostError):
    """A retained container's image is not accepted by this release."""

    reason = "IMAGE_RETIRED"


class SlotBusyError(HostError):
    """Another activation holds the slot."""

    reason = "SLOT_BUSY"


class ReclaimIncompleteError(HostError):
    """Processes of the slot could not be proved gone."""

    reason = "RECLAIM_INCOMPLETE"


class HandshakeFailedError(HostError):
    """The CLI did not answer its native start in time."""

    reason = "HANDSHAKE_FAILED"


class SessionNotResumedError(HostError):
    """The CLI refused the native resume."""

    reason = "SESSION_NOT_RESUMED"


class CliDiedError(HostError):
    """The CLI process went away without its end evidence."""

    reason = "CLI_DIED"


class SupervisorLostError(HostError):
    """The supervisor went away after the message was forwarded."""

    reason = "SUPERVISOR_LOST"


class AttachProtocolError(HostError):
    """The runner's stream did not follow the contract."""

    reason = "REQUEST_INVALID"


class IsolationRequiredError(HostError):
    """`local` would run a CLI without its permission checks against a real provider."""

    reason = "ISOLATION_REQUIRED"


class RegistrationRefusedError(HostError):
    """The manager refused this host's evidence."""

    reason = "EVIDENCE_CONTRADICTED"


class CapabilityNotBuiltError(HostError):
    """The capability comes with a later release."""

    reason = "CAPABILITY_NOT_BUILT"

    def __init__(self, capability: str) -> None:
        super().__init__(
            f"this build has no {capability} yet; it comes with a later release.", {"capability": capability}
        )
