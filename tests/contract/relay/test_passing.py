"""What passes, passes untouched: bytes, statuses, headers, pauses."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import time
import zlib

import brotli
import httpx2
import pytest
import zstandard

from sandbox_manager.host.relay import RelayLimits
from tests.contract.relay import streams
from tests.contract.relay.bench import ACTIVATION, KEY, SANDBOX, SECRET, SLOT, bench
from tests.contract.relay.raw_upstream import Seen

MESSAGES = "/v1/messages?beta=true"


def client(url: str) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=url, trust_env=False, timeout=20)


async def test_the_request_arrives_byte_for_byte_with_only_its_credential_replaced() -> None:
    async def answer(seen: Seen) -> None:
        await seen.whole(b"{}", b"content-type: application/json")

    body = b'{"model":"m",\r\n  "x": "\xf0\x9f\x98\x80"}  '
    async with bench(answer) as b, client(b.url) as http:
        headers = [
            ("X-Api-Key", SECRET),
            ("Authorization", f"Bearer {SECRET}"),
            ("Anthropic-Beta", "a,b"),
            ("X-Odd", "1"),
            ("X-Odd", "2"),
            ("Accept-Encoding", "gzip, br"),
            ("Connection", "x-hop"),
            ("X-Hop", "for this hop only"),
            ("Proxy-Authorization", "secret"),
        ]
        await http.post("/v1/messages?beta=true&x=%2F%7e", content=body, headers=headers)
        (seen,) = b.upstream.seen
        assert (seen.method, seen.target) == (b"POST", b"/v1/messages?beta=true&x=%2F%7e")
        assert seen.body == body
        assert seen.header(b"x-api-key") == [KEY.encode()]
        assert seen.header(b"authorization") == []
        assert seen.header(b"host") == [b.upstream.base_url.removeprefix("http://").encode()]
        assert seen.header(b"x-odd") == [b"1", b"2"]
        assert seen.header(b"accept-encoding") == [b"gzip, br"]
        assert seen.header(b"x-hop") == seen.header(b"proxy-authorization") == []
        assert (b"Anthropic-Beta", b"a,b") in seen.headers
        # Nothing of the relay's own: no trace, no forwarding header, no user agent of its library.
        ours = {b"traceparent", b"tracestate", b"via", b"forwarded", b"x-forwarded-for"}
        assert not ours & {name.lower() for name, _ in seen.headers}
        assert SECRET.encode() not in b"".join(value for _, value in seen.headers)


async def test_a_bearer_secret_names_the_slot_too() -> None:
    async def answer(seen: Seen) -> None:
        await seen.whole(b"{}")

    async with bench(answer) as b, client(b.url) as http:
        response = await http.post(MESSAGES, json={}, headers={"authorization": f"Bearer {SECRET}"})
        assert response.status_code == 200
        assert b.upstream.seen[0].header(b"x-api-key") == [KEY.encode()]


async def test_the_base_urls_path_is_put_before_the_target() -> None:
    async def answer(seen: Seen) -> None:
        await seen.whole(b"{}")

    async with bench(answer, prefix="/gateway/") as b, client(b.url) as http:
        await http.post(MESSAGES, json={}, headers=b.headers)
        assert b.upstream.seen[0].target == b"/gateway/v1/messages?beta=true"


async def test_eight_mebibytes_pass_both_ways_with_equal_digests() -> None:
    body = b'{"model":"m","messages":"' + b"q" * (8 * 1024 * 1024) + b'"}'
    back = hashlib.sha256(b"seed").digest() * (8 * 1024 * 1024 // 32)

    async def answer(seen: Seen) -> None:
        await seen.whole(back, b"content-type: application/octet-stream")

    async with bench(answer) as b, client(b.url) as http:
        response = await http.post(MESSAGES, content=body, headers=b.headers)
        assert hashlib.sha256(b.upstream.seen[0].body).digest() == hashlib.sha256(body).digest()
        assert hashlib.sha256(response.content).digest() == hashlib.sha256(back).digest()


async def test_a_chunked_request_stays_chunked_and_whole() -> None:
    async def answer(seen: Seen) -> None:
        await seen.whole(b"{}")

    async def body() -> object:
        for piece in (b'{"model":', b'"m"}'):
            yield piece

    async with bench(answer) as b, client(b.url) as http:
        await http.post(MESSAGES, content=body(), headers=b.headers)  # type: ignore[arg-type]  # an async generator is taken
        (seen,) = b.upstream.seen
        assert seen.body == b'{"model":"m"}'
        assert seen.header(b"transfer-encoding") == [b"chunked"]
        assert seen.header(b"content-length") == []


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd"])
async def test_an_encoded_body_is_passed_as_it_is_and_its_texts_are_read(encoding: str) -> None:
    plain = streams.answer("hello")
    packed = {
        "gzip": gzip.compress,
        "deflate": zlib.compress,
        "br": brotli.compress,
        "zstd": zstandard.ZstdCompressor().compress,
    }[encoding](plain)

    async def answer(seen: Seen) -> None:
        await seen.stream_head(b"content-encoding: " + encoding.encode())
        for at in range(0, len(packed), 7):
            await seen.chunk(packed[at : at + 7])
        await seen.end()

    async with bench(answer) as b, client(b.url) as http:
        async with http.stream("POST", MESSAGES, json={}, headers=b.headers) as response:
            raw = b"".join([chunk async for chunk in response.aiter_raw()])
        assert raw == packed
        assert response.headers["content-encoding"] == encoding
        seen = await b.relay.end_activation(SANDBOX, SLOT, ACTIVATION)
        assert seen.delivered_text_sha256 == (hashlib.sha256(b"hello").hexdigest(),)
        assert seen.unread == 0


@pytest.mark.parametrize(
    "status", ["400 Bad Request", "401 No", "403 Forbidden", "429 Slow Down", "500 Oops", "529 Overloaded"]
)
async def test_an_error_status_passes_as_it_is_and_is_not_retried(status: str) -> None:
    body = b'{"type":"error","error":{"type":"x","message":"y"}}'

    async def answer(seen: Seen) -> None:
        await seen.whole(body, b"content-type: application/json", b"Retry-After: 3", status=status.encode())

    async with bench(answer) as b, client(b.url) as http:
        response = await http.post(MESSAGES, json={}, headers=b.headers)
        number, _, reason = status.partition(" ")
        assert (response.status_code, response.reason_phrase) == (int(number), reason)
        assert response.content == body
        assert response.headers["retry-after"] == "3"
        assert len(b.upstream.seen) == 1
        seen = await b.relay.end_activation(SANDBOX, SLOT, ACTIVATION)
        assert seen.statuses == ((int(number), 1),)
        assert (seen.delivered_text_sha256, seen.unread) == ((), 0)


async def test_the_first_event_comes_through_while_the_rest_is_still_being_made() -> None:
    go_on = asyncio.Event()

    async def answer(seen: Seen) -> None:
        await seen.stream_head()
        await seen.chunk(streams.start())
        await go_on.wait()
        await seen.chunk(streams.stop())
        await seen.end()

    async with (
        bench(answer) as b,
        client(b.url) as http,
        http.stream("POST", MESSAGES, json={}, headers=b.headers) as response,
    ):
        chunks = response.aiter_raw()
        assert await asyncio.wait_for(anext(chunks), 5) == streams.start()
        go_on.set()
        assert b"".join([chunk async for chunk in chunks]) == streams.stop()


async def test_fifty_requests_at_once_each_get_their_own_answer() -> None:
    async def answer(seen: Seen) -> None:
        await seen.stream_head()
        await seen.chunk(streams.start(seen.body.decode()))
        await asyncio.sleep(0)
        await seen.chunk(streams.text_block(0, seen.body.decode()) + streams.stop())
        await seen.end()

    async with bench(answer) as b, client(b.url) as http:

        async def one(number: int) -> None:
            name = f"question-{number}"
            response = await http.post(MESSAGES, content=name.encode(), headers=b.headers)
            assert response.content == streams.answer(name, message_id=name)

        begun = time.monotonic()
        await asyncio.gather(*(one(number) for number in range(50)))
        assert time.monotonic() - begun < 20
        seen = await b.relay.end_activation(SANDBOX, SLOT, ACTIVATION)
        assert (seen.requests, seen.statuses) == (50, ((200, 50),))
        assert sorted(seen.message_ids) == sorted(f"question-{number}" for number in range(50))


async def test_a_kept_connection_carries_one_request_after_another() -> None:
    async def answer(seen: Seen) -> None:
        await seen.whole(seen.body)

    async with bench(answer) as b:
        reader, writer = await asyncio.open_connection("127.0.0.1", b.port)
        for number in range(3):
            body = b"n%d" % number
            writer.write(
                b"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: %s\r\ncontent-length: %d\r\n\r\n%s"
                % (SECRET.encode(), len(body), body)
            )
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
            assert head.startswith(b"HTTP/1.1 200")
            assert await asyncio.wait_for(reader.readexactly(len(body)), 5) == body
        writer.close()


async def test_a_client_that_waits_for_leave_to_send_its_body_gets_it() -> None:
    async def answer(seen: Seen) -> None:
        await seen.whole(seen.body)

    async with bench(answer) as b:
        reader, writer = await asyncio.open_connection("127.0.0.1", b.port)
        writer.write(
            b"POST /v1/messages HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\nx-api-key: %s\r\ncontent-length: 2\r\n\r\n"
            % SECRET.encode()
        )
        assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)).startswith(b"HTTP/1.1 100")
        writer.write(b"ab")
        assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)).startswith(b"HTTP/1.1 200")
        assert await asyncio.wait_for(reader.readexactly(2), 5) == b"ab"
        assert b.upstream.seen[0].header(b"expect") == []
        writer.close()


async def test_a_body_beyond_the_bound_is_refused_in_the_protocols_form() -> None:
    async def answer(seen: Seen) -> None:
        await seen.whole(b"{}")

    async with bench(answer, limits=RelayLimits(request_bytes_max=1000)) as b, client(b.url) as http:
        response = await http.post(MESSAGES, content=b"x" * 1001, headers=b.headers)
        assert response.status_code == 413
        assert response.json()["error"]["type"] == "request_too_large"


async def test_an_unreachable_upstream_is_a_502_in_the_protocols_form() -> None:
    async def answer(seen: Seen) -> None:
        raise AssertionError("never reached")

    # Port 9 of loopback: nobody listens.
    async with bench(answer, upstream_url="http://127.0.0.1:9") as b, client(b.url) as http:
        response = await http.post(MESSAGES, json={}, headers=b.headers)
        assert response.status_code == 502
        assert response.json()["error"]["type"] == "api_error"
        seen = await b.relay.end_activation(SANDBOX, SLOT, ACTIVATION)
        assert (seen.requests, seen.unreached, seen.statuses) == (1, 1, ())
