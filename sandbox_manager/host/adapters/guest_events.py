"""The events of one program, in order, with a bound: what is not taken here holds the supervisor back."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from sandbox_manager.host.adapters.guest_errors import GuestLinkError
from sandbox_manager.host.adapters.guest_values import (
    GuestEvent,
    Json,
    OutputChunk,
    OutputEnded,
    OutputGap,
    ProcessExited,
    number_in,
    optional_number_in,
    text_in,
)

# A quarter of the supervisor's window: it never waits for an acknowledgement while somebody reads here.
ACKNOWLEDGE_BYTES = 256 * 1024

Acknowledge = Callable[[str, int], None]


class GuestEvents:
    """An async iterator of one program's events, for one reader.

    It ends after the exit and the end of both streams, or on `close()`; it raises the link's error when the link is lost for good.
    `offsets` are those of the next byte that has not arrived yet, by stream.
    """

    def __init__(self, slot: int, process_generation: int, offsets: dict[str, int], acknowledge: Acknowledge) -> None:
        self.slot = slot
        self.process_generation = process_generation
        self.offsets = dict(offsets)
        self._used = dict(offsets)
        self._acknowledged = dict(offsets)
        self._acknowledge = acknowledge
        self._queue: deque[GuestEvent] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self._failure: GuestLinkError | None = None
        self._ended: set[str] = set()
        self._has_exited = False
        self._is_closed = False

    def __aiter__(self) -> GuestEvents:
        return self

    async def __anext__(self) -> GuestEvent:
        while not self._queue:
            if self._is_closed or self._is_over:
                raise StopAsyncIteration
            if self._failure is not None:
                raise self._failure
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        event = self._queue.popleft()
        if isinstance(event, OutputChunk):
            self._use(event.stream, event.offset + len(event.data))
        elif isinstance(event, OutputGap):
            self._use(event.stream, event.end)
        return event

    @property
    def _is_over(self) -> bool:
        return self._has_exited and len(self._ended) == len(self.offsets)

    def _use(self, stream: str, offset: int) -> None:
        self._used[stream] = offset
        if offset - self._acknowledged[stream] >= ACKNOWLEDGE_BYTES:
            self._acknowledged[stream] = offset
            self._acknowledge(stream, offset)

    def take(self, name: str, header: Json, payload: bytes) -> None:
        """A frame of this program came. What a reconnect repeats is dropped."""
        match name:
            case "out":
                stream, offset = text_in(header, "stream"), number_in(header, "offset")
                fresh = payload[max(0, self.offsets[stream] - offset) :]
                if not fresh:
                    return
                event: GuestEvent = OutputChunk(stream, offset + len(payload) - len(fresh), fresh)
                self.offsets[stream] = offset + len(payload)
            case "gap":
                stream, end = text_in(header, "stream"), number_in(header, "to")
                event = OutputGap(stream, self.offsets[stream], end)
                self.offsets[stream] = end
            case "end":
                stream = text_in(header, "stream")
                if stream in self._ended:
                    return
                self._ended.add(stream)
                event = OutputEnded(stream, number_in(header, "length"))
            case "exited":
                if self._has_exited:
                    return
                self._has_exited = True
                code, signal = optional_number_in(header, "code"), optional_number_in(header, "signal")
                lengths = number_in(header, "stdout_length"), number_in(header, "stderr_length")
                event = ProcessExited(code, signal, *lengths)
            case _:
                return
        self._queue.append(event)
        self._wake()

    def resumed(self) -> None:
        """The supervisor sends again from `offsets` on: everything before is acknowledged by that."""
        self._acknowledged = dict(self.offsets)

    def fail(self, error: GuestLinkError) -> None:
        """No more will come; what has arrived can still be read."""
        self._failure = error
        self._wake()

    def close(self) -> None:
        """Ends the iteration. A second call does nothing."""
        self._is_closed = True
        self._queue.clear()
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
