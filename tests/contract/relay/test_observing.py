"""What the relay says it saw: delivered texts, names, usage; and that the key is in nothing it says or passes."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import logging

import httpx2
import pytest
from opentelemetry.trace import SpanKind

from sandbox_manager.host.relay import IncidentKind
from tests.contract.relay import streams
from tests.contract.relay.bench import ACTIVATION, KEY, SANDBOX, SLOT, Bench, bench
from tests.contract.relay.raw_upstream import Answer, Seen


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def streaming(body: bytes, *lines: bytes, piece_bytes: int = 1 << 30) -> Answer:
    async def answer(seen: Seen) -> None:
        await seen.stream_head(*lines)
        for at in range(0, len(body), piece_bytes):
            await seen.chunk(body[at : at + piece_bytes])
        await seen.end()

    return answer


async def post(b: Bench, body: object = None) -> httpx2.Response:
    async with httpx2.AsyncClient(trust_env=False, timeout=20) as http:
        return await http.post(f"{b.url}/v1/messages?beta=true", json=body or {}, headers=b.headers)


@pytest.mark.parametrize("piece_bytes", [1, 3, 1000, 1 << 20])
async def test_texts_are_digested_whole_however_the_bytes_are_cut(piece_bytes: int) -> None:
    texts = ("grüße 😀 \u200b end ", "", "  two\r\nlines\n")
    async with bench(streaming(streams.answer(*texts), piece_bytes=piece_bytes)) as b:
        assert (await post(b)).content == streams.answer(*texts)
        seen = await b.relay.end_activation(SANDBOX, SLOT, ACTIVATION)
        assert seen.delivered_text_sha256 == tuple(sha(text) for text in texts)
        assert (seen.message_ids, seen.models) == (("msg_1",), ("model-a",))


async def test_deltas_of_one_block_are_one_text_and_other_blocks_are_none() -> None:
    body = (
        streams.start()
        + streams.event("content_block_start", index=0, content_block={"type": "thinking", "thinking": ""})
        + streams.event("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "hm"})
        + streams.event("content_block_stop", index=0)
        + streams.text_block(1, "one ", "two ", "three")
        + streams.event("content_block_start", index=2, content_block={"type": "tool_use", "id": "t", "name": "n"})
        + streams.event("content_block_delta", index=2, delta={"type": "input_json_delta", "partial_json": "{}"})
        + streams.event("content_block_stop", index=2)
        + streams.stop("tool_use")
    )
    async with bench(streaming(body)) as b:
        await post(b)
        seen = await b.relay.end_activation(SANDBOX, SLOT, ACTIVATION)
        assert seen.delivered_text_sha256 == (sha("one two three"),)


async def test_a_whole_json_answer_is_read_too() -> None:
    message = {
        "type": "message",
        "id": "msg_9",
        "model": "model-b",
        "content": [{"type": "text", "text": "hello"}, {"type": "tool_use", "id": "t"}, {"type": "text", "text": "ü"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 3, "output_tokens": 4},
    }

    async def answer(seen: Seen) -> None:
        await seen.whole(json.dumps(message).encode(), b"content-type: application/json; charset=utf-8")

    async with bench(answer) as b:
        await post(b)
        seen = await b.relay.end_activation(SANDBOX, SLOT, ACTIVATION)
        assert seen.delivered_text_sha256 == (sha("hello"), sha("ü"))
        assert (seen.message_ids, seen.models, seen.unread) == (("msg_9",), ("model-b",), 0)


@pytest.mark.parametrize(
    ("line", "body"),
    [
        (b"content-encoding: br", b"\x0b\x02\x80whatever"),
        (b"content-encoding: zstd", b"this is no zstd"),
        (b"content-encoding: compress", b"an old one"),
        (b"content-encoding: gzip, br", b"two of them"),
        (b"content-encoding: gzip", gzip.compress(b": x", mtime=0)[:-4]),
        (
            b"content-encoding: gzip",
            gzip.compress(b": x", mtime=0) + gzip.compress(streams.answer("second member"), mtime=0),
        ),
        (b"content-encoding: gzip", b"this is no gzip"),
        (b"x-a: b", b"data: {not json\n\n"),
        (b"x-a: b", b"data: [1]\n\n"),
    ],
    ids=[
        "no br",
        "no zstd",
        "unknown",
        "two encodings",
        "gzip cut",
        "second member",
        "no gzip",
        "no JSON",
        "no object",
    ],
)
async def test_what_cannot_be_read_passes_and_is_said_to_be_unread(line: bytes, body: bytes) -> None:
    async with bench(streaming(body, line)) as b, httpx2.AsyncClient(trust_env=False) as http:
        async with http.stream("POST", f"{b.url}/v1/messages", headers=b.headers) as response:
            assert b"".join([chunk async for chunk in response.aiter_raw()]) == body
        seen = await b.relay.end_activation(SANDBOX, SLOT, ACTIVATION)
        assert (seen.unread, seen.delivered_text_sha256) == (1, ())


async def test_an_error_event_inside_a_good_stream_is_counted() -> None:
    body = streams.start() + streams.event("error", error={"type": "overloaded_error", "message": "m"})
    async with bench(streaming(body)) as b:
        await post(b)
        seen = await b.relay.end_activation(SANDBOX, SLOT, ACTIVATION)
        assert (seen.stream_errors, seen.statuses) == (1, ((200, 1),))
        (span,) = b.spans.get_finished_spans()
        assert span.attributes is not None
        assert span.attributes["error.type"] == "overloaded_error"


async def test_one_span_a_model_call_under_the_activation_and_without_content() -> None:
    async with bench(streaming(streams.answer("secret text"))) as b:
        await post(b, {"model": "asked-model", "messages": [{"role": "user", "content": "private question"}]})
        await b.relay.end_activation(SANDBOX, SLOT, ACTIVATION)
        (span,) = b.spans.get_finished_spans()
        assert (span.name, span.kind) == ("chat asked-model", SpanKind.CLIENT)
        assert span.parent is not None
        assert f"{span.parent.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
        assert f"{span.parent.span_id:016x}" == "b7ad6b7169203331"
        attributes = dict(span.attributes or {})
        expected = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "anthropic",
            "gen_ai.request.model": "asked-model",
            "gen_ai.response.model": "model-a",
            "gen_ai.response.id": "msg_1",
            "gen_ai.response.finish_reasons": ("end_turn",),
            "gen_ai.usage.input_tokens": 17,
            "gen_ai.usage.output_tokens": 7,
            "gen_ai.usage.cache_read.input_tokens": 5,
            "gen_ai.usage.cache_write.input_tokens": 2,
            "server.address": "127.0.0.1",
        }
        assert {name: attributes.get(name) for name in expected} == expected
        assert "error.type" not in attributes
        text = span.to_json()
        assert not any(word in text for word in ("secret text", "private question", KEY))


async def test_unknown_usage_is_left_out_of_the_span() -> None:
    async def answer(seen: Seen) -> None:
        await seen.whole(b"{}", status=b"529 Overloaded")

    async with bench(answer) as b:
        await post(b)
        await b.relay.end_activation(SANDBOX, SLOT, ACTIVATION)
        (span,) = b.spans.get_finished_spans()
        assert span.name == "chat"
        assert not any(name.startswith("gen_ai.usage") for name in span.attributes or {})
        assert (span.attributes or {})["error.type"] == "529"


async def test_an_observation_waits_a_moment_for_a_response_that_is_just_ending() -> None:
    nearly, let_end = asyncio.Event(), asyncio.Event()

    async def answer(seen: Seen) -> None:
        await seen.stream_head()
        await seen.chunk(streams.start())
        nearly.set()
        await let_end.wait()
        await seen.chunk(streams.text_block(0, "late") + streams.stop())
        await seen.end()

    async with bench(answer) as b:
        asking = asyncio.create_task(post(b))
        await asyncio.wait_for(nearly.wait(), 5)
        ending = asyncio.create_task(b.relay.end_activation(SANDBOX, SLOT, ACTIVATION, drain_timeout_s=5))
        await asyncio.sleep(0)
        let_end.set()
        seen = await asyncio.wait_for(ending, 5)
        assert (seen.delivered_text_sha256, seen.in_flight) == ((sha("late"),), 0)
        await asking


async def test_an_observation_does_not_wait_for_ever_and_says_what_still_runs() -> None:
    reached, let_end = asyncio.Event(), asyncio.Event()

    async def answer(seen: Seen) -> None:
        await seen.stream_head()
        reached.set()
        await let_end.wait()
        await seen.chunk(streams.text_block(0, "too late"))
        await seen.end()

    async with bench(answer) as b:
        asking = asyncio.create_task(post(b))
        await asyncio.wait_for(reached.wait(), 5)
        seen = await b.relay.end_activation(SANDBOX, SLOT, ACTIVATION, drain_timeout_s=0.05)
        assert (seen.in_flight, seen.delivered_text_sha256) == (1, ())
        let_end.set()
        assert (await asking).status_code == 200
        assert await b.relay.end_activation(SANDBOX, SLOT, ACTIVATION) == seen


@pytest.mark.parametrize("where", ["body", "split", "header"])
async def test_an_upstream_that_echoes_the_key_is_cut_before_it(where: str) -> None:
    async def answer(seen: Seen) -> None:
        if where == "header":
            await seen.whole(b"{}", b"x-echo: " + KEY.encode())
            return
        await seen.stream_head()
        body = b"before " + KEY.encode() + b" after"
        cut = len(body) if where == "body" else 15
        for piece in (body[:cut], body[cut:]):
            if piece:
                await seen.chunk(piece)
        await seen.end()

    async with bench(answer) as b:
        reader, writer = await asyncio.open_connection("127.0.0.1", b.port)
        lines = "".join(f"{name}: {value}\r\n" for name, value in b.headers.items())
        writer.write(f"POST /v1/messages HTTP/1.1\r\nhost: x\r\n{lines}content-length: 0\r\n\r\n".encode())
        got = await asyncio.wait_for(reader.read(-1), 5)
        writer.close()
        assert KEY.encode() not in got
        assert KEY.encode()[:8] not in got
        assert b"after" not in got
        assert not got.endswith(b"0\r\n\r\n")
        assert (b"before " in got) == (where != "header")
        assert [incident.kind for incident in b.incidents] == [IncidentKind.KEY_IN_RESPONSE]


async def test_the_key_is_in_no_log_line(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    caplog.set_level(logging.DEBUG)

    async def answer(seen: Seen) -> None:
        seen.cut()

    async with bench(answer) as b:
        with pytest.raises(httpx2.TransportError):
            await post(b)
        async with httpx2.AsyncClient(trust_env=False) as http:
            await http.post(f"{b.url}/v1/messages", headers={"x-api-key": "wrong-secret-0123456789"})
    out = capfd.readouterr()
    assert KEY not in caplog.text + out.out + out.err
