"""Server-sent events as a push parser: bytes in, the data of whole events out.

An event is whole only when its blank line has come; what is left at the end of the bytes is no event. Line ends
are LF, CR LF or CR. Only `data` lines are kept: protocols that name their events repeat the name in the JSON.
"""

from __future__ import annotations

# Responses tells a whole text in one event, however long it is.
EVENT_BYTES_MAX = 32 * 1024 * 1024


class EventTooLargeError(Exception):
    """One event is larger than EVENT_BYTES_MAX."""


class SsePushParser:
    """`feed` bytes as they come; every call returns the data of the events it completed."""

    def __init__(self, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        self._max = event_bytes_max
        self._rest = bytearray()
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._started = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Returns the data of each event that `chunk` completed. Raises EventTooLargeError."""
        # Nothing can complete without a line end: a long line is not walked again for each of its chunks.
        if b"\n" not in chunk and b"\r" not in chunk and not self._rest.endswith(b"\r"):
            self._rest += chunk
            self._check_size()
            return []
        self._rest += chunk
        events: list[bytes] = []
        # A CR at the end may be half of a CR LF: it waits for the next chunk.
        end = len(self._rest) - 1 if self._rest.endswith(b"\r") else len(self._rest)
        ready = bytes(self._rest[:end])
        cut = max(ready.rfind(b"\n"), ready.rfind(b"\r")) + 1
        if cut:
            del self._rest[:cut]
            lines = ready[:cut].replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
            for line in lines[:-1]:
                self._line(line, events)
        self._check_size()
        return events

    def _check_size(self) -> None:
        if len(self._rest) + self._data_bytes > self._max:
            raise EventTooLargeError(f"an event is larger than {self._max} bytes")

    def _line(self, line: bytes, events: list[bytes]) -> None:
        if not self._started:
            self._started = True
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            if self._data:
                events.append(b"\n".join(self._data))
                self._data.clear()
                self._data_bytes = 0
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._data_bytes += len(value)
