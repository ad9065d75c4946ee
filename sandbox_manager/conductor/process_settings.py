"""What a member's processes are started with, and its digest: equal settings, equal digest."""

from __future__ import annotations

from sandbox_manager.core.records import Permissions, ProcessSettings
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
