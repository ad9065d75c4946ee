"""The release manifest: what a host of this release must show when it measures itself."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandbox_manager.guest import PROTOCOL_VERSION

# Enough for a day's rebuilds; a retained container made from an older image than these is refused as retired.
_ACCEPTED_MAX = 32


@dataclass(frozen=True, slots=True)
class Measured:
    """A version as printed by the thing itself, and the digest of its bytes (`sha256:<hex>`)."""

    version: str
    digest: str


@dataclass(frozen=True, slots=True)
class Measurement:
    """What the supervisor says of itself, of the CLIs and of the bridge beside it."""

    supervisor: Measured
    agents: dict[str, Measured]
    helper: str


def release_sha(repo: Path) -> str:
    """The commit of the tree, with `-dirty` when it has changes; `unknown` where there is no git history."""
    git = ["git", "-c", f"safe.directory={repo}", "-C", str(repo)]
    try:
        head = subprocess.run(
            [*git, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=60, check=True
        ).stdout.strip()
        changes = subprocess.run(
            [*git, "status", "--porcelain"], capture_output=True, text=True, timeout=60, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("-dirty" if changes.strip() else "")


def manifest_of(image_id: str, measured: Measurement, sha: str, before: dict[str, Any] | None) -> dict[str, Any]:
    """The manifest for an image, or for a tool folder under its digest.

    Images of the manifest `before` stay accepted while the guest protocol, the helper and the CLIs are the same: a conversation that
    was retained in one of them can go on.
    """
    agents = {name: {"version": cli.version, "digest": cli.digest} for name, cli in sorted(measured.agents.items())}
    accepted = [image_id]
    same = {"protocol_version": PROTOCOL_VERSION, "agents": agents, "helper": measured.helper}
    if before is not None and all(before.get(name) == value for name, value in same.items()):
        accepted += [earlier for earlier in before.get("accepted_image_ids", []) if earlier != image_id]
    return {
        "release_sha": sha,
        "protocol_version": PROTOCOL_VERSION,
        "image_id": image_id,
        "accepted_image_ids": accepted[:_ACCEPTED_MAX],
        "supervisor": {"version": measured.supervisor.version, "digest": measured.supervisor.digest},
        "agents": agents,
        "helper": measured.helper,
    }


def read_manifest(path: Path) -> dict[str, Any] | None:
    """The manifest in `path`; `None` where there is none that can be read."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def write_manifest(path: Path, manifest: dict[str, Any]) -> None:
    """Writes it complete or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(path.name + ".part")
    half.write_text(json.dumps(manifest, indent=2) + "\n")
    os.replace(half, path)
