"""What a member's processes are started with, and its digest: equal settings, equal digest."""

from __future__ import annotations

from sandbox_manager.agents.errors import AgentError
from sandbox_manager.agents.registry import AGENTS
from sandbox_manager.core.records import Permissions, ProcessSettings, SaidSettings
from sandbox_manager.core.refusals import SettingUnknownError
from sandbox_manager.core.values import LaunchSettings
from standfast_chassis.canonical_json import sha256_hex


def process_settings(
    model: str | None, permissions: Permissions, options: tuple[tuple[str, str], ...] = ()
) -> ProcessSettings:
    """The settings with their digest."""
    digest = sha256_hex(
        {
            "model": model,
            "permission_mode": permissions.mode,
            "options": dict(options),
            "allow_rules": list(permissions.allow_rules),
            "deny_rules": list(permissions.deny_rules),
        }
    )
    return ProcessSettings(model, permissions, options, digest)


def in_force(said: SaidSettings, kept: ProcessSettings | None) -> ProcessSettings:
    """What holds for a turn: a turn that says nothing of something must not undo what the conversation was told before."""
    if kept is None:
        return process_settings(said.model, said.permissions or Permissions(), said.options)
    options = tuple(sorted({**dict(kept.options), **dict(said.options)}.items()))
    return process_settings(said.model or kept.model, said.permissions or kept.permissions, options)


def require_taken(agent: str, settings: ProcessSettings) -> None:
    """That the agent takes these settings: its own file is asked, so that there is one list. Raises SettingUnknownError."""
    # Places and secret do not matter to it here.
    probe = LaunchSettings(
        agent=agent,
        native_session_id="00000000-0000-4000-8000-000000000000",
        resume=False,
        home="/home",
        tmp="/tmp",
        workspace="/workspace",
        executable="cli",
        model_base_url="http://127.0.0.1",
        slot_secret="-",
        model=settings.model,
        permission_mode=settings.permissions.mode,
        options=settings.options,
        allow_rules=settings.permissions.allow_rules,
        deny_rules=settings.permissions.deny_rules,
    )
    try:
        AGENTS[agent].launch(probe)
    except AgentError as error:
        raise SettingUnknownError(error.message, error.metadata) from error
