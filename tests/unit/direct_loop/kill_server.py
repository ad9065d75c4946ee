"""Plays turns of the agent in forked processes and kills them with SIGKILL at a chosen instant. Run as a module; JSON lines both ways.

Instants are counted: every callback that the event loop is about to run (so every await point), and every point that journal and disk
name between two system calls. One case is a list of lives: in each the agent is opened on the same files and works until it is killed or
its turn ends.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVarTuple, Unpack

from direct_agent.session import journal
from direct_agent.tools.disk import Disk
from direct_agent.tools.port import Change
from direct_agent.tools.text_file import text_digest
from tests.unit.direct_loop.house import House
from tests.unit.direct_loop.scripted_model import Goal, ScriptedModel

_Ts = TypeVarTuple("_Ts")

GOALS = (
    (Goal.of("write", path="deep/er/a.txt", content="first\nsecond\n"),),
    (Goal.of("shell", command="echo ran >> shell.ledger"),),
    (Goal.of("read", path="deep/er/a.txt"), Goal.of("list"), Goal.of("search", pattern="second")),
    (
        Goal.of(
            "multi_edit",
            edits=[
                {"path": "deep/er/a.txt", "old_text": "first", "new_text": "first and more"},
                {"path": "b.txt", "old_text": "x", "new_text": "xx"},
            ],
        ),
        Goal.of("shell", command="echo again >> second.ledger"),
    ),
)


class Instants:
    """Kills this process at the instant with that number; 0: never."""

    def __init__(self, kill_at: int) -> None:
        self.count = 0
        self._kill_at = kill_at

    def reach(self, _point: str = "") -> None:
        self.count += 1
        if self.count == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


class CountingLoop(asyncio.SelectorEventLoop):
    """An instant before every callback."""

    instants: Instants

    def call_soon(
        self, callback: Callable[[Unpack[_Ts]], object], *args: *_Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return super().call_soon(self._counted, callback, args, context=context)

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[_Ts]], object], *args: *_Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return super().call_soon_threadsafe(self._counted, callback, args, context=context)

    def _counted(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.instants.reach()
        callback(*args)


def _halved_write(fd: int, content: bytes, reach: Callable[[str], None] = lambda _: None) -> None:
    """As journal's own, in two system calls with an instant between them: half records really are on disk."""
    middle = len(content) // 2
    for part in (content[:middle], content[middle:]):
        view = memoryview(part)
        while view:
            view = view[os.write(fd, view) :]
        reach("half append")


def _append(path: Path, line: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, line.encode() + b"\n")
    os.close(fd)


class LedgerDisk(Disk):
    """Notes every write beside the workspace before it happens."""

    ledger: Path

    def put(self, change: Change) -> None:
        _append(self.ledger, f"{change.path} {text_digest(change.after)}")
        super().put(change)


def play(root: Path, kill_at: int) -> int:
    """One life. Gives the number of instants it had."""
    instants = Instants(kill_at)
    journal._write_all = _halved_write
    LedgerDisk.ledger = root / "write.ledger"
    said = root / "said.jsonl"
    loop = CountingLoop()
    loop.instants = instants
    asyncio.set_event_loop(loop)

    async def live() -> None:
        house = House(root, instants.reach, disk_class=LedgerDisk)
        house.heard.on_event = lambda event: _append(said, json.dumps(dict(event)))
        agent = house.agent(ScriptedModel(GOALS))
        message = f"m{len(agent.session.history.turns) + 1}"
        _append(said, json.dumps({"type": "sent", "message_id": message}))
        await agent.deliver(message, "please work")
        agent.session.close()

    loop.run_until_complete(live())
    return instants.count


def main() -> None:
    for line in sys.stdin:
        case = json.loads(line)
        answers = []
        for kill_at in case["lives"]:
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(reader)
                status = 3
                try:
                    count = play(Path(case["root"]), kill_at)
                    os.write(writer, str(count).encode())
                    status = 0
                finally:
                    if status:
                        traceback.print_exc()
                    os._exit(status)
            os.close(writer)
            count_text = os.read(reader, 100)
            os.close(reader)
            _, status = os.waitpid(pid, 0)
            answers.append({"status": status, "instants": int(count_text) if count_text else None})
        print(json.dumps(answers), flush=True)


if __name__ == "__main__":
    main()
