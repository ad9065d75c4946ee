"""The lines of an event stream, as a push parser: bytes in, whole lines out, and what was left without a line end.

A line ends with LF; a CR before it is not part of it. Only `data:` lines matter to the callers: each is one JSON
document. Whether a line had its end decides later whether a bad document was cut or is rubbish.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024
_BOM = b"\xef\xbb\xbf"


class OverLongLineError(Exception):
    """A line is longer than the limit."""


@dataclass(frozen=True, slots=True)
class DataLine:
    """The payload of one `data:` line, trimmed. `is_whole`: the line had its end."""

    payload: bytes
    is_whole: bool


class LineParser:
    """`feed` as bytes come, `close` when there are no more. `lines` counts every whole line, also ignored ones."""

    def __init__(self, line_bytes_max: int) -> None:
        self._max = line_bytes_max
        self._rest = bytearray()
        self._is_first = True
        self.lines = 0

    def feed(self, chunk: bytes) -> list[DataLine]:
        """The data lines that `chunk` completed. Raises OverLongLineError."""
        found: list[DataLine] = []
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            self._rest += chunk[start:end]
            start = end + 1
            line = bytes(self._rest)
            self._rest.clear()
            self.lines += 1
            self._check(len(line))
            if (data := self._data(line, is_whole=True)) is not None:
                found.append(data)
        self._rest += chunk[start:]
        self._check(len(self._rest))
        return found

    def close(self) -> DataLine | None:
        """The last line when it had no end and is a data line. A line cut before `data:` was complete is none."""
        line = bytes(self._rest)
        self._rest.clear()
        return self._data(line, is_whole=False) if line else None

    def _data(self, line: bytes, *, is_whole: bool) -> DataLine | None:
        if self._is_first:
            self._is_first = False
            line = line.removeprefix(_BOM)
        if not line.startswith(b"data:"):
            return None
        return DataLine(line[5:].strip(b" \t\r"), is_whole)

    def _check(self, size: int) -> None:
        if size > self._max:
            raise OverLongLineError(f"a line of more than {self._max} bytes")
