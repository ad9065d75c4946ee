"""A whole fleet on loopback: manager, host agent, runner, each a process of its own below one folder.

async with Fleet(folder, engine="local", provider_url=url) as fleet:
    ... fleet.runner.address ...
    await fleet.host_agent.kill(); await fleet.restart(fleet.host_agent)
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from standfast_lab.fleet.member_process import MemberProcess
from standfast_lab.fleet.switches import Switches

# All containers of an engine together weigh as much as one process outside them (cgroup v1's default shares): beside a busy test
# run a native start that takes a second by itself was seen to take more than 30.
NATIVE_START_S = 90.0


@dataclass(frozen=True, slots=True)
class Parts:
    """What a fleet runs on. `image`, `manifest`, `tools`: as `scripts/build_image` and `scripts/local_tools` made them."""

    engine: str
    manifest: Path
    image: str | None = None
    tools: Path | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


class Fleet:
    """Use as an async context manager. `settings` adds flags to a process by kind."""

    def __init__(
        self,
        folder: Path,
        parts: Parts,
        provider_url: str,
        *,
        switches: Switches | None = None,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        otlp_endpoint: str | None = None,
        provider_key_file: Path | None = None,
    ) -> None:
        self.folder = folder
        self.parts = parts
        self.switches = switches or Switches()
        given = settings or {}
        manager, host, runner = (f"127.0.0.1:{port}" for port in free_ports(3))
        common = {} if otlp_endpoint is None else {"otlp_endpoint": otlp_endpoint}
        host_flags: dict[str, Any] = {
            "state": str(folder / "h"),
            "manager": manager,
            "listen": host,
            "engine": parts.engine,
            "provider_url": provider_url,
            "on_exit": "stop",
            "handshake_timeout_s": NATIVE_START_S,
        }
        if parts.image is not None:
            host_flags["image"] = parts.image
        if parts.tools is not None:
            host_flags["tools"] = str(parts.tools)
        if parts.labels:
            host_flags["extra_labels"] = dict(parts.labels)
        if provider_key_file is not None:
            host_flags["provider_key_file"] = str(provider_key_file)
        self.manager = self._member(
            "manager",
            manager,
            {"state": str(folder / "m"), "manifest": str(parts.manifest), "listen": manager},
            common,
            given,
        )
        self.host_agent = self._member("host-agent", host, host_flags, common, given)
        self.runner = self._member(
            "runner",
            runner,
            {
                "state": str(folder / "r"),
                "manager": manager,
                "listen": runner,
                "handshake_timeout_s": NATIVE_START_S + 15.0,
            },
            common,
            given,
        )

    @property
    def members(self) -> tuple[MemberProcess, ...]:
        """In the order of their start."""
        return (self.manager, self.host_agent, self.runner)

    async def __aenter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            for member in self.members:
                await member.start()
            await asyncio.gather(*(member.wait_ready() for member in self.members))
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Stops all in reverse order; the host agent stops its sandboxes. Idempotent."""
        for member in reversed(self.members):
            await member.stop()

    async def restart(self, member: MemberProcess, *, switches: Switches | None = None) -> None:
        """Starts a member again that was stopped or killed, and waits until it serves."""
        if switches is not None:
            member.switches = switches
        await member.start()
        await member.wait_ready()

    def _member(
        self,
        kind: str,
        address: str,
        flags: dict[str, Any],
        common: Mapping[str, Any],
        given: Mapping[str, Mapping[str, Any]],
    ) -> MemberProcess:
        return MemberProcess(
            kind, address, {**flags, **common, **given.get(kind, {})}, self.switches, self.folder / f"{kind}.log"
        )


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago. Held open together while they are chosen, so that all differ."""
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in held]
    finally:
        for one in held:
            one.close()
