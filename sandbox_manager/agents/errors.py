"""What an agent file refuses: settings it does not know, places it cannot name a store for. No gRPC here."""

from __future__ import annotations

from standfast_chassis.errors import StandfastError


class AgentError(StandfastError):
    """Something about one CLI's settings or places. `metadata["agent"]` names the CLI."""

    reason = "INTERNAL"


class UnknownAgentError(AgentError):
    """No CLI of that name is in the agents list."""

    reason = "AGENT_UNKNOWN"


class AgentSettingError(AgentError):
    """A setting that this CLI does not have, or a value it does not take. `metadata["setting"]`."""

    reason = "SETTING_UNKNOWN"


class AgentLocatorError(AgentError):
    """A locator that names no place this CLI could keep a session in."""

    reason = "REQUEST_INVALID"
