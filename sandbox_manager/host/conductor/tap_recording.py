"""What the CLI printed in one activation: kept outside the sandbox as it came, and read by the agent's own tap reader on the way."""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog

from sandbox_manager.agents.port import SandboxAgent, TapReader
from sandbox_manager.core.values import TapFindings
from sandbox_manager.host.adapters.guest_values import OutputChunk
from sandbox_manager.host.adapters.tap_file import TapFile

_log = structlog.get_logger("standfast.host.tap")


class TapRecording:
    """One activation's tap. `has_gap` says that a byte of it is missing, here or in the file."""

    def __init__(self, agent: SandboxAgent, message_id: str, path: Path, *, limit_bytes: int) -> None:
        self.has_gap = False
        self._agent = agent
        self._message_id = message_id
        self._path = path
        self._limit_bytes = limit_bytes
        self._file: TapFile | None = None
        self._reader: TapReader = agent.tap_reader(message_id=message_id, start_offset=0)

    @property
    def start(self) -> int:
        """The tap offset of the first byte; 0 before it is open."""
        return 0 if self._file is None else self._file.start

    @property
    def end(self) -> int:
        """The tap offset after the last byte that was kept."""
        return 0 if self._file is None else self._file.end

    def open(self, start: int) -> None:
        """Begins at that offset. A process that printed before has begun it already: then nothing is done."""
        if self._file is None:
            self._file = TapFile(self._path, start, limit_bytes=self._limit_bytes)
            self._reader = self._agent.tap_reader(message_id=self._message_id, start_offset=start)

    def take(self, chunk: OutputChunk) -> None:
        """Keeps and reads the next bytes. A new process may print before the journal knows it: its tap begins at its first byte."""
        self.open(chunk.offset)
        file = self._file
        assert file is not None
        if chunk.offset != file.end and not file.overflowed:
            self.has_gap = True
        try:
            file.append(chunk.data)
        except OSError as failure:
            self.has_gap = True
            _log.error("the raw journal could not be written", error=failure.strerror)
        self.has_gap = self.has_gap or file.overflowed
        self._reader.feed(chunk.data)

    def findings(self) -> TapFindings:
        """What the bytes so far prove."""
        return self._reader.findings()

    async def sync(self) -> None:
        """Makes what was kept durable. Raises OSError."""
        if self._file is not None:
            await asyncio.to_thread(self._file.sync)

    def close(self) -> None:
        """Idempotent."""
        if self._file is not None:
            self._file.close()
