"""The runner's settings: flags before environment before defaults. No secret is a flag, and no switch that breaks a
rule is a setting.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from standfast_chassis.settings import StandfastSettings


class RunnerSettings(StandfastSettings):
    """Settings of `standfast runner`."""

    state: Path = Field(description="State folder: the signing key and the store.")
    manager: str = Field(description="Address of the sandbox manager, host:port.")
    listen: str = Field(
        default="127.0.0.1:7400", description="Address to listen on, host:port; port 0 takes a free one."
    )
    advertise: str | None = Field(
        default=None, description="Address at which clients find this runner; default: the one it listens on."
    )
    turns_max: int = Field(default=2000, gt=0, description="Turns that may be unresolved at the same time.")
    turn_limit_s: float = Field(default=0.0, ge=0, description="Time limit of a turn from its sending; 0: none.")
    silence_limit_s: float = Field(
        default=600.0, ge=0, description="How long a running CLI may print nothing; 0: for ever."
    )
    handshake_timeout_s: float = Field(
        default=45.0, gt=0, description="Bound of a native start, when the host agent does not bound it."
    )
    interrupt_wait_s: float = Field(
        default=10.0, gt=0, description="How long an interrupted turn may take to end, when the host agent is silent."
    )
    quiesce_timeout_s: float = Field(
        default=45.0, gt=0, description="How long the observation may take, before the manager is asked without it."
    )
    request_expiry_s: float = Field(
        default=600.0, gt=0, description="How long a native question or permission waits for its answer."
    )
    queue_max: int = Field(default=32, gt=0, description="Messages of one conversation that may wait for their turn.")
    manager_wait_s: float = Field(
        default=5.0, ge=0, description="How long a new turn waits for a manager that does not answer."
    )
    admit_wait_s: float = Field(
        default=30.0, ge=0, description="How long an activated turn waits for a manager that does not answer."
    )
    former_wait_s: float = Field(
        default=15.0, ge=0, description="How long a new turn waits for a former one of its conversation to be resolved."
    )
    prepare_timeout_s: float = Field(
        default=180.0, gt=0, description="Bound of placing, starting or restoring a sandbox."
    )
    settle_timeout_s: float = Field(default=90.0, gt=0, description="Bound of one settlement call; it is asked again.")
    stop_timeout_s: float = Field(default=90.0, gt=0, description="Bound of stopping or removing a conversation.")
    stop_grace_s: float = Field(default=5.0, ge=0, description="How long running calls may go on at shutdown.")
    free_min_bytes: int = Field(
        default=16 * 1024 * 1024,
        ge=0,
        description="Refuse to start with less free space than this in the state folder.",
    )
    otlp_endpoint: str | None = Field(default=None, description="OTLP/gRPC endpoint for traces.")
    log_level: str = Field(default="INFO", description="Log level.")
