"""The server's HTTP, one connection an exchange. Every wait has a deadline but that for the next event of the stream."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from .responses import ResponseError, ResponseReader
from .sse import SseError, SseReader

Dial = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
BODY_BYTES_MAX = 256 << 20
# The server gives a sign of life every 10 s, but on busy cores its first prompt was seen to hold its one thread for more than a minute. A
# server that is gone closes the connection; this is for one that hangs.
SILENCE_MAX_S = 240.0
_READ_BYTES = 256 << 10
_TIMEOUT_S = 60.0


class CallError(OSError):
    """No answer came, or none that can be read. Whether the server acted is not known."""


@dataclass(frozen=True)
class Answer:
    """One whole response."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body's JSON. Raises CallError."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            raise CallError(f"HTTP {self.status} with a body that is not JSON") from None

    @property
    def detail(self) -> str:
        """The begin of the body, for a person."""
        return self.body[:300].decode("utf-8", "replace")


class HttpClient:
    """Calls one server. `dial` opens a connection to it."""

    def __init__(self, dial: Dial, user: str, secret: str) -> None:
        self._dial = dial
        self._authorization = "Basic " + base64.b64encode(f"{user}:{secret}".encode()).decode()

    async def call(
        self, method: str, path: str, body: dict[str, Any] | None = None, timeout_s: float = _TIMEOUT_S
    ) -> Answer:
        """One exchange. Raises CallError."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._exchange(method, path, body)
        except TimeoutError:
            raise CallError(f"no answer to {method} {path.partition('?')[0]} within {timeout_s} s") from None
        except (OSError, ResponseError) as error:
            raise CallError(f"{method} {path.partition('?')[0]}: {error}") from error

    async def _exchange(self, method: str, path: str, body: dict[str, Any] | None) -> Answer:
        reader, writer = await self._dial()
        try:
            writer.write(self._request(method, path, body))
            await writer.drain()
            response, content = ResponseReader(), bytearray()
            while not response.is_complete:
                data = await reader.read(_READ_BYTES)
                if not data:
                    response.end()
                    break
                content += response.feed(data)
                if len(content) > BODY_BYTES_MAX:
                    raise ResponseError(f"a body is over {BODY_BYTES_MAX} bytes")
            return Answer(response.status, response.headers, bytes(content))
        finally:
            await _close(writer)

    async def events(self, path: str) -> AsyncIterator[dict[str, Any]]:
        """The events of a stream, until it ends. Raises CallError when it breaks, is refused or falls silent."""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                reader, writer = await self._dial()
                writer.write(self._request("GET", path, None))
                await writer.drain()
        except (TimeoutError, OSError) as error:
            raise CallError(f"the event stream could not be opened: {error}") from error
        try:
            response, events = ResponseReader(), SseReader()
            while not response.is_complete:
                async with asyncio.timeout(SILENCE_MAX_S):
                    data = await reader.read(_READ_BYTES)
                if not data:
                    response.end()
                    break
                content = response.feed(data)
                if response.has_head and response.status != 200:
                    raise CallError(f"the event stream was refused with HTTP {response.status}")
                for event in events.feed(content):
                    yield event
        except TimeoutError:
            raise CallError(f"the event stream gave no sign of life for {SILENCE_MAX_S} s") from None
        except (OSError, ResponseError, SseError) as error:
            raise CallError(f"the event stream broke: {error}") from error
        finally:
            await _close(writer)

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> bytes:
        content = b"" if body is None else json.dumps(body, separators=(",", ":")).encode("ascii")
        head = [
            f"{method} {path} HTTP/1.1",
            "Host: 127.0.0.1",
            f"Authorization: {self._authorization}",
            "Connection: close",
        ]
        if body is not None:
            head += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
        return "\r\n".join([*head, "", ""]).encode("ascii") + content


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
