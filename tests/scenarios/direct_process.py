"""One real `python -m direct_agent` against the lab provider, spoken to in lines."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

KEY = "sk-direct-scenario-0123456789abcdef"
SESSION_ID = "11111111-0000-4000-8000-000000000001"
_TIMEOUT_S = 30.0


class DirectProcess:
    """Made by `start`. `printed` are all raw bytes of its stdout; `events` what they said."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.printed = b""
        self.events: list[dict[str, Any]] = []

    @classmethod
    async def start(cls, root: Path, base_url: str, *options: str, session: str = "--resume") -> DirectProcess:
        work = root / "work"
        work.mkdir(parents=True, exist_ok=True)
        named = () if session == "" else (f"{session}={SESSION_ID}",)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "direct_agent",
            *named,
            f"--home={root / 'home'}",
            f"--workspace={work}",
            f"--base-url={base_url}",
            "--model=lab",
            *options,
            cwd=Path(__file__).parents[2],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={"PATH": os.environ["PATH"], "HOME": str(root / "home"), "STANDFAST_MODEL_KEY": KEY},
            limit=64 * 1024 * 1024,
        )
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, **frame: Any) -> None:
        self.send_raw(json.dumps(frame).encode() + b"\n")

    def send_raw(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)

    async def heard(self, kind: str, is_it: Callable[[dict[str, Any]], bool] = lambda _: True) -> dict[str, Any]:
        """The next event of that kind; those before it are kept in `events`."""
        async with asyncio.timeout(_TIMEOUT_S):
            while True:
                event = await self._next()
                assert event is not None, f"the process ended before {kind}: {await self.errors()}"
                if event["type"] == kind and is_it(event):
                    return event

    async def handshake(self) -> dict[str, Any]:
        self.send(type="initialize", id="init-1")
        return await self.heard("initialized")

    async def turn(self, message_id: str, text: str) -> dict[str, Any]:
        self.send(type="user", message_id=message_id, text=text)
        return await self.heard("turn_end")

    async def leave(self) -> int:
        """Ends its stdin and waits for it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return await self._over()

    async def terminate(self) -> int:
        self._process.terminate()
        return await self._over()

    async def kill(self) -> None:
        os.kill(self._process.pid, signal.SIGKILL)
        await self._over()

    async def errors(self) -> str:
        assert self._process.stderr is not None
        async with asyncio.timeout(_TIMEOUT_S):
            return (await self._process.stderr.read()).decode()

    async def _over(self) -> int:
        async with asyncio.timeout(_TIMEOUT_S):
            while await self._next() is not None:
                pass
            return await self._process.wait()

    async def _next(self) -> dict[str, Any] | None:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            return None
        self.printed += line
        event: dict[str, Any] = json.loads(line)
        self.events.append(event)
        return event
