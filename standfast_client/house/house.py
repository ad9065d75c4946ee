"""Puts the house up, keeps it, takes it down.

    STARTING ──each ready in turn──▶ UP ──signal──▶ STOPPING (reverse order) ──▶ DOWN, exit 0
        │                             │                        │
        └──one breaks, or a signal────┴──one ends by itself────┘ exit 1 (0 after a signal)

A second signal while STOPPING shortens every wait.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from standfast_chassis.state_folder import StateFolder
from standfast_client.house.child import Child
from standfast_client.house.endpoints import Endpoints, remove_endpoints, write_endpoints
from standfast_client.house.engine_choice import chosen_engine, engine_answers
from standfast_client.house.errors import HouseBrokeError, HouseError
from standfast_client.house.log_lines import LogLines
from standfast_client.house.plan import HouseSettings, Part, child_environment, own_command, parts_of
from standfast_client.house.ports import chosen_ports
from standfast_client.house.readiness import wait_until_serving

LAB_READY_S = 60.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


async def run_house(asked: HouseSettings, lines: LogLines, on_up: Callable[[Endpoints], None]) -> int:
    """Runs until a signal or until a process ends by itself. `on_up` is called once when all serve.

    Returns the exit code. Raises StandfastError when it was refused: then nothing was started.
    """
    if asked.provider_key_file is not None and not asked.provider_key_file.is_file():
        raise HouseError(f"expected the provider's key in {asked.provider_key_file}, found no such file.")
    with StateFolder(asked.state):
        # Whoever held the folder before us is gone, so these are nobody's.
        remove_endpoints(asked.state)
        answers = await asyncio.to_thread(engine_answers) if asked.engine != "local" else None
        choice = chosen_engine(asked.engine, asked.manifest, asked.tools, answers=answers)
        if choice.note is not None:
            lines.note(choice.note)
        ports = chosen_ports(
            {"manager": asked.manager_port, "host-agent": asked.host_port, "runner": asked.runner_port}
        )
        house = _House(asked, lines)
        try:
            provider_url = asked.provider_url or await house.start_lab(asked.state)
            parts = parts_of(asked, choice, ports, provider_url) if provider_url is not None else []
            if provider_url is not None and await house.start(parts):
                endpoints = Endpoints(
                    runner=parts[2].address,
                    manager=parts[0].address,
                    host_agent=parts[1].address,
                    engine=choice.engine,
                    provider_url=provider_url,
                    pids=house.pids,
                )
                write_endpoints(asked.state, endpoints)
                lines.note(f"ready: runner at {endpoints.runner}, engine {endpoints.engine}, provider {provider_url}")
                on_up(endpoints)
                await house.keep()
            return 0
        except HouseBrokeError as error:
            lines.note(f"{error.reason}: {error}")
            return 1
        finally:
            remove_endpoints(asked.state)
            await house.stop()


class _House:
    def __init__(self, asked: HouseSettings, lines: LogLines) -> None:
        self._asked = asked
        self._lines = lines
        self._children: list[Child] = []
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        for number in _SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by name."""
        return {child.name: child.pid for child in self._children}

    async def start_lab(self, state: Path) -> str | None:
        """Starts a lab provider; returns its base URL, or None when a signal came. Raises HouseBrokeError."""
        ready = state / "lab-ready.json"
        ready.unlink(missing_ok=True)
        argv = own_command("lab", "provider", f"--log={state / 'lab.jsonl'}", f"--ready-file={ready}")
        child = await self._start("lab", argv)
        deadline = time.monotonic() + LAB_READY_S
        while child.exit_code is None and time.monotonic() < deadline:
            if self._stopping.is_set():
                return None
            try:
                return str(json.loads(ready.read_text(encoding="utf-8"))["base_url"])
            except FileNotFoundError:
                await asyncio.sleep(0.02)
        raise HouseBrokeError(
            "the lab provider "
            + (
                f"was not ready within {LAB_READY_S:g} s"
                if child.exit_code is None
                else f"ended with {child.exit_code}"
            )
            + "; its own lines above say why.",
            {"process": child.name, "exit_code": child.exit_code},
        )

    async def start(self, parts: list[Part]) -> bool:
        """Starts the parts one after another, each when those before it serve. False: a signal came meanwhile."""
        for part in parts:
            child = await self._start(part.name, part.argv)
            ready = asyncio.create_task(wait_until_serving(child, part.address, self._asked.ready_timeout_s))
            stopping = asyncio.create_task(self._stopping.wait())
            try:
                await asyncio.wait({ready, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if self._stopping.is_set():
                    return False
                await ready
            finally:
                ready.cancel()
                stopping.cancel()
                await asyncio.gather(ready, stopping, return_exceptions=True)
        return True

    async def keep(self) -> None:
        """Returns at a signal. Raises HouseBrokeError when a process ends by itself."""
        ends = {asyncio.create_task(child.wait()): child for child in self._children}
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            done, _ = await asyncio.wait({*ends, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not self._stopping.is_set():
                child = next(ends[task] for task in done if task in ends)
                raise HouseBrokeError(
                    f"{child.name} ended by itself with code {child.exit_code}; stopping the others.",
                    {"process": child.name, "exit_code": child.exit_code},
                )
        finally:
            for task in (*ends, stopping):
                task.cancel()

    async def stop(self) -> None:
        """Stops what runs, the last started first. Bounded."""
        for child in reversed(self._children):
            if child.exit_code is None:
                self._lines.note(f"stopping {child.name}")
            if not await child.stop(self._asked.stop_timeout_s, self._hurry):
                self._lines.note(f"{child.name} did not leave within {self._asked.stop_timeout_s:g} s and was killed")
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
            # All is down and this process is about to end: an impatient second signal must not turn that into a failure.
            signal.signal(number, signal.SIG_IGN)

    async def _start(self, name: str, argv: tuple[str, ...]) -> Child:
        child = await Child.start(name, argv, child_environment(name), self._lines.line)
        self._children.append(child)
        return child

    def _on_signal(self, number: signal.Signals) -> None:
        if self._stopping.is_set():
            self._hurry.set()
            self._lines.note(f"{number.name} again: hurrying")
        else:
            self._stopping.set()
            self._lines.note(f"{number.name}: stopping in order")


def endpoints_line(endpoints: Endpoints) -> str:
    """The endpoints as one JSON line."""
    return json.dumps({"event": "ready", **asdict(endpoints)})
