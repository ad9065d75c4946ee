"""One request passed to the upstream and its response passed back, bytes untouched, nothing retried.

What breaks upstream breaks towards the client: a response cut in its body is never given an end. The only
responses made here are for requests that never reached the upstream (no connection: 502 or 504).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import h11
import httpx2

from sandbox_manager.host.relay.activation import ActivationLedger
from sandbox_manager.host.relay.headers import Headers, request_headers, response_headers
from sandbox_manager.host.relay.key_guard import KeyGuard, KeySeenError
from sandbox_manager.host.relay.reading import ResponseReader
from sandbox_manager.host.relay.request_peek import RequestPeek
from sandbox_manager.host.relay.spans import ModelCallSpan
from sandbox_manager.host.relay.upstream import ModelProtocol, Upstream


class ClientGoneError(Exception):
    """The client closed or broke its connection."""


class BodyTooLargeError(Exception):
    """The request's body is larger than the bound."""


class ResponseCutError(Exception):
    """The upstream broke off, or had to be broken off: the client's connection must end without an end of message."""


class NotReachedError(Exception):
    """No connection to the upstream came about: the request was not sent."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


Send = Callable[[h11.Event], Awaitable[None]]


class Body(Protocol):
    """The request's body as it arrives."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...


@dataclass(frozen=True)
class Passing:
    """What one exchange needs. `ledger` and `span` None: not a model request."""

    protocol: ModelProtocol
    upstream: Upstream
    transport: httpx2.AsyncHTTPTransport
    method: bytes
    target: bytes
    headers: Headers
    with_key: bool
    ledger: ActivationLedger | None
    span: ModelCallSpan | None


class _BodyStream(httpx2.AsyncByteStream):
    def __init__(self, body: Body, peek: RequestPeek) -> None:
        self._body = body
        self._peek = peek

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._body:
            self._peek.feed(chunk)
            yield chunk


async def pass_on(passing: Passing, body: Body, send: Send, on_key_seen: Callable[[], None]) -> None:
    """Passes one request and its whole response.

    Raises NotReachedError (nothing was sent to either side), ResponseCutError, ClientGoneError, BodyTooLargeError.
    """
    status: int | None = None
    reader: ResponseReader | None = None
    error_type: str | None = "cancelled"
    peek = RequestPeek()
    ledger = passing.ledger
    try:
        response = await _send_upstream(passing, _BodyStream(body, peek))
        try:
            status = response.status_code
            if ledger is not None:
                ledger.answered(status)
                reader = ResponseReader(passing.protocol, status, response.headers.raw, ledger)
            await _pass_back(response, _guard(passing), reader, send, on_key_seen)
        finally:
            await response.aclose()
        error_type = None
    except NotReachedError:
        error_type = "upstream_unreached"
        if ledger is not None:
            ledger.unreached += 1
        raise
    except ResponseCutError:
        error_type = "upstream_cut"
        if ledger is not None:
            ledger.upstream_cuts += 1
        raise
    except ClientGoneError:
        error_type = "client_gone"
        raise
    except BodyTooLargeError:
        error_type = "request_too_large"
        raise
    finally:
        if reader is not None:
            reader.cut()
        facts = reader.facts if reader is not None else None
        if ledger is not None and facts is not None and facts.error_type is not None:
            ledger.stream_errors += 1
        if passing.span is not None:
            passing.span.requested(peek.model())
            passing.span.end(status, facts, error_type)


def _guard(passing: Passing) -> KeyGuard:
    return KeyGuard(passing.upstream.key.reveal() if passing.upstream.key is not None else None)


async def _send_upstream(passing: Passing, body: httpx2.AsyncByteStream) -> httpx2.Response:
    upstream = passing.upstream
    request = httpx2.Request(
        passing.method.decode("ascii"),
        upstream.origin,
        headers=request_headers(
            passing.headers, upstream.host_header, upstream.credential_header() if passing.with_key else None
        ),
        # `stream` and `target` leave headers and path as they are; `content` and a parsed URL would rewrite them.
        stream=body,
        extensions={
            "target": upstream.path_prefix + passing.target,
            "timeout": {
                "connect": upstream.connect_timeout_s,
                "read": upstream.read_timeout_s,
                "write": upstream.write_timeout_s,
                "pool": upstream.connect_timeout_s,
            },
        },
    )
    try:
        return await passing.transport.handle_async_request(request)
    except (httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
        raise NotReachedError(504, "The relay got no connection to its upstream in time.") from error
    except (httpx2.ConnectError, httpx2.UnsupportedProtocol) as error:
        raise NotReachedError(502, "The relay could not connect to its upstream.") from error
    except httpx2.TransportError as error:
        raise ResponseCutError("the upstream broke off before its response") from error


async def _pass_back(
    response: httpx2.Response,
    guard: KeyGuard,
    reader: ResponseReader | None,
    send: Send,
    on_key_seen: Callable[[], None],
) -> None:
    headers = response_headers(response.headers.raw)
    if any(guard.is_in(value) for _, value in headers):
        on_key_seen()
        raise ResponseCutError("the provider's key stands in a response header")
    await send(
        h11.Response(
            status_code=response.status_code,
            headers=headers,
            reason=response.extensions.get("reason_phrase", b""),
        )
    )

    async def hand_over(data: bytes) -> None:
        if data:
            await send(h11.Data(data=data))
            # Read only after it was handed over: a text counts when it was delivered, and no reading delays it.
            if reader is not None:
                reader.feed(data)

    stream = response.stream
    if not isinstance(stream, httpx2.AsyncByteStream):
        raise TypeError("an asynchronous transport gave a synchronous stream")
    try:
        async for chunk in stream:
            await hand_over(guard.feed(chunk))
    except KeySeenError as seen:
        on_key_seen()
        await hand_over(seen.clean)
        raise ResponseCutError("the provider's key stands in the response") from None
    except httpx2.TransportError as error:
        # What was held back belongs to the bytes that did arrive.
        await hand_over(guard.close())
        raise ResponseCutError("the upstream broke off in its response") from error
    await hand_over(guard.close())
    await send(h11.EndOfMessage())
    if reader is not None:
        reader.close()
