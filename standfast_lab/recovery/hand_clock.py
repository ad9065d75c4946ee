"""A clock turned by hand: a sleep moves it on at once and is written down, so that hours pass in milliseconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

EPOCH_S = 1_790_000_000.0


class HandClock:
    """`sleeps`: every requested delay, in order. `on_sleep` hears the time after each."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self.sleeps: list[float] = []
        self.on_sleep: Callable[[float], None] | None = None

    def monotonic(self) -> float:
        return self._now_s

    def wall(self) -> float:
        return EPOCH_S + self._now_s

    async def sleep(self, delay_s: float) -> None:
        self.sleeps.append(delay_s)
        self._now_s += delay_s
        if self.on_sleep is not None:
            self.on_sleep(self._now_s)
        # Lets whoever was told act before the sleeper goes on.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
