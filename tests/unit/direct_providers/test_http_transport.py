"""The transport over a real loopback connection: one request a call, faults by kind, the key only where it belongs."""

from __future__ import annotations

import asyncio
import socket
import time
import zlib
from collections.abc import Sequence

import pytest

from direct_agent.adapters.http_transport import Credential, HttpTransport, Timeouts, x_api_key
from direct_agent.adapters.real_clock import RealClock
from direct_agent.conductors.attempt import AttemptResult, ReadLimits, run_attempt
from direct_agent.core.endpoint import Endpoint, EndpointKind, Wire
from direct_agent.core.request_settings import RequestSettings
from direct_agent.ports import FrozenRequest, TransportFaultError
from direct_agent.providers.request import frozen_request
from direct_agent.recovery.fault import FaultClass, Reason
from direct_agent.transcript import UserMessage
from standfast_lab.recovery import answers
from standfast_lab.recovery.scripted_server import Break, Framing, Heard, ScriptedServer, Step

KEY = "key-of-the-test-0001"
QUICK = Timeouts(connect_s=2.0, idle_s=0.5)


def dead_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


async def attempt(
    steps: Sequence[Step],
    wire: Wire = Wire.CHAT,
    limits: ReadLimits | None = None,
    credential: Credential | None = None,
) -> tuple[AttemptResult, list[Heard]]:
    async with ScriptedServer(steps) as server, HttpTransport(credential, QUICK) as transport:
        endpoint = Endpoint(
            wire, EndpointKind.STRICT_DEEPSEEK, server.base_url, "m", name="lab", key_variable="LAB_KEY"
        )
        request = frozen_request(endpoint, (UserMessage("hi"),), RequestSettings())
        result = await run_attempt(
            endpoint, request, None, transport, RealClock(), limits or ReadLimits(), lambda _delta: None
        )
    return result, server.heard


async def test_one_request_with_the_frozen_bytes_and_the_key() -> None:
    result, heard = await attempt([Step(answers.text(Wire.CHAT))], credential=Credential(lambda: KEY))
    assert result.candidate is not None
    assert len(heard) == 1
    assert heard[0].headers["authorization"] == f"Bearer {KEY}"
    assert heard[0].headers["accept-encoding"] == "identity"


async def test_the_messages_way_of_sending_a_key() -> None:
    _, heard = await attempt([Step(answers.text(Wire.MESSAGES))], Wire.MESSAGES, credential=x_api_key(lambda: KEY))
    assert heard[0].headers["x-api-key"] == KEY
    assert heard[0].headers["anthropic-version"] == "2023-06-01"


async def test_a_redirect_to_another_origin_goes_without_the_key() -> None:
    async with ScriptedServer([Step(answers.text(Wire.CHAT))]) as other:
        step = Step(status=307, headers=(("location", other.base_url + "/elsewhere"),), framing=Framing.LENGTH)
        result, heard = await attempt([step], credential=x_api_key(lambda: KEY))
        assert result.candidate is not None
        assert "x-api-key" in heard[0].headers
        assert "x-api-key" not in other.heard[0].headers
        assert other.heard[0].body == heard[0].body


async def test_a_redirect_to_a_dead_address_looks_like_no_connection() -> None:
    step = Step(status=307, headers=(("location", f"http://127.0.0.1:{dead_port()}/"),), framing=Framing.LENGTH)
    result, _ = await attempt([step])
    assert result.fault is not None
    assert (result.fault.fault_class, result.fault.may_wait) == (FaultClass.CONNECT, True)


async def test_redirects_in_a_circle_end() -> None:
    step = Step(status=307, headers=(("location", "/again"),), framing=Framing.LENGTH)
    result, heard = await attempt([step])
    assert result.fault is not None
    assert len(heard) == 6


