"""Bounds of an activation's waits, and the switches that only the lab and the tests inject."""

from __future__ import annotations

from dataclasses import dataclass, field

from sandbox_manager.host.core.disposition import DispositionPolicy
from sandbox_manager.host.core.gate import GatePolicy


@dataclass(frozen=True, slots=True)
class ActivationLimits:
    """Seconds and bytes; the defaults of the design, chapter 2."""

    handshake_timeout_s: float = 30.0
    quiesce_timeout_s: float = 5.0
    store_wait_s: float = 5.0
    exit_wait_s: float = 10.0
    interrupt_wait_s: float = 3.0
    slot_free_s: float = 5.0  # after the runner's stream is lost
    tap_limit_bytes: int = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class HostPolicy:
    """Switches that break a rule on purpose. No flag of a production process sets one."""

    gate: GatePolicy = field(default_factory=GatePolicy)
    disposition: DispositionPolicy = field(default_factory=DispositionPolicy)
