"""What an activation's run is told, in order: by the runner, by the slot's process, by its own waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sandbox_manager.core.values import Census, Observation, StoreReading
from sandbox_manager.host.conductor.hosted_slot import SlotNews


@dataclass(frozen=True, slots=True)
class FrameCame:
    """A frame for the CLI, from the runner."""

    data: bytes


@dataclass(frozen=True, slots=True)
class AdmissionCame:
    """The verified claims of an admission."""

    claims: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class InterruptCame:
    """An interrupt with its cause; `frame` is the driver's own, if it gave one."""

    cause: str
    frame: bytes | None


@dataclass(frozen=True, slots=True)
class RunnerLeft:
    """The stream of the work is over: cancelled, past its deadline, cut, or half-closed too early."""


@dataclass(frozen=True, slots=True)
class ProcessReady:
    """The process runs; `store` is what its native store held before."""

    store: StoreReading | None
    is_new: bool


@dataclass(frozen=True, slots=True)
class ReadyFailed:
    """The slot could not be made ready."""

    error: Exception


@dataclass(frozen=True, slots=True)
class TimeOver:
    """A wait is over; `what` names it."""

    what: str


@dataclass(frozen=True, slots=True)
class WoundUp:
    """The turn was wound up."""

    observation: Observation
    census: Census | None


Inbound = (
    FrameCame | AdmissionCame | InterruptCame | RunnerLeft | SlotNews | ProcessReady | ReadyFailed | TimeOver | WoundUp
)
