"""One fleet for many cells; a cell that failed leaves it to nobody."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.kill_matrix.ground import Ground
from tests.kill_matrix.judging import play
from tests.kill_matrix.table import Cell

Make = Callable[[Path, Path], Awaitable[Ground]]
"""A ground that is up, from its folder and the folder of its pauses."""


class Arena:
    """Makes a ground when one is needed."""

    def __init__(self, short_folder: Callable[[], Path], make: Make, leave: Callable[[Ground], None]) -> None:
        self._short_folder = short_folder
        self._make = make
        self._leave = leave
        self._ground: Ground | None = None
        self._pauses = Path()

    async def play(self, cell: Cell) -> None:
        """One cell, on a fleet in which everybody serves."""
        ground = await self._ready()
        try:
            await play(ground, cell)
        except BaseException:
            await self.drop()
            raise

    async def _ready(self) -> Ground:
        if self._ground is not None:
            try:
                for member in self._ground.stage.fleet.members:
                    await member.wait_ready(30.0)
                return self._ground
            except Exception:  # noqa: BLE001 (whatever is wrong with it, the next cell gets a new one)
                await self.drop()
        folder = self._short_folder()
        self._pauses = folder / "pauses"
        self._pauses.mkdir()
        self._ground = await self._make(folder, self._pauses)
        return self._ground

    async def drop(self) -> None:
        """Ends it."""
        if (ground := self._ground) is not None:
            self._ground = None
            for hold in self._pauses.glob("*.hold"):
                hold.unlink()
            try:
                await ground.stage.__aexit__(None, None, None)
            finally:
                self._leave(ground)
