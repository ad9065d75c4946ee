"""Flattens what a host or a supervisor measured into one text an item, as attestors compare them. Pure.

A host's evidence has all items; a supervisor's measurement at a container's start has its own and the CLIs' only. `updater` is "off" when
the launch switches the CLI's own updater off: a thing of the host's launch spec, not of the container.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def evidence_items(claims: Mapping[str, Any]) -> dict[str, str]:
    """Items by name. What is absent, or of another shape, is left out: the comparison then calls it missing."""
    items: dict[str, str] = {}
    for name in ("image_id", "helper"):
        _put(items, name, claims.get(name))
    protocol = claims.get("protocol_version")
    if isinstance(protocol, int) and not isinstance(protocol, bool):
        items["protocol_version"] = str(protocol)
    supervisor = claims.get("supervisor")
    if isinstance(supervisor, dict):
        _put(items, "supervisor.version", supervisor.get("version"))
        _put(items, "supervisor.digest", supervisor.get("digest"))
    agents = claims.get("agents")
    for name, measured in agents.items() if isinstance(agents, dict) else ():
        if not isinstance(measured, dict):
            continue
        _put(items, f"cli.{name}.version", measured.get("version"))
        _put(items, f"cli.{name}.digest", measured.get("digest"))
        _put(items, f"cli.{name}.updater", measured.get("updater", _updater(claims.get("updater"), name)))
    return items


def _updater(found: object, name: str) -> object:
    """One word for all CLIs, or one for each."""
    return found.get(name) if isinstance(found, dict) else found


def _put(items: dict[str, str], name: str, value: object) -> None:
    if isinstance(value, str) and value:
        items[name] = value