async def test_no_connection() -> None:
    request = FrozenRequest(f"http://127.0.0.1:{dead_port()}/", (), b"{}")
    async with HttpTransport(None, QUICK) as transport:
        with pytest.raises(TransportFaultError) as raised:
            async with transport.send(request):
                pass
    assert raised.value.kind == "connect"
    assert "127.0.0.1" not in str(raised.value)


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (Step(answers.text(Wire.CHAT), cut_at=40, broken=Break.RESET), Reason.CONNECTION_RESET),
        (Step(answers.text(Wire.CHAT), cut_at=40, broken=Break.CLOSE), Reason.PREMATURE_EOF),
        (Step(answers.text(Wire.CHAT), cut_at=40, broken=Break.CLOSE, framing=Framing.LENGTH), Reason.PREMATURE_EOF),
        (Step(answers.text(Wire.CHAT), cut_at=40, framing=Framing.CLOSE), Reason.PREMATURE_EOF),
        (Step(answers.text(Wire.CHAT), cut_at=40, broken=Break.HOLD), Reason.IDLE_TIMEOUT),
    ],
)
async def test_how_a_body_broke(step: Step, reason: Reason) -> None:
    result, _ = await attempt([step])
    assert result.fault is not None
    assert (result.fault.fault_class, result.fault.reason) == (FaultClass.STREAM, reason)
    assert result.usage.is_unknown
    assert result.usage.is_estimated


async def test_silence_before_the_headers_is_no_connection() -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    async with server, HttpTransport(None, QUICK) as transport:
        request = FrozenRequest(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", (), b"{}")
        with pytest.raises(TransportFaultError) as raised:
            async with transport.send(request):
                pass
    assert raised.value.kind == "connect"


async def test_an_error_body_that_never_ends_frees_the_loop() -> None:
    step = Step(b'{"error":{"code":"insufficient_quota"', 429, cut_at=37, broken=Break.HOLD)
    started = time.monotonic()
    result, _ = await attempt([step], limits=ReadLimits(error_body_s=0.2))
    assert time.monotonic() - started < 5
    assert result.fault is not None
    assert result.fault.fault_class is FaultClass.QUOTA


async def test_only_4_kib_of_an_error_body_are_looked_at() -> None:
    result, _ = await attempt([Step(b" " * 5000 + b"insufficient_quota", 429, framing=Framing.LENGTH)])
    assert result.fault is not None
    assert result.fault.fault_class is FaultClass.HEADERS


async def test_an_unknown_encoding_is_malformed() -> None:
    step = Step(answers.text(Wire.CHAT), headers=(("content-encoding", "rot13"),))
    result, _ = await attempt([step])
    assert result.fault is not None
    assert result.fault.fault_class is FaultClass.MALFORMED_EVENT


async def test_request_ids_are_kept() -> None:
    result, _ = await attempt([Step(answers.text(Wire.CHAT), headers=(("x-request-id", "req-7"),))])
    assert result.request_id == "req-7"


def test_a_credential_does_not_show_its_key() -> None:
    assert KEY not in repr(Credential(lambda: KEY))


def flushed(body: bytes, *, is_whole: bool) -> Step:
    """A gzip body whose text can all be read, with or without the end of the encoding; its HTTP end is clean."""
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    packed = packer.compress(body) + packer.flush(zlib.Z_SYNC_FLUSH)
    return Step(packed + (packer.flush() if is_whole else b""), headers=(("content-encoding", "gzip"),))


async def test_an_encoded_body_that_is_cut_is_an_interruption_although_a_finish_reason_was_read() -> None:
    body = answers.text(Wire.CHAT).replace(b"data: [DONE]\n\n", b"")
    cut, _ = await attempt([flushed(body, is_whole=False)])
    assert cut.fault is not None
    assert (cut.fault.fault_class, cut.fault.reason) == (FaultClass.STREAM, Reason.PREMATURE_EOF)
    whole, _ = await attempt([flushed(body, is_whole=True)])
    assert whole.candidate is not None
    ended, _ = await attempt([flushed(answers.text(Wire.CHAT), is_whole=False)])
    assert ended.candidate is not None
