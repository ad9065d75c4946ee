"""The manager's settings: flags before environment before defaults. No secret is a flag, and no switch that breaks a rule is a setting."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from standfast_chassis.settings import StandfastSettings


class ManagerSettings(StandfastSettings):
    """Settings of `standfast manager`."""

    state: Path = Field(description="State folder: the signing key and the store.")
    manifest: Path = Field(description="The release manifest that hosts are compared with (JSON).")
    listen: str = Field(
        default="127.0.0.1:7410", description="Address to listen on, host:port; port 0 takes a free one."
    )
    activation_lease_s: float = Field(default=30.0, gt=0, description="Lease of a claim and of an activation.")
    host_lease_s: float = Field(default=20.0, gt=0, description="Lease of a host, renewed by its heartbeats.")
    heartbeat_s: float = Field(default=5.0, gt=0, description="How often a host is told to send a heartbeat.")
    idle_stop_s: float = Field(default=900.0, ge=0, description="Stop a sandbox that is idle for so long; 0: never.")
    reconcile_s: float = Field(
        default=1.0, gt=0, description="How often leases, heartbeats and half-done work are looked at."
    )
    ensure_timeout_s: float = Field(default=60.0, gt=0, description="Bound of making or starting a sandbox.")
    stop_timeout_s: float = Field(default=45.0, gt=0, description="Bound of stopping a sandbox.")
    host_answer_timeout_s: float = Field(default=10.0, gt=0, description="Bound of a host agent's short answers.")
    read_store_timeout_s: float = Field(default=30.0, gt=0, description="Bound of reading a native store.")
    stop_grace_s: float = Field(default=5.0, ge=0, description="How long running calls may go on at shutdown.")
    free_min_bytes: int = Field(
        default=16 * 1024 * 1024,
        ge=0,
        description="Refuse to start with less free space than this in the state folder.",
    )
    otlp_endpoint: str | None = Field(default=None, description="OTLP/gRPC endpoint for traces.")
    log_level: str = Field(default="INFO", description="Log level.")
