"""What a cell is played on: a fleet, the places where a turn can be held there, and how to find and end what runs in a sandbox."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from standfast_lab.fleet.switches import Switches
from tests.house.leftovers import marked_processes
from tests.kill_matrix.holds import GateHold, Hold, SpanHold
from tests.kill_matrix.table import Cell
from tests.scenarios.stage import Stage

# Short leases: a cell waits for them to end, not for a time of its own.
SETTINGS = {
    "manager": {"activation_lease_s": 10.0, "host_lease_s": 10.0, "heartbeat_s": 0.5, "reconcile_s": 0.2},
    "host-agent": {"store_wait_s": 1.0},
    "runner": {"manager_wait_s": 10.0},
}

# Steps that are a span of a process on every ground.
SPANS = {
    "prepare": ("manager", "prepare", "end"),
    "admitted": ("manager", "admit", "end"),
    "quiesce": ("host-agent", "quiesce", "start"),
    "settle": ("manager", "settle", "start"),
}


class Ground(Protocol):
    """`sandbox` is what names a sandbox here: a folder's path, or a container id."""

    stage: Stage

    def hold(self, cell: Cell) -> Hold:
        """Where the cell's turn is held."""
        ...

    def message(self, cell: Cell, number: int) -> str:
        """What the killed turn says; the CLI repeats it in its reply, words to the lab apart."""
        ...

    def sandbox_of(self, conversation: str) -> str | None:
        """The conversation's sandbox, if there is one."""
        ...

    def supervisor_of(self, sandbox: str) -> int: ...

    def clis_of(self, sandbox: str) -> list[int]: ...

    def processes_of(self, sandbox: str) -> dict[int, str]:
        """Everything that lives in it, by pid."""
        ...

    def is_on_disk(self, sandbox: str, text: str) -> bool:
        """Whether the reply to this text is in the native transcript."""
        ...

    async def kill_engine(self, sandbox: str) -> None:
        """SIGKILL, and a start; returns when the engine is back and has seen what became of the sandbox."""
        ...


class LocalGround:
    """The `local` engine and the stub."""

    def __init__(self, stage: Stage, pauses: Path) -> None:
        self.stage = stage
        self._pauses = pauses

    def hold(self, cell: Cell) -> Hold:
        gates = self.stage.tools.gates
        match cell.step:
            case "activate" if cell.turn == 1:
                # A new process is held in its handshake; a kept one has none, and its host agent is held at the start.
                return GateHold(gates, "initialize")
            case "activate":
                return SpanHold(self._pauses, "host-agent", "activate", "start")
            case "forwarded" | "mid-stream" | "ended":
                return GateHold(gates, {"forwarded": "init", "ended": "result"}.get(cell.step, cell.step))
        return SpanHold(self._pauses, *SPANS[cell.step])

    def message(self, cell: Cell, number: int) -> str:
        return f"note {number}"

    def sandbox_of(self, conversation: str) -> str | None:
        sandboxes = self.stage.sandboxes
        for folder in sandboxes.iterdir() if sandboxes.exists() else ():
            with suppress(OSError):
                labels = json.loads((folder / "container.json").read_text())["labels"]
                if is_of(labels, conversation):
                    return str(folder)
        return None

    def supervisor_of(self, sandbox: str) -> int:
        return int(json.loads((Path(sandbox) / "run.json").read_text())["pid"])

    def clis_of(self, sandbox: str) -> list[int]:
        executable = str(self.stage.tools.executable)
        return [pid for pid, command in self.processes_of(sandbox).items() if executable in command]

    def processes_of(self, sandbox: str) -> dict[int, str]:
        return marked_processes([os.fsencode(f"{sandbox}/"), os.fsencode(f"{sandbox}\0")])

    def is_on_disk(self, sandbox: str, text: str) -> bool:
        """The text and the reply that repeats it."""
        transcripts = Path(sandbox).glob("members/*/home/.claude/projects/*/*.jsonl")
        return any(path.read_text().count(f'{text}"') >= 2 for path in transcripts)

    async def kill_engine(self, sandbox: str) -> None:
        raise AssertionError(f"there is no engine to kill below {sandbox}")


def is_of(labels: dict[str, str], conversation: str) -> bool:
    """Whether a sandbox with these labels serves the conversation."""
    named = labels["standfast.conversations"].split(",")
    return conversation in named or f"local/{conversation}" in named


def switches(pauses: Path) -> Switches:
    """A fleet whose processes can be held."""
    return Switches(pauses=str(pauses))
