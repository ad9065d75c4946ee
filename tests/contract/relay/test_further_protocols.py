"""Chat Completions and Responses through the relay: the official client before it, the lab provider behind it, bytes untouched."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import openai
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sandbox_manager.host.relay import Incident, IncidentKind, ProviderKey, Relay, RelayObservation, Upstream, Upstreams
from sandbox_manager.host.relay.upstream import KeyStyle
from standfast_chassis.tracing import configure_tracing
from standfast_lab.provider import LabProvider
from tests.contract.relay.bench import ACTIVATION, KEY, SANDBOX, SECRET, SLOT, listener

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses"}


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def asked(protocol: str, text: str, *, stream: bool) -> dict[str, object]:
    said = [{"role": "user", "content": text}]
    return {"model": "asked-model", "stream": stream, "messages" if protocol == "chat" else "input": said}


@dataclass
class Bench:
    relay: Relay
    lab: LabProvider
    port: int
    spans: InMemorySpanExporter
    incidents: list[Incident]

    async def post(self, protocol: str, text: str, *, stream: bool = True) -> httpx2.Response:
        headers = {"authorization": f"Bearer {SECRET}"}
        async with httpx2.AsyncClient(trust_env=False, timeout=20) as http:
            url = f"http://127.0.0.1:{self.port}{PATHS[protocol]}"
            return await http.post(url, json=asked(protocol, text, stream=stream), headers=headers)

    def client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{self.port}/v1",
            api_key=SECRET,
            max_retries=0,
            timeout=20,
            http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
        )

    async def observed(self) -> RelayObservation:
        return await self.relay.end_activation(SANDBOX, SLOT, ACTIVATION)


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    spans = InMemorySpanExporter()
    tracing = configure_tracing("test", exporter=spans)
    incidents: list[Incident] = []
    async with (
        LabProvider(api_keys=[KEY]) as lab,
        Relay(
            Upstreams.same(Upstream(lab.base_url, ProviderKey(KEY))),
            on_incident=incidents.append,
            tracer=tracing.tracer,
        ) as relay,
    ):
        sock, port = listener()
        await relay.open_sandbox(SANDBOX, sock, container_pid=None)
        relay.register_slot(SANDBOX, SLOT, SECRET, uid=None)
        relay.begin_activation(SANDBOX, SLOT, ACTIVATION, None)
        yield Bench(relay, lab, port, spans, incidents)


@pytest.mark.parametrize("protocol", PATHS)
async def test_bytes_pass_untouched_with_the_key_as_a_bearer_token(protocol: str) -> None:
    async with bench() as b:
        answers = [await b.post(protocol, "[[lab:say grüße 😀]] hello", stream=stream) for stream in (True, False)]
        refused = await b.post(protocol, "[[lab:retry-after=7]] x")
        assert [answer.status_code for answer in (*answers, refused)] == [200, 200, 429]
        assert refused.headers["retry-after"] == "7"
        rows = b.lab.log.rows()
        assert [row["response_sha256"] for row in rows[:2]] == [hashlib.sha256(a.content).hexdigest() for a in answers]
        assert {row["key_sha256"] for row in rows} == {sha(KEY)}
        assert all("x-api-key" not in row["header_names"] for row in rows)
        assert all(SECRET not in json.dumps(row) for row in rows)
        seen = await b.observed()
        assert seen.delivered_text_sha256 == (sha("grüße 😀"),) * 2
        assert (seen.requests, seen.statuses, seen.unread) == (3, ((200, 2), (429, 1)), 0)
        assert (len(seen.message_ids), seen.models) == (2, ("asked-model",))


@pytest.mark.parametrize("protocol", PATHS)
async def test_the_official_client_speaks_through_it(protocol: str) -> None:
    async with bench() as b, b.client() as client:
        said: Any = [{"role": "user", "content": "[[lab:think=hm]] remember: the word is plum"}]
        if protocol == "chat":
            stream = await client.chat.completions.create(model="m", messages=said, stream=True)
            text = "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])
        else:
            async with client.responses.stream(model="m", input=said) as events:
                text = (await events.get_final_response()).output_text
        assert text == "noted: plum"
        assert (await b.observed()).delivered_text_sha256 == (sha(text),)


@pytest.mark.parametrize("protocol", PATHS)
@pytest.mark.parametrize("stream", [True, False])
async def test_only_texts_of_the_assistant_count(protocol: str, stream: bool) -> None:
    async with bench() as b:
        await b.post(protocol, "x [[lab:tool=X {}]]", stream=stream)
        await b.post(protocol, "x [[lab:empty]]", stream=stream)
        await b.post(protocol, "x [[lab:think=a thought]] [[lab:max_tokens]]", stream=stream)
        seen = await b.observed()
        assert len(seen.delivered_text_sha256) == 1


@pytest.mark.parametrize("protocol", PATHS)
async def test_the_span_has_names_and_usage_and_no_content(protocol: str) -> None:
    async with bench() as b:
        await b.post(protocol, "[[lab:say secret text]] [[lab:usage=120x30]]", stream=False)
        await b.observed()
        (span,) = b.spans.get_finished_spans()
        found = dict(span.attributes or {})
        assert span.name == "chat asked-model"
        assert found["gen_ai.provider.name"] == "openai"
        assert (found["gen_ai.usage.input_tokens"], found["gen_ai.usage.output_tokens"]) == (120, 30)
        assert found["gen_ai.response.finish_reasons"] == ("stop" if protocol == "chat" else "completed",)
        assert "secret text" not in span.to_json()


@pytest.mark.parametrize("protocol", PATHS)
async def test_an_error_inside_the_stream_is_counted(protocol: str) -> None:
    async with bench() as b:
        await b.post(protocol, "x [[lab:error-event]]")
        seen = await b.observed()
        assert (seen.stream_errors, seen.statuses) == (1, ((200, 1),))
        (span,) = b.spans.get_finished_spans()
        assert (span.attributes or {})["error.type"] == "server_is_overloaded"


@pytest.mark.parametrize("protocol", PATHS)
@pytest.mark.parametrize(("where", "chat", "responses"), [("mid-text", 2, 0), ("before-stop", 3, 3)])
async def test_of_a_cut_stream_what_was_delivered_counts_by_the_protocols_rule(
    protocol: str, where: str, chat: int, responses: int
) -> None:
    async with bench() as b:
        with pytest.raises(httpx2.TransportError):
            await b.post(protocol, f"[[lab:say 012345678]] [[lab:cut={where} pause=50ms]]")
        seen = await b.observed()
        thirds = chat if protocol == "chat" else responses
        assert seen.delivered_text_sha256 == ((sha("012345678"[: 3 * thirds]),) if thirds else ())
        assert (seen.upstream_cuts, seen.unread) == (1, 0)


async def test_a_text_of_a_client_that_left_counts_as_far_as_it_was_handed_over() -> None:
    async with bench() as b:
        reader, writer = await asyncio.open_connection("127.0.0.1", b.port)
        body = json.dumps(asked("chat", "[[lab:say 012345678]] [[lab:hang=mid-text]]", stream=True)).encode()
        head = f"POST {PATHS['chat']} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {SECRET}\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await asyncio.wait_for(reader.readuntil(b'"345"'), 10)
        writer.close()
        await b.lab.log.wait_for(lambda rows: rows[-1]["is_peer_gone"])
        seen = await b.observed()
        assert seen.delivered_text_sha256 == (sha("012345"),)
        assert seen.client_cuts == 1


@pytest.mark.parametrize("protocol", PATHS)
async def test_a_text_of_eight_mib_is_read_whole(protocol: str) -> None:
    async with bench() as b:
        answer = await b.post(protocol, "[[lab:long=8MiB]]")
        assert answer.status_code == 200
        seen = await b.observed()
        line = "0123456789abcdef" * 4
        assert (seen.delivered_text_sha256, seen.unread) == ((sha(line * (8 * 1024 * 1024 // 64)),), 0)


@pytest.mark.parametrize("protocol", PATHS)
async def test_outside_an_activation_nothing_passes_and_the_client_is_told_why(protocol: str) -> None:
    async with bench() as b, b.client() as client:
        await b.observed()
        said: Any = [{"role": "user", "content": "x"}]
        asking: Any = (
            client.chat.completions.create(model="m", messages=said)
            if protocol == "chat"
            else client.responses.create(model="m", input=said)
        )
        with pytest.raises(openai.PermissionDeniedError, match="No turn is running"):
            await asking
        assert b.lab.log.rows() == []
        assert [incident.kind for incident in b.incidents] == [IncidentKind.NO_ACTIVATION]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models"),
        ("GET", "/v1/responses/resp_1"),
        ("POST", "/v1/responses/resp_1/cancel"),
        ("GET", "/v1/chat/completions"),
        ("POST", "/v1/embeddings"),
        ("POST", "/v1/files"),
    ],
)
async def test_what_one_sandbox_could_read_of_another_is_not_served(method: str, path: str) -> None:
    async with bench() as b, httpx2.AsyncClient(trust_env=False) as http:
        answer = await http.request(
            method, f"http://127.0.0.1:{b.port}{path}", headers={"authorization": f"Bearer {SECRET}"}
        )
        assert answer.status_code == 404
        assert b.lab.log.rows() == []


async def test_each_protocol_has_its_own_upstream_and_its_own_key() -> None:
    keys = {name: f"key-of-{name}-0123456789" for name in ("messages", "chat", "responses")}
    async with AsyncExitStack() as stack:
        labs = {name: await stack.enter_async_context(LabProvider(api_keys=[key])) for name, key in keys.items()}

        def upstream(name: str, style: KeyStyle) -> Upstream:
            return Upstream(labs[name].base_url, ProviderKey(keys[name]), style)

        upstreams = Upstreams(
            upstream("messages", KeyStyle.X_API_KEY),
            upstream("chat", KeyStyle.BEARER),
            upstream("responses", KeyStyle.BEARER),
        )
        relay = await stack.enter_async_context(Relay(upstreams))
        sock, port = listener()
        await relay.open_sandbox(SANDBOX, sock, container_pid=None)
        relay.register_slot(SANDBOX, SLOT, SECRET, uid=None)
        relay.begin_activation(SANDBOX, SLOT, ACTIVATION, None)
        http = await stack.enter_async_context(httpx2.AsyncClient(trust_env=False))
        for name, path in {"messages": "/v1/messages", **PATHS}.items():
            answer = await http.post(
                f"http://127.0.0.1:{port}{path}",
                json=asked("chat" if name == "messages" else name, "x", stream=False),
                headers={"authorization": f"Bearer {SECRET}"},
            )
            assert answer.status_code == 200
            (row,) = labs[name].log.rows()
            assert row["key_sha256"] == sha(keys[name])
