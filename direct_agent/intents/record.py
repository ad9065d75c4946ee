"""One write intent: which file is to change from what to what. Pure.

Stored as raw JSON text on its tool call. A record that this version cannot read is kept as it is and proves nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

VERSION = 1


class Route(StrEnum):
    """How the bytes reach the file. OVERLAY: through an editor's or another remote channel."""

    DISK = "disk"
    OVERLAY = "overlay"


@dataclass(frozen=True, slots=True)
class WriteIntent:
    """`path` is absolute as used; `resolved_path` has links resolved (for a new file: the nearest parent's, and the rest).

    `before` and `after` are sha256 hex of the decoded text. `transport_id` is None where no channel is used. `version` and `route` are
    as recorded: one that is not known here is not refused but verified as unknown.
    """

    path: str
    host: str
    route: str
    resolved_path: str
    before: str
    after: str
    encoding: str
    existed: bool
    transport_id: str | None = None
    version: int = VERSION


def encode(intent: WriteIntent) -> str:
    """The raw JSON text to store."""
    value: dict[str, Any] = {
        "version": intent.version,
        "path": intent.path,
        "host": intent.host,
        "transport_id": intent.transport_id,
        "route": intent.route,
        "resolved_path": intent.resolved_path,
        "before": intent.before,
        "after": intent.after,
        "encoding": intent.encoding,
        "existed": intent.existed,
    }
    return json.dumps(value, separators=(",", ":"))


def decode(raw: str) -> WriteIntent | None:
    """None when it proves nothing: no JSON object, another version, or a missing path, host or after."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or type(value.get("version")) is not int or value["version"] != VERSION:
        return None
    texts = [value.get(name) for name in ("path", "host", "after")]
    if not all(isinstance(text, str) and text for text in texts):
        return None
    transport_id = value.get("transport_id")
    return WriteIntent(
        path=value["path"],
        host=value["host"],
        route=_text(value, "route"),
        resolved_path=_text(value, "resolved_path"),
        before=_text(value, "before"),
        after=value["after"],
        encoding=_text(value, "encoding"),
        existed=value.get("existed") is True,
        transport_id=transport_id if isinstance(transport_id, str) else None,
    )


def _text(value: dict[str, Any], name: str) -> str:
    found = value.get(name)
    return found if isinstance(found, str) else ""
