"""The one HTTP transport, over httpx2 with its own retries off: one request a call, a followed redirect apart.

A credential goes only to the origin that was configured: a redirect to another one is followed without it. No fault
carries an address.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import httpx2

from direct_agent.ports import FrozenRequest, Reply, TransportFaultError

REDIRECTS_MAX = 5
_REDIRECTS = (301, 302, 303, 307, 308)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. `idle` bounds both the wait for headers and each silence of a body; `connect` the TLS handshake too."""

    connect_s: float = 30.0
    idle_s: float = 300.0
    write_s: float = 60.0
    close_s: float = 0.3


@dataclass(frozen=True, slots=True)
class Credential:
    """How the key is sent. `key` is asked for at each request; an empty one sends nothing. Its repr hides it."""

    key: Callable[[], str]
    header: str = "authorization"
    prefix: str = "Bearer "

    def headers(self) -> list[tuple[str, str]]:
        secret = self.key()
        return [(self.header, self.prefix + secret)] if secret else []

    def __repr__(self) -> str:
        return f"Credential(header={self.header!r})"


def x_api_key(key: Callable[[], str]) -> Credential:
    """The Messages way."""
    return Credential(key, "x-api-key", "")


@functools.cache
def _trust() -> ssl.SSLContext:
    """The trusted roots, read once a process: that takes longer than a whole exchange on loopback."""
    return httpx2.create_ssl_context()


class HttpTransport:
    """A connection pool of one endpoint. Use as an async context manager."""

    def __init__(
        self,
        credential: Credential | None = None,
        timeouts: Timeouts | None = None,
        *,
        proxy: str | None = None,
        unix_socket: str | None = None,
        user_agent: str = "standfast-direct",
    ) -> None:
        self._credential = credential
        self._timeouts = timeouts or Timeouts()
        limits = httpx2.Limits(max_connections=32, max_keepalive_connections=8, keepalive_expiry=3.0)
        self._client = httpx2.AsyncClient(
            transport=httpx2.AsyncHTTPTransport(
                verify=_trust(), retries=0, limits=limits, proxy=proxy, uds=unix_socket, trust_env=False
            ),
            timeout=httpx2.Timeout(
                connect=self._timeouts.connect_s,
                read=self._timeouts.idle_s,
                write=self._timeouts.write_s,
                pool=self._timeouts.connect_s,
            ),
            follow_redirects=False,
            trust_env=False,
            headers={"user-agent": user_agent},
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._client.aclose()

    @asynccontextmanager
    async def send(self, request: FrozenRequest) -> AsyncIterator[Reply]:
        """See ports.Transport."""
        response = await self._sent(request)
        try:
            yield _Reply(response)
        finally:
            await self._closed(response)

    async def _sent(self, request: FrozenRequest) -> httpx2.Response:
        method, url, content = "POST", httpx2.URL(request.url), request.body
        origin = _origin(url)
        for _ in range(REDIRECTS_MAX + 1):
            headers = list(request.headers)
            if self._credential is not None and _origin(url) == origin:
                headers.extend(self._credential.headers())
            try:
                built = self._client.build_request(method, url, headers=headers, content=content or None)
                response = await self._client.send(built, stream=True)
            except (httpx2.InvalidURL, httpx2.UnsupportedProtocol, httpx2.LocalProtocolError) as error:
                raise TransportFaultError("invalid") from error
            except httpx2.TransportError as error:
                raise TransportFaultError("connect") from error
            target = response.headers.get("location")
            if response.status_code not in _REDIRECTS or target is None:
                return response
            await self._closed(response)
            try:
                url = url.join(target)
            except httpx2.InvalidURL as error:
                raise TransportFaultError("invalid") from error
            if response.status_code in (301, 302, 303):
                # What every client does with a redirected POST that is not to be repeated as one.
                method, content = "GET", b""
        raise TransportFaultError("invalid")

    async def _closed(self, response: httpx2.Response) -> None:
        """Closes within its bound, also while the task is being cancelled: a stuck peer must not hold the caller."""
        try:
            async with asyncio.timeout(self._timeouts.close_s):
                await response.aclose()
        except (TimeoutError, httpx2.TransportError):
            return


class _Reply:
    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        self.status = response.status_code
        self.headers: Mapping[str, str] = {name.lower(): value for name, value in response.headers.items()}

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        try:
            async for chunk in self._response.aiter_raw():
                yield chunk
        except httpx2.ReadTimeout as error:
            raise TransportFaultError("idle_timeout") from error
        except httpx2.ReadError as error:
            raise TransportFaultError("reset") from error
        except (httpx2.TransportError, httpx2.StreamError) as error:
            raise TransportFaultError("eof") from error


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port
