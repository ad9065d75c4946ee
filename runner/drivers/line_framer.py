"""Cuts a byte stream into lines on the byte 0x0A and on nothing else. Pure.

Bytes are collected up to the line end and decoded by the caller afterwards, so a character that is cut between two
reads stays whole. There is no cap on a line's length: a raised limit only moves the cliff. Other line separators
(U+2028, 0x0D, form feed) are content.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """One line without its line end. `end_offset` is the offset in the stream just after the line end."""

    content: bytes
    end_offset: int


class LineFramer:
    """Collects bytes and gives whole lines. `start_offset` is the stream offset of the first byte fed."""

    def __init__(self, start_offset: int = 0) -> None:
        self._rest = bytearray()
        self._scanned = 0  # bytes of the rest that are known to hold no line end: each byte is searched once
        self._offset = start_offset

    @property
    def offset(self) -> int:
        """The stream offset just after the last line given."""
        return self._offset

    @property
    def pending(self) -> int:
        """Bytes received of a line that has no line end yet."""
        return len(self._rest)

    def feed(self, chunk: bytes) -> list[Line]:
        """Takes the next bytes in any cuts and gives the lines that they completed."""
        self._rest += chunk
        lines: list[Line] = []
        start = 0
        while (end := self._rest.find(b"\n", max(start, self._scanned))) >= 0:
            content = bytes(self._rest[start:end])
            self._offset += len(content) + 1
            lines.append(Line(content, self._offset))
            start = end + 1
        if start:
            del self._rest[:start]
        self._scanned = len(self._rest)
        return lines

    def finish(self) -> Line | None:
        """The stream is over: the bytes after the last line end, if there are any. They are not a line."""
        if not self._rest:
            return None
        content = bytes(self._rest)
        self._rest.clear()
        self._scanned = 0
        self._offset += len(content)
        return Line(content, self._offset)
