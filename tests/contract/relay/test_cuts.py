"""What breaks on one side breaks on the other: no end is invented, no request outlives its client."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from sandbox_manager.host.relay import RelayLimits
from tests.contract.relay import streams
from tests.contract.relay.bench import ACTIVATION, SANDBOX, SECRET, SLOT, Bench, bench
from tests.contract.relay.raw_upstream import Seen


async def post(b: Bench) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", b.port)
    writer.write(
        b"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: %s\r\ncontent-length: 2\r\n\r\n{}" % SECRET.encode()
    )
    return reader, writer


async def read_all(reader: asyncio.StreamReader) -> bytes:
    try:
        return await asyncio.wait_for(reader.read(-1), 10)
    except ConnectionError:
        return b""


@pytest.mark.parametrize("how", ["cut", "reset"])
async def test_a_stream_cut_upstream_reaches_the_client_without_an_end(how: str) -> None:
    got_first = asyncio.Event()

    async def answer(seen: Seen) -> None:
        await seen.stream_head()
        await seen.chunk(streams.start() + streams.text_block(0, "whole") + streams.text_block(1, "half")[:-20])
        await got_first.wait()
        getattr(seen, how)()

    async with bench(answer) as b:
        reader, writer = await post(b)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        assert b"chunked" in head.lower()
        await asyncio.wait_for(reader.readuntil(b'"whole"'), 5)
        got_first.set()
        rest = await read_all(reader)
        assert b"0\r\n\r\n" not in rest
        writer.close()
        seen = await b.relay.end_activation(SANDBOX, SLOT, ACTIVATION)
        assert seen.delivered_text_sha256 == (hashlib.sha256(b"whole").hexdigest(),)
        assert (seen.upstream_cuts, seen.client_cuts) == (1, 0)
        (span,) = b.spans.get_finished_spans()
        assert span.attributes is not None
        assert span.attributes["error.type"] == "upstream_cut"


async def test_a_body_shorter_than_its_length_reaches_the_client_as_short() -> None:
    async def answer(seen: Seen) -> None:
        await seen.head(b"content-length: 100")
        await seen.write(b"only this")
        seen.cut()

    async with bench(answer) as b:
        reader, writer = await post(b)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
        assert b"content-length: 100" in head.lower()
        assert await read_all(reader) == b"only this"
        writer.close()


async def test_an_upstream_that_leaves_before_its_answer_is_a_connection_that_ends_with_nothing() -> None:
    async def answer(seen: Seen) -> None:
        seen.cut()

    async with bench(answer) as b:
        reader, writer = await post(b)
        assert await read_all(reader) == b""
        writer.close()
        seen = await b.relay.end_activation(SANDBOX, SLOT, ACTIVATION)
        assert (seen.requests, seen.upstream_cuts, seen.statuses) == (1, 1, ())
        assert len(b.upstream.seen) == 1


async def test_a_silent_upstream_is_cut_when_its_time_is_up() -> None:
    never = asyncio.Event()

    async def answer(seen: Seen) -> None:
        await seen.stream_head()
        await seen.chunk(streams.start())
        await never.wait()

    async with bench(answer, read_timeout_s=0.2) as b:
        reader, writer = await post(b)
        assert b"0\r\n\r\n" not in await read_all(reader)
        writer.close()
        seen = await b.relay.end_activation(SANDBOX, SLOT, ACTIVATION)
        assert seen.upstream_cuts == 1


@pytest.mark.parametrize("when", ["before the head", "in the body"])
async def test_a_client_that_leaves_takes_its_upstream_request_with_it(when: str) -> None:
    reached = asyncio.Event()

    async def answer(seen: Seen) -> None:
        if when == "in the body":
            await seen.stream_head()
            await seen.chunk(streams.start())
        reached.set()
        await asyncio.wait_for(seen.gone.wait(), 10)

    async with bench(answer) as b:
        _, writer = await post(b)
        await asyncio.wait_for(reached.wait(), 5)
        writer.close()
        await asyncio.wait_for(b.upstream.seen[0].gone.wait(), 5)
        seen = await b.relay.end_activation(SANDBOX, SLOT, ACTIVATION)
        assert (seen.client_cuts, seen.upstream_cuts, seen.in_flight) == (1, 0, 0)


async def test_a_client_that_leaves_in_its_own_body_leaves_no_whole_request_upstream() -> None:
    answered = False

    async def answer(seen: Seen) -> None:
        nonlocal answered
        answered = True

    async with bench(answer) as b:
        _, writer = await asyncio.open_connection("127.0.0.1", b.port)
        writer.write(
            b"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: %s\r\ncontent-length: 99\r\n\r\npart"
            % SECRET.encode()
        )
        await writer.drain()
        await asyncio.wait_for(b.upstream.body_began.wait(), 5)
        writer.close()
        await asyncio.wait_for(b.upstream.seen[0].gone.wait(), 5)
        assert not answered


async def test_revoking_a_slot_breaks_what_it_has_open() -> None:
    reached = asyncio.Event()

    async def answer(seen: Seen) -> None:
        await seen.stream_head()
        await seen.chunk(streams.start())
        reached.set()
        await asyncio.wait_for(seen.gone.wait(), 10)

    async with bench(answer) as b:
        reader, writer = await post(b)
        await asyncio.wait_for(reached.wait(), 5)
        b.relay.revoke_slot(SANDBOX, SLOT)
        assert b"0\r\n\r\n" not in await read_all(reader)
        await asyncio.wait_for(b.upstream.seen[0].gone.wait(), 5)
        writer.close()


async def test_closing_a_sandbox_breaks_its_connections_and_frees_its_port() -> None:
    reached = asyncio.Event()

    async def answer(seen: Seen) -> None:
        reached.set()
        await asyncio.wait_for(seen.gone.wait(), 10)

    async with bench(answer) as b:
        reader, writer = await post(b)
        await asyncio.wait_for(reached.wait(), 5)
        await asyncio.wait_for(b.relay.close_sandbox(SANDBOX), 5)
        assert await read_all(reader) == b""
        writer.close()
        with pytest.raises(ConnectionError):
            await asyncio.open_connection("127.0.0.1", b.port)


async def test_a_client_that_takes_nothing_is_left_and_its_upstream_request_with_it() -> None:
    async def answer(seen: Seen) -> None:
        await seen.stream_head()
        while not seen.gone.is_set():
            await seen.chunk(b": " + b"x" * 65536 + b"\n\n")

    async with bench(answer, limits=RelayLimits(stall_timeout_s=0.2)) as b:
        _, writer = await post(b)
        async with asyncio.timeout(20):
            await b.upstream.came.wait()
            await b.upstream.seen[0].gone.wait()
        writer.close()


async def test_a_client_that_stops_in_its_own_body_is_left() -> None:
    async def answer(seen: Seen) -> None:
        raise AssertionError("never whole")

    async with bench(answer, limits=RelayLimits(stall_timeout_s=0.2)) as b:
        reader, writer = await asyncio.open_connection("127.0.0.1", b.port)
        writer.write(
            b"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: %s\r\ncontent-length: 99\r\n\r\npart"
            % SECRET.encode()
        )
        assert await read_all(reader) == b""
        writer.close()


async def test_a_refused_client_that_waits_for_leave_is_not_waited_for() -> None:
    async def answer(seen: Seen) -> None:
        raise AssertionError("never forwarded")

    async with bench(answer, limits=RelayLimits(close_timeout_s=60)) as b:
        reader, writer = await asyncio.open_connection("127.0.0.1", b.port)
        writer.write(b"POST /v1/messages HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n")
        assert (await read_all(reader)).startswith(b"HTTP/1.1 401")
        writer.close()
