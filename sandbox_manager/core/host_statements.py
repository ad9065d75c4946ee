"""What a host agent's signed sandbox and store statements say, read strictly. Signatures are checked before; what it means comes after.

`sandbox` and `inspect` statements are flat JSON objects: state (absent, created, running, exited), container_id, image_id, nonce,
started_at, finished_at, exit_code, oom_killed, orderly, created_now, started_now, workspace, measured. What one does not say is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sandbox_manager.core.codec import CodecError, from_json
from sandbox_manager.core.values import StoreReading

ABSENT = "absent"
CREATED = "created"
RUNNING = "running"
EXITED = "exited"
_STATES = (ABSENT, CREATED, RUNNING, EXITED)


@dataclass(frozen=True, slots=True)
class SandboxStatement:
    """The engine's inspect, and what the supervisor read and measured. `orderly` is None except after a stop."""

    state: str
    container_id: str | None
    image_id: str | None
    nonce: str | None
    started_at: str | None
    finished_at: str | None
    exit_code: int | None
    orderly: bool | None
    created_now: bool
    started_now: bool
    workspace: str | None
    measured: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class StoreStatement:
    """A store reading and the container it was read in."""

    container_id: str
    reading: StoreReading


def sandbox_statement(claims: Mapping[str, Any]) -> SandboxStatement:
    """Reads a verified `sandbox` or `inspect` statement. Raises CodecError."""
    state = _text(claims, "state")
    if state not in _STATES:
        raise CodecError("$.state", " or ".join(_STATES), repr(state)[:80])
    measured = claims.get("measured")
    if measured is not None and not isinstance(measured, dict):
        raise CodecError("$.measured", "an object", type(measured).__name__)
    return SandboxStatement(
        state=state,
        container_id=_text(claims, "container_id"),
        image_id=_text(claims, "image_id"),
        nonce=_text(claims, "nonce"),
        started_at=_text(claims, "started_at"),
        finished_at=_text(claims, "finished_at"),
        exit_code=_number(claims, "exit_code"),
        orderly=_truth(claims, "orderly"),
        created_now=bool(_truth(claims, "created_now")),
        started_now=bool(_truth(claims, "started_now")),
        workspace=_text(claims, "workspace"),
        measured=measured,
    )


def store_statement(claims: Mapping[str, Any]) -> StoreStatement:
    """Reads a verified `store` statement. Raises CodecError."""
    container_id = _text(claims, "container_id")
    if container_id is None:
        raise CodecError("$.container_id", "the container that was read", "nothing")
    return StoreStatement(container_id=container_id, reading=from_json(StoreReading, claims.get("reading")))


def _text(claims: Mapping[str, Any], name: str) -> str | None:
    value = claims.get(name)
    if value is not None and not isinstance(value, str):
        raise CodecError(f"$.{name}", "a text or nothing", type(value).__name__)
    return value


def _truth(claims: Mapping[str, Any], name: str) -> bool | None:
    value = claims.get(name)
    if value is not None and not isinstance(value, bool):
        raise CodecError(f"$.{name}", "true, false or nothing", type(value).__name__)
    return value


def _number(claims: Mapping[str, Any], name: str) -> int | None:
    value = claims.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise CodecError(f"$.{name}", "a whole number or nothing", type(value).__name__)
    return value
