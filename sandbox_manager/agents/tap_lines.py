"""Frames a CLI's raw output into lines, in any cuts. Pure; shared by the agents' tap readers.

Lines are cut at the byte 0x0A first and decoded afterwards, so a cut inside a character or inside a long line changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

LINE_LENGTH_MAX = 64 * 1024 * 1024
"""A line longer than the whole raw journal of an activation: its bytes are not kept."""


@dataclass(frozen=True, slots=True)
class TapLine:
    """A complete line without its line end; `content` is None for one that was too long. `end_offset` is just after its line end."""

    content: bytes | None
    end_offset: int


class TapLines:
    """One activation's framer. `start_offset` is the tap offset of the first byte."""

    def __init__(self, start_offset: int) -> None:
        self._buffer = bytearray()
        self._is_overlong = False
        self._taken = 0  # bytes of the line that is not complete yet, dropped ones too
        self._offset = start_offset  # of the first byte that no complete line has taken yet

    def feed(self, data: bytes) -> Iterator[TapLine]:
        """The lines that these bytes complete."""
        start = 0
        while (newline := data.find(b"\n", start)) >= 0:
            self._take(data[start:newline])
            line = None if self._is_overlong else bytes(self._buffer)
            self._offset += self._taken + 1
            self._buffer.clear()
            self._is_overlong, self._taken = False, 0
            yield TapLine(line, self._offset)
            start = newline + 1
        self._take(data[start:])

    def _take(self, piece: bytes) -> None:
        self._taken += len(piece)
        if self._taken > LINE_LENGTH_MAX:
            self._is_overlong = True
            self._buffer.clear()
        elif not self._is_overlong:
            self._buffer += piece
