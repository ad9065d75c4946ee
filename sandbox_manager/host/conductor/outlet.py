"""Messages for a runner that may leave at any time: bounded, and never a place where the work waits for somebody who is gone."""

from __future__ import annotations

import asyncio
from collections import deque

from standfast.host.v1 import host_agent_pb2 as pb

MESSAGES_MAX = 256


class Outlet:
    """A bounded queue with one writer and one reader. After `close` puts return at once and take nothing."""

    def __init__(self) -> None:
        self._messages: deque[pb.AttachResponse] = deque()
        self._changed = asyncio.Condition()
        self._is_closed = False
        self._is_finished = False
        self._error: Exception | None = None

    async def put(self, message: pb.AttachResponse) -> None:
        """Waits for room, or for the runner's leaving."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._is_closed or len(self._messages) < MESSAGES_MAX)
            if not self._is_closed:
                self._messages.append(message)
                self._changed.notify_all()

    async def finish(self, error: Exception | None = None) -> None:
        """No more will come. The reader gets what is there, then the error, if there is one."""
        async with self._changed:
            self._is_finished = True
            self._error = self._error or error
            self._changed.notify_all()

    async def close(self) -> None:
        """The runner is gone: what waits is dropped."""
        async with self._changed:
            self._is_closed = True
            self._messages.clear()
            self._changed.notify_all()

    async def get(self) -> pb.AttachResponse | None:
        """The next message; None at the end. Raises the error that the work ended with."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._messages or self._is_finished or self._is_closed)
            if self._messages:
                message = self._messages.popleft()
                self._changed.notify_all()
                return message
            if self._error is not None:
                raise self._error
            return None
