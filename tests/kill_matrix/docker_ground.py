"""Real sandboxes with the pinned Claude Code: on the engine that every test uses, or on one of this module's own that may be killed."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker

from standfast_lab.fleet.fleet import Fleet, Parts
from tests.kill_matrix.ground import SETTINGS, SPANS, is_of, switches
from tests.kill_matrix.holds import AnswerHold, Hold, SpanHold
from tests.kill_matrix.own_engine import OwnEngine
from tests.kill_matrix.table import Cell
from tests.scenarios.stage import Stage
from tests.stub_cli.tool_folder import ToolFolder

_STOPPED_TIMEOUT_S = 30.0
_CLI = "/claude"
_NATIVE_START_S = 90.0


class DockerStage(Stage):
    """A stage on Docker; `docker_url` None: where the environment points to."""

    def __init__(self, folder: Path, parts: Parts, pauses: Path, docker_url: str | None) -> None:
        super().__init__(folder, ToolFolder(folder, parts.manifest))
        settings: dict[str, dict[str, Any]] = {kind: dict(given) for kind, given in SETTINGS.items()}
        # A real CLI takes its time to start on busy cores; how a start that hangs is refused is another test's matter.
        settings["host-agent"]["handshake_timeout_s"] = _NATIVE_START_S
        settings["runner"]["handshake_timeout_s"] = _NATIVE_START_S + 15.0
        if docker_url is not None:
            settings["host-agent"]["docker_host"] = docker_url
        self._make_fleet = lambda: Fleet(
            folder, replace(parts), self.lab.base_url, switches=switches(pauses), settings=settings
        )


class DockerGround:
    """`engine` None: it is shared, and not to be killed."""

    def __init__(
        self, stage: DockerStage, pauses: Path, client: docker.DockerClient, engine: OwnEngine | None = None
    ) -> None:
        self.stage: Stage = stage
        self._pauses = pauses
        self._client = client
        self._engine = engine

    def hold(self, cell: Cell) -> Hold:
        match cell.step:
            case "activate":
                # A new process is there when its activation ends; a kept one from the start.
                return SpanHold(self._pauses, "host-agent", "activate", "end" if cell.turn == 1 else "start")
            case "forwarded" | "mid-stream":
                return self._answer(cell)
            case "ended":
                return SpanHold(self._pauses, "host-agent", "native turn", "end")
        return SpanHold(self._pauses, *SPANS[cell.step])

    def message(self, cell: Cell, number: int) -> str:
        word = f" {self._answer(cell).word}" if cell.step in ("forwarded", "mid-stream") else ""
        return f"note {number}{word}"

    def _answer(self, cell: Cell) -> AnswerHold:
        return AnswerHold(self.stage.lab, "before-head" if cell.step == "forwarded" else "mid-text")

    def sandbox_of(self, conversation: str) -> str | None:
        for row in self._client.api.containers(all=True, filters={"label": "standfast.conversations"}):
            is_ours = any(str(mount.get("Source")).startswith(f"{self.stage.folder}/") for mount in row["Mounts"])
            if is_ours and is_of(row["Labels"], conversation):
                return str(row["Id"])
        return None

    def supervisor_of(self, sandbox: str) -> int:
        return int(self._client.api.inspect_container(sandbox)["State"]["Pid"])

    def clis_of(self, sandbox: str) -> list[int]:
        return [pid for pid, command in self.processes_of(sandbox).items() if command.split(" ")[0].endswith(_CLI)]

    def processes_of(self, sandbox: str) -> dict[int, str]:
        """By their control group: so nothing depends on an engine that may be gone."""
        found = {}
        for folder in Path("/proc").iterdir():
            if not folder.name.isdecimal():
                continue
            with suppress(OSError):  # it has ended
                if sandbox not in (folder / "cgroup").read_text():
                    continue
                if (folder / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                    command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found[int(folder.name)] = command.strip()
        return found

    def is_on_disk(self, sandbox: str, text: str) -> bool:
        """Read from the writable layer, past the sandbox."""
        layer = Path(self._client.api.inspect_container(sandbox)["GraphDriver"]["Data"]["UpperDir"])
        return any(
            _is_reply(line, text)
            for path in layer.glob("members/*/home/.claude/projects/*/*.jsonl")
            for line in path.read_text().splitlines()
        )

    async def kill_engine(self, sandbox: str) -> None:
        assert self._engine is not None, "the engine that others use is not to be killed"
        engine = self._engine
        await asyncio.to_thread(engine.kill)
        await asyncio.to_thread(engine.start)
        # A restarted engine stops what ran under the killed one.
        async with asyncio.timeout(_STOPPED_TIMEOUT_S):
            while await asyncio.to_thread(self._runs, sandbox):  # noqa: ASYNC110 (it lies outside this process)
                await asyncio.sleep(0.05)

    def _runs(self, sandbox: str) -> bool:
        return bool(self._client.api.inspect_container(sandbox)["State"]["Running"])

    def remove_containers(self) -> None:
        """What this fleet has left: a stopped sandbox is retained for ever by itself."""
        for row in self._client.api.containers(all=True, filters={"label": "standfast.conversations"}):
            if any(str(mount.get("Source")).startswith(f"{self.stage.folder}/") for mount in row["Mounts"]):
                self._client.api.remove_container(row["Id"], v=True, force=True)


def _is_reply(line: str, text: str) -> bool:
    """Whether a line of a transcript is an assistant's message that ends with this text."""
    record = json.loads(line) if line.endswith("}") else {}
    if record.get("type") != "assistant":
        return False
    return any(str(block.get("text", "")).endswith(text) for block in record["message"]["content"])
