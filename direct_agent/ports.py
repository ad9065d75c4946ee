"""What the attempt loop needs from its surroundings. Each Protocol has one real implementation and one for tests.

The loop owns every retry: nothing behind these ports sends a request twice by itself.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from direct_agent.transcript import ToolCall, ToolResult, Transcript, Usage


class Clock(Protocol):
    """Time. `asyncio`'s own in production, one that is turned by hand in tests."""

    def monotonic(self) -> float:
        """Seconds; only differences mean something."""
        ...

    def wall(self) -> float:
        """Seconds since 1970, UTC; for `Retry-After` dates and shown times."""
        ...

    async def sleep(self, delay_s: float) -> None: ...


class Cancellation(Protocol):
    """Set once, when the turn is cancelled. An `asyncio.Event` is one."""

    def is_set(self) -> bool: ...

    async def wait(self) -> object: ...


@dataclass(frozen=True, slots=True)
class FrozenRequest:
    """One request, built once. A plain retry sends these very bytes. Headers hold no credential: the transport adds it.

    `view_count`: number of messages in the view it was built from, for events and records.
    """

    url: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    view_count: int = 0


class Reply(Protocol):
    """A response whose headers have arrived. Names of headers are lower case. `chunks` gives the body undecoded."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body in pieces of any size. Raises TransportFaultError where the connection broke."""
        ...


class Transport(Protocol):
    """Exactly one HTTP request a call, a followed redirect apart."""

    def send(self, request: FrozenRequest) -> AbstractAsyncContextManager[Reply]:
        """Entering sends it; leaving closes the response. Entering raises TransportFaultError when no headers came."""
        ...


class TransportFaultError(Exception):
    """The connection could not be made or broke. `kind`: connect, reset, eof, idle_timeout. No address in the text."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"transport fault: {kind}")
        self.kind = kind


class NotPersistedError(Exception):
    """Something that had to be durable is not."""


class RepairLog(Protocol):
    """Keeps repair records with the session, durably."""

    async def persist(self, record: bytes) -> None:
        """Awaited before the repaired request is sent; nothing is sent when it raises OSError or NotPersistedError.

        `record` is one JSON object.
        """
        ...


class Events(Protocol):
    """Where attempt events go. Must not block; an event never holds an address, an argument or an error's raw text."""

    def emit(self, event: Mapping[str, object]) -> None: ...


class Budget(Protocol):
    """The task's own limits, asked before every attempt after the first and while waiting."""

    def spent(self, usage: Usage) -> str | None:
        """Names the exhausted limit (`time`, `tokens`, `cost`, or `deadline` for one the caller set); None if none is."""
        ...

    def remaining_s(self) -> float | None:
        """Seconds until a time limit ends the turn; None when there is none."""
        ...


class Compactor(Protocol):
    """Makes a shorter view of a history that no longer fits."""

    async def compact(self, view: Transcript) -> Transcript | None:
        """None when nothing can be left out. The canonical transcript is not touched."""
        ...


class ToolRunner(Protocol):
    """Runs the calls of one accepted message: each ends with exactly one stored result, in the order of the calls."""

    async def run(self, calls: Sequence[ToolCall], cancel: Cancellation) -> tuple[ToolResult, ...]: ...
