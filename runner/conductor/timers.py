"""The waits of one turn: named timers that post an event, unless they were disarmed meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from runner.core.pending_requests import Expired
from runner.core.turn import Event

Timed = Event | Expired


class Timers:
    """`post(event, epoch)` is called when a wait is over; an event of an older epoch than `epoch` is void."""

    def __init__(self, post: Callable[[Timed, int], None]) -> None:
        self.epoch = 0
        self._post = post
        self._loop = asyncio.get_running_loop()
        self._handles: dict[str, asyncio.TimerHandle] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._handles

    def arm(self, name: str, after_s: float, event: Timed) -> None:
        """Armed again under the same name, it begins anew."""
        self.disarm(name)
        self._handles[name] = self._loop.call_later(after_s, self._post, event, self.epoch)

    def arm_silence(self, limit_s: float, last_sign_at: Callable[[], float], event: Event) -> None:
        """Posts when `last_sign_at` (in the loop's time) lies `limit_s` back."""

        def look() -> None:
            left_s = last_sign_at() + limit_s - self._loop.time()
            if left_s > 0:
                self._handles["silence"] = self._loop.call_later(left_s, look)
            else:
                self._post(event, self.epoch)

        self.disarm("silence")
        self._handles["silence"] = self._loop.call_later(limit_s, look)

    def disarm(self, name: str) -> None:
        handle = self._handles.pop(name, None)
        if handle is not None:
            handle.cancel()

    def disarm_all(self) -> None:
        """What is on its way to be handled is void, too."""
        for name in list(self._handles):
            self.disarm(name)
        self.epoch += 1
