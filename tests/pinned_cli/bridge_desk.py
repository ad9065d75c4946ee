"""A bridge with its real server, driven by its own protocol, and the lab as the model."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from sandbox_manager.agents.registry import agent_named
from sandbox_manager.core.values import LaunchSettings
from sandbox_manager.guest.bridge_program import FOLDER
from tests.real_cli.site import command_lines

WAIT_S = 240.0  # a native start and a first prompt take a minute each on busy cores
Line = dict[str, Any]


class BridgeDesk:
    """Use as an async context manager. `lines` are what the bridge said so far."""

    def __init__(self, agent: str, executable: Path, folder: Path, model_url: str, mode: str = "auto") -> None:
        self.agent = agent
        self.lines: list[Line] = []
        self._folder = folder
        self._grown = asyncio.Condition()
        self.workspace = folder / "workspace"
        self.workspace.mkdir(parents=True, exist_ok=True)
        settings = LaunchSettings(
            agent=agent,
            native_session_id="",
            resume=False,
            home=str(folder / "home"),
            tmp=str(folder),
            workspace=str(self.workspace),
            executable=str(executable),
            model_base_url=model_url,
            slot_secret="none",
            model="lab-1",
        )
        (folder / "home").mkdir(exist_ok=True)
        self._spec = agent_named(agent).launch(replace(settings, permission_mode=mode))
        self._turns = 0

    async def __aenter__(self) -> Self:
        command = (sys.executable, "-I", "-S", "-B", str(FOLDER), *self._spec.argv)
        self.process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=dict(self._spec.env),
            cwd=self._spec.cwd,
            limit=1 << 26,
        )
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
        self._reading.cancel()

    async def close(self) -> int:
        """Closes its input; its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        async with asyncio.timeout(60):
            return await self.process.wait()

    def servers(self) -> list[int]:
        """The pids of its server, which has the home of this desk in its environment."""
        mark = f"HOME={self._folder / 'home'}".encode()
        found = []
        for pid, words in command_lines().items():
            if "serve" in words and mark in _environment(pid):
                found.append(pid)
        return found

    def write(self, op: str, **fields: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"v": 4, "op": op, **fields}).encode() + b"\n")

    async def open(self, session: str | None = None, directory: str | None = None) -> Line:
        self.write("open", id="open", session=session, directory=directory or str(self.workspace))
        return await self.until(lambda line: line["ev"] in ("opened", "refused"))

    async def prompt(self, text: str) -> int:
        """Sends it; gives the number of lines before it."""
        self._turns += 1
        self.write("prompt", id=f"message-{self._turns}", text=text)
        return len(self.lines)

    async def turn(self, text: str, on_ask: Callable[[Line], None] | None = None) -> list[Line]:
        """A whole turn's lines."""
        start = await self.prompt(text)
        answered = 0
        while True:
            line = await self.until(
                lambda line: line["ev"] in ("settled", "broken") or (line["ev"] == "ask" and on_ask is not None),
                start + answered,
            )
            if line["ev"] != "ask" or on_ask is None:
                return self.lines[start:]
            answered = self.lines.index(line) - start + 1
            on_ask(line)

    async def until(self, holds: Callable[[Line], bool], start: int = 0) -> Line:
        """The first line from `start` on for which it holds."""
        async with asyncio.timeout(WAIT_S), self._grown:
            while True:
                for line in self.lines[start:]:
                    if holds(line):
                        return line
                assert not any(line["ev"] == "end" for line in self.lines), f"the bridge left: {self.lines[-5:]}"
                await self._grown.wait()

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            await self._add(json.loads(line))
        await self._add({"ev": "end"})

    async def _add(self, line: Line) -> None:
        async with self._grown:
            self.lines.append(line)
            self._grown.notify_all()


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def end_of(lines: list[Line]) -> tuple[str, str | None]:
    """How a turn ended: outcome and reason, or the cause for which it has none."""
    last = lines[-1]
    return (last["outcome"], last["reason"]) if last["ev"] == "settled" else ("broken", last["cause"])


def texts_of(lines: list[Line]) -> list[str]:
    """The root's whole texts."""
    return [line["text"] for line in lines if line["ev"] == "text" and line["parent"] is None]


def is_gone(pid: int) -> bool:
    return not os.path.exists(f"/proc/{pid}")
