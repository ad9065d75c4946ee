"""stdin and stdout as lines, each with a thread of its own: neither a slow reader nor a missing writer stops the agent.

The descriptors stay blocking: they may be two ends of one socket, and a mode set on one would hold for the other.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

from direct_agent.stdio.frames import to_line

LINE_BYTES_MAX = 32 * 1024 * 1024
WAITING_BYTES_MAX = 64 * 1024 * 1024
_DELTAS_BYTES_MAX = 8 * 1024 * 1024
_LINES_WAITING_MAX = 64


class LinesIn:
    """Lines from a descriptor. `get` gives None at its end."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._room = threading.Semaphore(_LINES_WAITING_MAX)
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

    async def get(self) -> bytes | None:
        line = await self._lines.get()
        self._room.release()
        return line

    def _read(self) -> None:
        rest = bytearray()
        while True:
            try:
                data = os.read(self._fd, 1 << 16)
            except OSError:
                data = b""
            if not data:
                break
            start = 0
            while (end := data.find(b"\n", start)) >= 0:
                self._put(bytes(rest) + data[start:end])
                rest.clear()
                start = end + 1
            rest += data[start:]
            if len(rest) > LINE_BYTES_MAX:
                break  # no line of ours is that long: what follows cannot be told from it
        # Half a line at the end is no frame.
        self._put(None)

    def _put(self, line: bytes | None) -> None:
        self._room.acquire()
        try:
            self._loop.call_soon_threadsafe(self._lines.put_nowait, line)
        except RuntimeError:
            return  # the loop is closed: nobody listens any more


class LinesOut:
    """Implements Audience. `fields` are part of every event. When nobody reads for very long, deltas are left out first; then `is_lost`."""

    def __init__(self, fd: int) -> None:
        self.fields: dict[str, Any] = {}
        self.is_lost = False
        self._fd = fd
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._condition = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._write, name="stdout", daemon=True)
        self._thread.start()

    def say(self, event: Mapping[str, Any]) -> None:
        line = to_line({**event, **self.fields})
        with self._condition:
            if self.is_lost or (event.get("type") == "text_delta" and self._size > _DELTAS_BYTES_MAX):
                return
            if self._size + len(line) > WAITING_BYTES_MAX:
                self.is_lost = True
                return
            self._waiting.append(line)
            self._size += len(line)
            self._condition.notify()

    def close(self, timeout_s: float = 5.0) -> None:
        """Waits until everything is written, but not for ever."""
        with self._condition:
            self._is_closing = True
            self._condition.notify()
        self._thread.join(timeout_s)

    def _write(self) -> None:
        while True:
            with self._condition:
                while not self._waiting and not self._is_closing:
                    self._condition.wait()
                if not self._waiting:
                    return
                line = self._waiting.popleft()
            try:
                view = memoryview(line)
                while view:
                    view = view[os.write(self._fd, view) :]
            except OSError:
                with self._condition:
                    self.is_lost = True
                    self._waiting.clear()
                return
            with self._condition:
                self._size -= len(line)
