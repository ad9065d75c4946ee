"""Drives the Claude Code CLI straight over its stdio, with nothing of Standfast between.

For trials against the real part and for measuring what the bare thing costs. It knows just enough of the protocol to
send one message and to see it end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

Event = dict[str, Any]
_LINE_BYTES_MAX = 64 * 1024 * 1024
_TURN_TIMEOUT_S = 60.0
_EXIT_TIMEOUT_S = 20.0

QUIET_ENVIRONMENT = {
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_AUTOUPDATER": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
    "CLAUDE_CODE_DISABLE_CRON": "1",
}
"""One prompt is one turn: no network but the model, no background task, no cron."""

QUIET_FLAGS = (
    "--disallowedTools",
    "CronCreate,CronDelete,CronList,ScheduleWakeup,Workflow,EnterWorktree,ExitWorktree,EnterPlanMode,ExitPlanMode",
)
"""The last two would move the working directory and the transcript with it, so the locator."""


def bare_environment(home: Path, base_url: str, *, api_key: str = "lab") -> dict[str, str]:
    """Returns a whole environment, from nothing.

    IS_SANDBOX lets root skip permission checks; without it the CLI exits 1.
    """
    return {
        "HOME": str(home),
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "TMPDIR": str(home),
        "ANTHROPIC_API_KEY": api_key,
        "ANTHROPIC_BASE_URL": base_url,
        "IS_SANDBOX": "1",
        **QUIET_ENVIRONMENT,
    }


@dataclass(frozen=True)
class BareTurn:
    """What one message brought: every event from its writing to its end."""

    uuid: str
    events: list[Event] = field(default_factory=list)

    @property
    def result(self) -> Event | None:
        """The result of this turn: the first one without `origin`; None for a repeated uuid."""
        return next((e for e in self.events if e["type"] == "result" and not e.get("origin")), None)

    @property
    def texts(self) -> tuple[str, ...]:
        """The root's assistant texts, those of the CLI's own model apart."""
        return tuple(
            block["text"]
            for e in self.events
            if e["type"] == "assistant" and not e.get("parent_tool_use_id") and e["message"]["model"] != "<synthetic>"
            for block in e["message"]["content"]
            if block["type"] == "text"
        )

    def of(self, kind: str, subtype: str | None = None) -> list[Event]:
        """Returns the events of one type."""
        return [e for e in self.events if e["type"] == kind and subtype in (None, e.get("subtype"))]


class BareClaude:
    """One CLI process; async context manager. `events` holds everything it printed, `stderr` too once it has exited."""

    def __init__(
        self,
        executable: Path,
        *,
        workspace: Path,
        environment: Mapping[str, str] | None,
        session_id: str,
        is_resume: bool = False,
        flags: Sequence[str] = QUIET_FLAGS,
        model: str = "claude-sonnet-4-5",
        launcher: Sequence[str] = (),
    ) -> None:
        """`environment` None: this process's own. `launcher`: a command that runs the CLI, before its own words."""
        start = ["--resume" if is_resume else "--session-id", session_id]
        self._argv = [
            *launcher,
            str(executable),
            "-p",
            "--input-format",
            "stream-json",
            "--output-format",
            "stream-json",
        ]
        self._argv += ["--verbose", "--model", model, "--permission-mode", "bypassPermissions", *start, *flags]
        self._workspace, self._environment = workspace, None if environment is None else dict(environment)
        self.events: list[Event] = []
        self.stderr = b""

    async def __aenter__(self) -> Self:
        # A session of its own, so that what its tools leave behind can be ended with it.
        self.process = await asyncio.create_subprocess_exec(
            *self._argv,
            cwd=self._workspace,
            env=self._environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES_MAX,
            start_new_session=True,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await asyncio.wait_for(self.process.wait(), _EXIT_TIMEOUT_S)

    async def ask(self, text: str, *, message_uuid: str | None = None, timeout_s: float = _TURN_TIMEOUT_S) -> BareTurn:
        """Sends one message and waits for its end.

        An empty second block keeps text that begins with `/` from being run as a command.
        """
        turn = await self.send(text, message_uuid=message_uuid)
        await self.until(lambda e: _ends(e, turn.uuid), turn, timeout_s=timeout_s)
        return turn

    async def send(self, text: str, *, message_uuid: str | None = None) -> BareTurn:
        """Sends one message and does not wait."""
        content = [{"type": "text", "text": text}] + ([{"type": "text", "text": ""}] if text.startswith("/") else [])
        turn = BareTurn(message_uuid or str(uuid.uuid4()))
        await self.write({"type": "user", "uuid": turn.uuid, "message": {"role": "user", "content": content}})
        return turn

    async def write(self, message: Mapping[str, object]) -> None:
        """Writes one line."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        await asyncio.wait_for(self.process.stdin.drain(), _TURN_TIMEOUT_S)

    async def control(self, subtype: str, **more: object) -> Event:
        """Sends a control request and returns its answer."""
        request_id = str(uuid.uuid4())
        await self.write({"type": "control_request", "request_id": request_id, "request": {"subtype": subtype, **more}})
        return await self.until(lambda e: e["type"] == "control_response" and e["response"]["request_id"] == request_id)

    async def until(
        self, predicate: Callable[[Event], bool], turn: BareTurn | None = None, *, timeout_s: float = _TURN_TIMEOUT_S
    ) -> Event:
        """Reads events until one fits, and returns it. Raises EOFError if the CLI ends first."""
        async with asyncio.timeout(timeout_s):
            while True:
                event = await self._next()
                if turn is not None:
                    turn.events.append(event)
                if predicate(event):
                    return event

    async def close(self, *, timeout_s: float = _EXIT_TIMEOUT_S) -> int:
        """Closes stdin, reads to the end and returns the exit code (1 if the last turn ended in an error)."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return await self._exit(timeout_s)

    async def end(self, number: signal.Signals, *, timeout_s: float = _EXIT_TIMEOUT_S) -> int:
        """Sends a signal to the CLI alone, reads to the end and returns the exit code."""
        self.process.send_signal(number)
        return await self._exit(timeout_s)

    async def _exit(self, timeout_s: float) -> int:
        assert self.process.stderr is not None
        async with asyncio.timeout(timeout_s):
            try:
                while True:
                    await self._next()
            except EOFError:
                self.stderr += await self.process.stderr.read()
            return await self.process.wait()

    async def _next(self) -> Event:
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        if not line:
            raise EOFError(f"claude ended its output; last event: {self.events[-1:]}")
        event: Event = json.loads(line)
        self.events.append(event)
        return event


def transcript_path(home: Path, session_id: str) -> Path | None:
    """Returns the transcript of a session below this home, None if there is none."""
    return next(iter((home / ".claude" / "projects").glob(f"*/{session_id}.jsonl")), None)


def transcript_records(home: Path, session_id: str) -> list[Event]:
    """Returns the whole records of a transcript; a last line without its line feed is not one."""
    path = transcript_path(home, session_id)
    if path is None:
        return []
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def _ends(event: Event, message_uuid: str) -> bool:
    return (
        event["type"] == "command_lifecycle"
        and event["command_uuid"] == message_uuid
        and event["state"] in ("completed", "cancelled")
    )
