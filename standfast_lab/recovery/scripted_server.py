"""A provider on a loopback port that answers by a list of raw steps, and keeps every request it was sent.

It knows HTTP/1.1 just far enough to read a POST with a length; what it sends is bytes, so that it can break any rule.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Self

_HEADER_BYTES_MAX = 64 * 1024


class Framing(StrEnum):
    """How the end of a body is known: its length, chunks, or the closing of the connection."""

    LENGTH = "length"
    CHUNKED = "chunked"
    CLOSE = "close"


class Break(StrEnum):
    """How a connection ends otherwise than well. BEFORE_HEADERS: nothing is sent. HOLD: it stays open, silent."""

    CLOSE = "close"
    RESET = "reset"
    BEFORE_HEADERS = "before_headers"
    HOLD = "hold"


@dataclass(frozen=True, slots=True)
class Step:
    """One answer. `cut_at`: only so many bytes of the body are sent before `broken` happens.

    `told`: heard when everything that is sent has been sent, before the break.
    """

    body: bytes = b""
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    framing: Framing = Framing.CHUNKED
    cut_at: int | None = None
    broken: Break | None = None
    told: Callable[[], None] | None = None


@dataclass(slots=True)
class Heard:
    """One request: its body, headers (names lower case), path, and the time it came."""

    path: str
    headers: dict[str, str]
    body: bytes
    at_s: float


@dataclass(slots=True)
class ScriptedServer:
    """`steps` in order; the last is repeated. `reply`, when given, answers instead, by what it heard.

    An async context manager; `base_url` once it is entered.
    """

    steps: Sequence[Step]
    now: Callable[[], float] = lambda: 0.0
    reply: Callable[[Heard], Step] | None = None
    heard: list[Heard] = field(default_factory=list)
    base_url: str = ""
    _server: asyncio.Server | None = None
    _open: dict[asyncio.Task[None], asyncio.StreamWriter] = field(default_factory=dict)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_HEADER_BYTES_MAX)
        port = self._server.sockets[0].getsockname()[1]
        self.base_url = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
            serving = dict(self._open)
            for writer in serving.values():
                writer.transport.abort()
            if serving:
                await asyncio.wait(serving, timeout=5)
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a connection is served by no task")
        self._open[task] = writer
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._open.pop(task, None)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; whether the connection may be used again."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        heard = Heard(head[0].split(" ")[1], headers, body, self.now())
        step = self.reply(heard) if self.reply is not None else self.steps[min(len(self.heard), len(self.steps) - 1)]
        self.heard.append(heard)
        if step.broken is Break.BEFORE_HEADERS:
            return False
        sent = step.body if step.cut_at is None else step.body[: step.cut_at]
        writer.write(_head(step) + _framed(step, sent))
        await writer.drain()
        if step.told is not None:
            # What was sent has to have been read before the listener acts on it.
            await asyncio.sleep(0.05)
            step.told()
        match step.broken:
            case Break.HOLD:
                await reader.read()
                return False
            case Break.RESET:
                await asyncio.sleep(0.02)
                raw = writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
                return False
            case Break.CLOSE:
                return False
            case _:
                return step.framing is not Framing.CLOSE


def _head(step: Step) -> bytes:
    names = {name.lower() for name, _ in step.headers}
    lines = [f"HTTP/1.1 {step.status} X", *(f"{name}: {value}" for name, value in step.headers)]
    if "content-type" not in names:
        lines.append("content-type: text/event-stream" if step.status == 200 else "content-type: application/json")
    match step.framing:
        case Framing.LENGTH:
            lines.append(f"content-length: {len(step.body)}")
        case Framing.CHUNKED:
            lines.append("transfer-encoding: chunked")
        case Framing.CLOSE:
            lines.append("connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _framed(step: Step, sent: bytes) -> bytes:
    if step.framing is not Framing.CHUNKED:
        return sent
    chunk = f"{len(sent):x}\r\n".encode() + sent + b"\r\n" if sent else b""
    return chunk if step.broken is not None else chunk + b"0\r\n\r\n"
