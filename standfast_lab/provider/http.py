"""A small HTTP/1.1 server whose answers are lists of steps, so that a fault is exact on the wire.

A ready-made server ends every answer in order; here `Cut` closes the TCP stream with no terminator, `Reset` resets
it, and `Hold` waits until the client leaves or somebody releases it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Self

import h11

from standfast_lab.provider.http_steps import Body, Close, Cut, End, Head, Hold, RawBody, Reset, Step, Wait

_log = logging.getLogger(__name__)
_READ_BYTES = 256 * 1024
_BODY_BYTES_MAX = 256 * 1024 * 1024
_DRAIN_TIMEOUT_S = 60.0
_HOLD_TIMEOUT_S = 3600.0


@dataclass(frozen=True)
class Incoming:
    """One request. Header names are lower case; `header_names` keeps their order."""

    method: str
    target: str
    headers: dict[str, str]
    header_names: tuple[str, ...]
    body: bytes


class Progress(StrEnum):
    """How far an answer has come."""

    OPEN = "OPEN"
    HOLDING = "HOLDING"
    ENDED = "ENDED"


@dataclass
class Sent:
    """What has become of an answer so far. `status` is None while no head was sent."""

    progress: Progress = Progress.OPEN
    status: int | None = None
    body_bytes: int = 0
    is_cut: bool = False
    is_peer_gone: bool = False
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)

    def add(self, data: bytes) -> None:
        """Counts bytes of the body as the client shall decode them."""
        self.body_bytes += len(data)
        self.digest.update(data)


class _PeerGoneError(ConnectionError):
    """The client left before the answer was over."""


Watch = Callable[[Sent], None]
"""Called when the head has gone, when an answer begins to hold, and once at its end."""

Handler = Callable[[Incoming], Awaitable[tuple[Sequence[Step], Watch]]]


class HttpServer:
    """Async context manager. Connections live in its task group and end with it."""

    def __init__(self, handler: Handler, *, host: str, port: int) -> None:
        self._handler = handler
        self._host = host
        self._wanted_port = port
        self._released = asyncio.Event()
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.failures: list[str] = []

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        try:
            self._server = await asyncio.start_server(self._accept, self._host, self._wanted_port, limit=_READ_BYTES)
        except OSError:
            await self._group.__aexit__(None, None, None)
            raise
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        # The body's own exception stays as it is; the group would wrap it.
        await self._group.__aexit__(None, None, None)

    def release(self) -> None:
        """Lets every answer that holds now go on."""
        self._released.set()
        self._released = asyncio.Event()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._group.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(reader, writer)
        try:
            while (incoming := await connection.next_request()) is not None:
                steps, watch = await self._handler(incoming)
                sent = Sent()
                try:
                    await connection.perform(steps, sent, watch, lambda: self._released)
                finally:
                    _end(sent, watch)
                if not connection.is_reusable():
                    return
        except (ConnectionError, h11.RemoteProtocolError, TimeoutError) as error:
            _log.debug("lab connection ended: %s", error)
        except Exception as error:  # noqa: BLE001 outermost loop of the connection's task
            # The outermost loop of this task: one broken connection must not end the others. `failures` keeps it
            # visible.
            self.failures.append(repr(error))
            _log.exception("lab connection failed")
        finally:
            await connection.close()


def _end(sent: Sent, watch: Watch) -> None:
    """Reports the end of an answer, once."""
    if sent.progress is not Progress.ENDED:
        sent.progress = Progress.ENDED
        watch(sent)


class _Connection:
    """One TCP connection.

    A read is always pending while an answer is under way, so that a client that leaves is noticed.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._h11 = h11.Connection(h11.SERVER)
        self._pending: asyncio.Task[bytes] | None = None
        self._is_over = False

    async def next_request(self) -> Incoming | None:
        request: h11.Request | None = None
        body = bytearray()
        while True:
            event = self._h11.next_event()
            if event is h11.NEED_DATA:
                if self._h11.they_are_waiting_for_100_continue:
                    self._write(self._h11.send(h11.InformationalResponse(status_code=100, headers=[])))
                data = await self._read()
                if not data and request is None:
                    return None
                self._h11.receive_data(data)
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > _BODY_BYTES_MAX:
                    raise ConnectionError(f"request body over {_BODY_BYTES_MAX} bytes")
            elif isinstance(event, h11.EndOfMessage) and request is not None:
                pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers]
                target = request.target.decode("latin-1")
                return Incoming(
                    request.method.decode(), target, dict(pairs), tuple(name for name, _ in pairs), bytes(body)
                )
            else:
                return None

    async def perform(
        self, steps: Sequence[Step], sent: Sent, watch: Watch, released: Callable[[], asyncio.Event]
    ) -> None:
        """Does the steps; raises ConnectionError, with `sent` filled, when the client leaves before the end."""
        try:
            for step, after in zip(steps, [*steps[1:], None], strict=True):
                match step:
                    case Head(status, headers):
                        sent.status = status
                        self._write(self._h11.send(h11.Response(status_code=status, headers=list(headers))))
                        watch(sent)
                    case Body(data):
                        sent.add(data)
                        if isinstance(after, Close | End):
                            # Before the last bytes go, so that who has the answer also finds its row complete.
                            _end(sent, watch)
                        self._write(self._h11.send(h11.Data(data=data)) if data else b"")
                        await self._drain()
                    case RawBody(framing, data):
                        self._write(framing + data)
                        sent.add(data)
                        await self._drain()
                        self._is_over = True
                    case Wait(seconds):
                        await self._wait_or_gone(asyncio.sleep(seconds))
                    case Hold():
                        await self._drain()
                        event = released()
                        sent.progress = Progress.HOLDING
                        watch(sent)
                        await self._wait_or_gone(asyncio.wait_for(event.wait(), _HOLD_TIMEOUT_S))
                        sent.progress = Progress.OPEN
                    case Cut():
                        sent.is_cut = self._is_over = True
                        return
                    case Reset():
                        sent.is_cut = self._is_over = True
                        await self._drain()
                        self._writer.get_extra_info("socket").setsockopt(
                            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                        )
                        self._writer.transport.abort()
                        return
                    case Close() | End():
                        if not self._is_over:
                            self._write(self._h11.send(h11.EndOfMessage()))
                            await self._drain()
                        return
        except ConnectionError:
            sent.is_peer_gone = True
            raise

    def is_reusable(self) -> bool:
        if self._is_over or self._h11.our_state is not h11.DONE or self._h11.their_state is not h11.DONE:
            return False
        self._h11.start_next_cycle()
        return True

    async def close(self) -> None:
        if self._pending is not None:
            self._pending.cancel()
            await asyncio.wait({self._pending})
            if not self._pending.cancelled():
                self._pending.exception()
        self._writer.close()
        try:
            await asyncio.wait_for(self._writer.wait_closed(), 1.0)
        except (ConnectionError, TimeoutError):
            self._writer.transport.abort()

    async def _read(self) -> bytes:
        task, self._pending = self._pending or self._new_read(), None
        return await task

    async def _wait_or_gone(self, waiting: Awaitable[object]) -> None:
        wait = asyncio.ensure_future(waiting)
        self._pending = self._pending or self._new_read()
        try:
            await asyncio.wait({wait, self._pending}, return_when=asyncio.FIRST_COMPLETED)
            if self._pending.done() and not self._pending.result():
                raise _PeerGoneError("the client closed the connection before the answer was over")
            # Early bytes of a next request stay with the pending read; they are no reason to stop waiting.
            await wait
        finally:
            wait.cancel()

    def _new_read(self) -> asyncio.Task[bytes]:
        return asyncio.get_running_loop().create_task(self._reader.read(_READ_BYTES))

    def _write(self, data: bytes | None) -> None:
        if self._writer.is_closing():
            raise _PeerGoneError("the client closed the connection before the answer was over")
        if data:
            self._writer.write(data)

    async def _drain(self) -> None:
        await asyncio.wait_for(self._writer.drain(), _DRAIN_TIMEOUT_S)
