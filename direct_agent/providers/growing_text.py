"""Text that arrives in pieces, joined once at the end, with a limit on its size."""

from __future__ import annotations

from direct_agent.providers.event_json import whole_text


class GrowingText:
    """`add` pieces; past `bytes_max` further pieces are dropped and `is_cut` says so."""

    def __init__(self, bytes_max: int | None = None) -> None:
        self._pieces: list[str] = []
        self._max = bytes_max
        self.size = 0
        self.is_cut = False

    def add(self, piece: str) -> None:
        if not piece or self.is_cut:
            return
        size = len(piece.encode("utf-8", "surrogatepass"))
        if self._max is not None and self.size + size > self._max:
            self.is_cut = True
            return
        self.size += size
        self._pieces.append(piece)

    def __str__(self) -> str:
        return whole_text("".join(self._pieces))

    def __bool__(self) -> bool:
        return self.size > 0
