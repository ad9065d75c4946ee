"""Cuts an event stream into its events. Pure. Lines end with LF or CR LF; a comment is no event; `data` lines are joined by LF."""

import json
from typing import Any

EVENT_BYTES_MAX = 64 << 20


class SseError(ValueError):
    """The stream is not one of the server's events; it cannot go on."""


class SseReader:
    """Takes bytes in any cuts and gives the JSON objects of whole events."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._scanned = 0
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The events that these bytes completed."""
        self._buffer += data
        events: list[dict[str, Any]] = []
        start = 0
        while (end := self._buffer.find(b"\n", max(start, self._scanned))) >= 0:
            line = bytes(self._buffer[start:end]).removesuffix(b"\r")
            start = end + 1
            if line:
                self._line(line)
            elif self._data:
                events.append(_object(b"\n".join(self._data)))
                self._data = []
        del self._buffer[:start]
        self._scanned = len(self._buffer)
        if len(self._buffer) > EVENT_BYTES_MAX:
            raise SseError(f"an event's line is over {EVENT_BYTES_MAX} bytes")
        return events

    def _line(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise SseError("an event's data is not JSON") from None
    if not isinstance(value, dict):
        raise SseError("an event's data is no JSON object")
    return value
