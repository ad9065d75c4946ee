"""The clock of the machine."""

from __future__ import annotations

import asyncio
import time


class RealClock:
    """See ports.Clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
