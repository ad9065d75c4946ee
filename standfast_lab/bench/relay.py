"""The relay against a bare reverse proxy in the same language, request by request in turn, in one process.

The bare proxy is h11 in front of httpx2, as the relay is: it passes a request and a response on and does nothing else: no slots, no
credential, no reading, no spans, no watch over the client, no bounds. Both talk to one provider over kept connections.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import h11
import httpx2

from sandbox_manager.host.relay import ProviderKey, Relay, Upstream, Upstreams
from standfast_lab.bench.figures import Figure, median, summed_up
from standfast_lab.provider import LabProvider

_KEY = "bench-provider-key-0123456789"
_SECRET = "bench-slot-secret-0123456789"
_WARM_UP = 10
_MESSAGE = "[[lab:slow=20x0ms]] " + "q" * 50_000


async def bare_proxy(
    base_url: str, transport: httpx2.AsyncHTTPTransport, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Serves one client connection by passing everything on."""
    connection = h11.Connection(h11.SERVER)

    async def next_event() -> Any:
        while (event := connection.next_event()) is h11.NEED_DATA:
            connection.receive_data(await reader.read(65536))
        return event

    async def send(event: h11.Event) -> None:
        writer.write(connection.send(event) or b"")
        await writer.drain()

    class Body(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            while isinstance(event := await next_event(), h11.Data):
                yield bytes(event.data)

    while isinstance(asked := await next_event(), h11.Request):
        headers = [(name, value) for name, value in asked.headers if name not in (b"host", b"connection")]
        request = httpx2.Request(
            asked.method.decode(),
            base_url,
            headers=[(b"host", b"upstream"), *headers],
            stream=Body(),
            extensions={"target": asked.target},
        )
        response = await transport.handle_async_request(request)
        passed = [(n, v) for n, v in response.headers.raw if n.lower() not in (b"transfer-encoding", b"connection")]
        await send(h11.Response(status_code=response.status_code, headers=passed))
        async for chunk in response.stream:  # type: ignore[union-attr]  # an asynchronous transport's stream is one
            await send(h11.Data(data=chunk))
        await response.aclose()
        await send(h11.EndOfMessage())
        connection.start_next_cycle()
    writer.close()


async def _one(http: httpx2.AsyncClient, url: str, body: bytes) -> tuple[float, float]:
    """Milliseconds to the first byte of the body, and to its end."""
    begun = time.perf_counter()
    first: float | None = None
    headers = {"x-api-key": _SECRET, "content-type": "application/json"}
    async with http.stream("POST", url, content=body, headers=headers) as response:
        async for _ in response.aiter_raw():
            first = first or time.perf_counter()
    end = time.perf_counter()
    return ((first or end) - begun) * 1000, (end - begun) * 1000


async def relay_figures(rounds: int, progress: Callable[[int], None]) -> list[Figure]:
    """A request of 50 kB and a streamed answer: directly, through the bare proxy, through the relay."""
    async with AsyncExitStack() as stack:
        lab = await stack.enter_async_context(LabProvider())
        transport = httpx2.AsyncHTTPTransport(trust_env=False)
        stack.push_async_callback(transport.aclose)
        # With the protocol spelled out: else asyncio leaves Nagle's delay on, and 40 ms of it would flatter the relay.
        bare_socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        bare_socket.bind(("127.0.0.1", 0))
        bare = await asyncio.start_server(partial(bare_proxy, lab.base_url, transport), sock=bare_socket)
        stack.callback(bare.close)
        relay = await stack.enter_async_context(Relay(Upstreams.same(Upstream(lab.base_url, ProviderKey(_KEY)))))
        relay_socket = socket.create_server(("127.0.0.1", 0))
        relay_port = relay_socket.getsockname()[1]
        await relay.open_sandbox("bench", relay_socket, container_pid=None)
        relay.register_slot("bench", "slot", _SECRET, uid=None)
        relay.begin_activation("bench", "slot", "activation", None)
        http = await stack.enter_async_context(httpx2.AsyncClient(trust_env=False, timeout=30))
        urls = {
            "direct": lab.base_url,
            "bare": f"http://127.0.0.1:{bare_socket.getsockname()[1]}",
            "relay": f"http://127.0.0.1:{relay_port}",
        }
        messages = [{"role": "user", "content": _MESSAGE}]
        body = json.dumps({"model": "m", "max_tokens": 9, "stream": True, "messages": messages}).encode()
        first: dict[str, list[float]] = {name: [] for name in urls}
        whole: dict[str, list[float]] = {name: [] for name in urls}
        for number in range(-_WARM_UP, rounds):
            for name, url in urls.items():
                first_ms, whole_ms = await _one(http, f"{url}/v1/messages?beta=true", body)
                if number >= 0:
                    first[name].append(first_ms)
                    whole[name].append(whole_ms)
            progress(max(number + 1, 0))
    whole_detail = summed_up("relay", whole["relay"]) | summed_up("bare", whole["bare"])
    first_detail = summed_up("relay", first["relay"]) | summed_up("bare", first["bare"])
    direct_detail = summed_up("relay", first["relay"]) | summed_up("direct", first["direct"])
    whole_ratio = median(whole["relay"]) / median(whole["bare"])
    first_ratio = median(first["relay"]) / median(first["bare"])
    delay_ms = median(first["relay"]) - median(first["direct"])
    return [
        Figure("relay", "whole answer, over a bare proxy", whole_ratio, "x", 1.2, detail=whole_detail),
        Figure("relay", "first byte, over a bare proxy", first_ratio, "x", 1.2, detail=first_detail),
        Figure("relay", "first byte, later than without any proxy", delay_ms, "ms", 5.0, detail=direct_detail),
    ]
