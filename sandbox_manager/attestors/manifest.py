"""Compares a host's evidence with the release manifest, item by item. Pure.

Pinned means equal: a newer version is as wrong as an older one. An item that the manifest names and the evidence lacks is missing,
never passed over; an item of the evidence that no manifest names proves nothing and is not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sandbox_manager.core.judgement import Reason
from sandbox_manager.core.values import Verdict


@dataclass(frozen=True, slots=True)
class CliPin:
    """One CLI: the exact version, and the sha256 of its executable as measured in the built image."""

    name: str
    version: str
    digest: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What this release accepts. `helper` is None only in a manifest from before there was one."""

    protocol_version: str
    accepted_images: tuple[str, ...]
    supervisor_version: str
    supervisor_digest: str
    clis: tuple[CliPin, ...]
    helper: str | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that the evidence must show. `reason` is what a difference is called, `missing_reason` its absence."""

    name: str
    accepted: tuple[str, ...]
    reason: str
    missing_reason: str = "EVIDENCE_MISSING"


def items_of(manifest: Manifest) -> tuple[Item, ...]:
    """What the evidence must show, in the order in which it is reported."""
    items = [
        Item("protocol_version", (manifest.protocol_version,), "EVIDENCE_CONTRADICTED"),
        Item("image_id", manifest.accepted_images, "IMAGE_RETIRED"),
        Item("supervisor.version", (manifest.supervisor_version,), "EVIDENCE_CONTRADICTED"),
        Item("supervisor.digest", (manifest.supervisor_digest,), "EVIDENCE_CONTRADICTED"),
    ]
    if manifest.helper is not None:
        # An image without one is as old as one with an older.
        items.append(Item("helper", (manifest.helper,), "HELPER_VERSION_MISMATCH", "HELPER_VERSION_MISMATCH"))
    for cli in manifest.clis:
        items.append(Item(f"cli.{cli.name}.version", (cli.version,), "CLI_VERSION_MISMATCH"))
        items.append(Item(f"cli.{cli.name}.digest", (cli.digest,), "CLI_VERSION_MISMATCH"))
        items.append(Item(f"cli.{cli.name}.updater", ("off",), "UPDATER_ENABLED"))
    return tuple(items)


def compare(manifest: Manifest, evidence: Mapping[str, str]) -> tuple[Reason, ...]:
    """Everything that is wrong with the evidence; empty when all of it is as it must be.

    `evidence` has one measured value an item. A missing item is UNPROVEN with its `missing_reason`; a differing one is
    CONTRADICTED with the item's own reason. `expected` and `found` begin with the item's name.
    """
    reasons = []
    for item in items_of(manifest):
        expected = f"{item.name} = {' or '.join(item.accepted)}"
        found = evidence.get(item.name)
        if found is None or found == "":
            reasons.append(Reason(item.missing_reason, expected, f"{item.name} is missing", Verdict.UNPROVEN))
        elif found not in item.accepted:
            reasons.append(Reason(item.reason, expected, f"{item.name} = {found[:200]}"))
    return tuple(reasons)
