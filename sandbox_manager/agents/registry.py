"""The agents list of the sandbox side: one line per CLI."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sandbox_manager.agents.claude_code.agent import ClaudeCode
from sandbox_manager.agents.codex.agent import Codex
from sandbox_manager.agents.direct.agent import Direct
from sandbox_manager.agents.errors import UnknownAgentError
from sandbox_manager.agents.kilo.agent import Kilo
from sandbox_manager.agents.opencode.agent import OpenCode
from sandbox_manager.agents.pi.agent import Pi
from sandbox_manager.agents.port import SandboxAgent

_LISTED: tuple[SandboxAgent, ...] = (ClaudeCode(), Codex(), Pi(), OpenCode(), Kilo(), Direct())

AGENTS: Mapping[str, SandboxAgent] = MappingProxyType({agent.name: agent for agent in _LISTED})


def agent_named(name: str) -> SandboxAgent:
    """The agent of that name. Raises UnknownAgentError with the names that exist."""
    agent = AGENTS.get(name)
    if agent is None:
        known = ", ".join(sorted(AGENTS))
        raise UnknownAgentError(f"unknown agent {name!r}; this build has: {known}", {"agent": name, "known": known})
    return agent
