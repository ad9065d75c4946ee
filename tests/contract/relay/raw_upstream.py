"""An upstream of the tests' own, for what an orderly server cannot do: exact bytes, exact cuts, exact pauses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import h11


@dataclass
class Seen:
    """One request as it came."""

    method: bytes
    target: bytes
    headers: list[tuple[bytes, bytes]]
    writer: asyncio.StreamWriter
    body: bytes = b""
    # Set when the other side closed or broke the connection.
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    def header(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key.lower() == name]

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def chunk(self, data: bytes) -> None:
        await self.write(b"%x\r\n%s\r\n" % (len(data), data))

    async def head(self, *lines: bytes, status: bytes = b"200 OK") -> None:
        await self.write(b"HTTP/1.1 " + status + b"\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n")

    async def stream_head(self, *lines: bytes) -> None:
        await self.head(b"content-type: text/event-stream", b"transfer-encoding: chunked", *lines)

    async def end(self) -> None:
        await self.write(b"0\r\n\r\n")

    async def whole(self, body: bytes, *lines: bytes, status: bytes = b"200 OK") -> None:
        await self.head(b"content-length: %d" % len(body), *lines, status=status)
        if self.method != b"HEAD":
            await self.write(body)

    def cut(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        self.writer.transport.abort()


Answer = Callable[[Seen], Awaitable[None]]


class RawUpstream:
    """Answers every request with `answer`; keeps what it saw."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.seen: list[Seen] = []
        self.came = asyncio.Event()
        self.body_began = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def base_url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, h11.RemoteProtocolError):
            for seen in self.seen:
                if seen.writer is writer:
                    seen.gone.set()
        finally:
            self._tasks.discard(task)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        connection = h11.Connection(h11.SERVER)
        seen: Seen | None = None
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await reader.read(65536))
            elif isinstance(event, h11.Request):
                seen = Seen(event.method, event.target, list(event.headers.raw_items()), writer)
                self.seen.append(seen)
                self.came.set()
            elif isinstance(event, h11.Data):
                assert seen is not None
                seen.body += event.data
                self.body_began.set()
            elif isinstance(event, h11.EndOfMessage):
                break
            else:
                return False
        assert seen is not None
        watch = asyncio.create_task(self._watch(reader, seen))
        try:
            await self.answer(seen)
        finally:
            # A second request would be read by the watch: every connection carries one here, unless nothing came.
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
        return not writer.is_closing()

    async def _watch(self, reader: asyncio.StreamReader, seen: Seen) -> None:
        try:
            if not await reader.read(1):
                seen.gone.set()
        except ConnectionError:
            seen.gone.set()
