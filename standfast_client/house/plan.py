"""What a house is made of: its processes in the order in which they start, with their command lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from standfast_client.house.engine_choice import EngineChoice
from standfast_client.house.ports import LOOPBACK

# Of our variables only these reach the processes: the house's own settings come to them as flags, and a process refuses a variable
# that belongs to its neighbour.
_PASSED_VARIABLES = frozenset({"STANDFAST_RELEASE_SHA"})
_PASSED_BEGINNINGS = ("STANDFAST_LAB_", "STANDFAST_TEST_")
# The provider's key, and the one process that may have it.
PROVIDER_KEY_VARIABLE = "STANDFAST_PROVIDER_KEY"
_KEY_HOLDER = "host-agent"


@dataclass(frozen=True)
class HouseSettings:
    """What the user asked for. Ports: 0 takes a free one. `provider_url` None: a lab provider of the house's own."""

    state: Path
    engine: str
    provider_url: str | None
    provider_key_file: Path | None
    provider_key_style: str
    image: str | None
    manifest: Path | None
    tools: Path | None
    allow_unisolated: bool
    on_exit: str
    runner_port: int
    manager_port: int
    host_port: int
    otlp_endpoint: str | None
    log_level: str
    ready_timeout_s: float
    stop_timeout_s: float


@dataclass(frozen=True)
class Part:
    """One process. `address` None: it is ready as soon as its file says so (the lab)."""

    name: str
    argv: tuple[str, ...]
    address: str


def parts_of(asked: HouseSettings, choice: EngineChoice, ports: Mapping[str, int], provider_url: str) -> list[Part]:
    """Manager, host agent, runner: each finds those it needs already there."""
    manager, host_agent, runner = (f"{LOOPBACK}:{ports[name]}" for name in ("manager", "host-agent", "runner"))
    shared = {"log-level": asked.log_level, "otlp-endpoint": asked.otlp_endpoint}
    return [
        Part(
            "manager",
            _argv(
                "manager",
                {"state": asked.state / "manager", "listen": manager, "manifest": choice.manifest, **shared},
            ),
            manager,
        ),
        Part(
            "host-agent",
            _argv(
                "host-agent",
                {
                    "state": asked.state / "host",
                    "listen": host_agent,
                    "manager": manager,
                    "engine": choice.engine,
                    "image": asked.image,
                    "tools": choice.tools,
                    "provider-url": provider_url,
                    "provider-key-file": asked.provider_key_file,
                    "provider-key-style": asked.provider_key_style,
                    "on-exit": asked.on_exit,
                    **shared,
                },
                ["--allow-unisolated"] if asked.allow_unisolated else [],
            ),
            host_agent,
        ),
        Part(
            "runner",
            _argv("runner", {"state": asked.state / "runner", "listen": runner, "manager": manager, **shared}),
            runner,
        ),
    ]


def child_environment(part: str) -> dict[str, str]:
    """The environment of one of the house's processes."""
    passed = _PASSED_VARIABLES | ({PROVIDER_KEY_VARIABLE} if part == _KEY_HOLDER else set())
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("STANDFAST_") or name in passed or name.startswith(_PASSED_BEGINNINGS)
    } | {"GRPC_ENABLE_FORK_SUPPORT": "false", "PYTHONUNBUFFERED": "1"}


def own_command(*words: str) -> tuple[str, ...]:
    """The command line that runs one of our own commands with this interpreter."""
    return (sys.executable, "-m", "standfast_client", *words)


def _argv(command: str, flags: Mapping[str, object], switches: list[str] | None = None) -> tuple[str, ...]:
    words = [f"--{name}={value}" for name, value in flags.items() if value is not None]
    return own_command(command, *words, *(switches or []))
