"""The runner's own domain errors. None of them knows gRPC; `runner/status.py` gives each reason its code."""

from __future__ import annotations

from collections.abc import Mapping

from runner.core.values import Cause
from standfast_chassis.errors import StandfastError


class RunnerError(StandfastError):
    """The base of the runner's errors."""


class RequestInvalidError(RunnerError):
    """A required field is missing or out of range. `metadata["field"]` names it."""

    reason = "REQUEST_INVALID"


class MessageEmptyError(RunnerError):
    """The message has no byte."""

    reason = "MESSAGE_EMPTY"


class MessageTooLargeError(RunnerError):
    """The message is over the limit."""

    reason = "MESSAGE_TOO_LARGE"


class MessageHasNulError(RunnerError):
    """The message holds the character NUL."""

    reason = "MESSAGE_HAS_NUL"


class IdInvalidError(RunnerError):
    """An id is empty, too long, or holds a character that is not allowed."""

    reason = "ID_INVALID"


class AgentUnknownError(RunnerError):
    """This runner drives no agent of that name."""

    reason = "AGENT_UNKNOWN"


class SettingUnknownError(RunnerError):
    """The agent has no such setting, or the value is not allowed."""

    reason = "SETTING_UNKNOWN"


class WhenBusyUnsupportedError(RunnerError):
    """This build cannot do that when the conversation is busy."""

    reason = "WHEN_BUSY_UNSUPPORTED"


class MessageChangedError(RunnerError):
    """The turn_id was used with another message."""

    reason = "MESSAGE_CHANGED"


class ConversationBusyError(RunnerError):
    """Another turn of this conversation runs, or is not resolved yet."""

    reason = "CONVERSATION_BUSY"


class ConversationUnknownError(RunnerError):
    """No such conversation."""

    reason = "CONVERSATION_UNKNOWN"


class TurnUnknownError(RunnerError):
    """No such turn."""

    reason = "TURN_UNKNOWN"


class CapabilityNotBuiltError(RunnerError):
    """This build does not have the capability yet."""

    reason = "CAPABILITY_NOT_BUILT"


class LocatorMismatchError(RunnerError):
    """Two locators that must be one differ."""

    reason = "LOCATOR_MISMATCH"


class LocatorRequiredError(RunnerError):
    """A retained conversation has no locator anywhere."""

    reason = "LOCATOR_REQUIRED"


class ManagerUnavailableError(RunnerError):
    """The sandbox manager does not answer."""

    reason = "MANAGER_UNAVAILABLE"


class HostUnavailableError(RunnerError):
    """The host agent does not answer."""

    reason = "HOST_UNAVAILABLE"


class ReasonedError(RunnerError):
    """An error whose reason was decided elsewhere: by the manager, the host agent, or an earlier run of this turn."""

    def __init__(self, reason: str, message: str, metadata: Mapping[str, object] | None = None) -> None:
        super().__init__(message, metadata)
        self.reason = reason

    @classmethod
    def of(cls, cause: Cause) -> ReasonedError:
        return cls(cause.reason, cause.message, dict(cause.metadata))


def cause_of(error: StandfastError) -> Cause:
    """The error as the cause that a turn keeps."""
    return Cause(error.reason, error.message, tuple(sorted(error.metadata.items())))


class IllegalTransitionError(Exception):
    """An event that cannot happen in this state. Nothing was changed. A fault of ours, never of a caller."""


class LocatorRecordError(Exception):
    """A step of the locator record that its rules forbid. Nothing was changed. A fault of ours."""
