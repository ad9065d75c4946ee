"""One attempt: one request out, and one candidate or one fault back, with what it cost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

from direct_agent.adapters.decoding import CorruptBodyError, UnknownEncodingError, decoder_for
from direct_agent.core.endpoint import Endpoint, Wire
from direct_agent.ports import Clock, FrozenRequest, Reply, Transport, TransportFaultError
from direct_agent.providers.chat_stream import ChatStream
from direct_agent.providers.messages_stream import MessagesStream
from direct_agent.providers.responses_stream import ResponsesStream
from direct_agent.providers.stream_reader import Delta, StreamFaultError, StreamReader
from direct_agent.recovery import classify
from direct_agent.recovery.fault import Fault, FaultClass, Reason
from direct_agent.transcript import Candidate, Usage

_BROKEN = {"reset": Reason.CONNECTION_RESET, "eof": Reason.PREMATURE_EOF, "idle_timeout": Reason.IDLE_TIMEOUT}
_READERS: dict[Wire, type[StreamReader]] = {
    Wire.CHAT: ChatStream,
    Wire.RESPONSES: ResponsesStream,
    Wire.MESSAGES: MessagesStream,
}


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Seconds. `idle_s`: how long no line may arrive. `error_body_s`: how long an error's body is read."""

    idle_s: float = 300.0
    error_body_s: float = 10.0


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """Exactly one of candidate and fault. `usage` counts this one request, or none when none was made."""

    usage: Usage
    showed_output: bool
    candidate: Candidate | None = None
    fault: Fault | None = None
    request_id: str | None = None


async def run_attempt(
    endpoint: Endpoint,
    request: FrozenRequest,
    requested_output: int | None,
    transport: Transport,
    clock: Clock,
    limits: ReadLimits,
    on_delta: Callable[[Delta], None],
) -> AttemptResult:
    """Sends the request once. Raises nothing of the network: every failure is a fault."""
    reader = _READERS[endpoint.wire](endpoint.name)
    try:
        async with transport.send(request) as reply:
            request_id = reply.headers.get("request-id") or reply.headers.get("x-request-id")
            if reply.status != 200:
                body = await _error_body(reply, limits.error_body_s)
                fault = classify.of_response(
                    reply.status,
                    reply.headers,
                    body,
                    provider=endpoint.name,
                    key_variable=endpoint.key_variable,
                    requested_output=requested_output,
                    wall_s=clock.wall(),
                )
                return AttemptResult(_only_counted(), False, fault=fault, request_id=request_id)
            try:
                candidate = await _read(reply, reader, clock, limits, on_delta)
            except StreamFaultError as error:
                usage = _broken_usage(reader, len(request.body))
                return AttemptResult(usage, reader.showed_output, fault=error.fault, request_id=request_id)
            return AttemptResult(reader.usage(), reader.showed_output, candidate, request_id=request_id)
    except TransportFaultError as error:
        if error.kind == "invalid":
            message = f"The address of {endpoint.name} cannot be used. Check the base URL."
            fault = Fault(FaultClass.UNKNOWN, message, was_sent=False)
            return AttemptResult(Usage(), False, fault=fault)
        return AttemptResult(_only_counted(), False, fault=classify.unconnected(endpoint.name))


async def _read(
    reply: Reply, reader: StreamReader, clock: Clock, limits: ReadLimits, on_delta: Callable[[Delta], None]
) -> Candidate:
    broken: Reason | None = None
    try:
        decoder = decoder_for(reply.headers.get("content-encoding", ""))
        last_line_s, lines = clock.monotonic(), 0
        async with aclosing(reply.chunks()) as chunks:
            async for chunk in chunks:
                for piece in decoder.feed(chunk):
                    for delta in reader.feed(piece):
                        on_delta(delta)
                    if reader.is_done:
                        return reader.finish()
                # Bytes without a line end keep a connection open for ever; only whole lines are a sign of life.
                if reader.line_count > lines:
                    last_line_s, lines = clock.monotonic(), reader.line_count
                elif clock.monotonic() - last_line_s > limits.idle_s:
                    broken = Reason.IDLE_TIMEOUT
                    break
        if broken is None and not decoder.is_whole:
            broken = Reason.PREMATURE_EOF
    except TransportFaultError as error:
        broken = _BROKEN.get(error.kind, Reason.PREMATURE_EOF)
    except (CorruptBodyError, UnknownEncodingError):
        raise StreamFaultError(classify.malformed(reader.provider)) from None
    return reader.finish(broken)


async def _error_body(reply: Reply, limit_s: float) -> bytes:
    """The first bytes of an error's body; what came so far when it does not end, breaks or cannot be decoded."""
    body = bytearray()
    try:
        decoder = decoder_for(reply.headers.get("content-encoding", ""))
        async with asyncio.timeout(limit_s):
            async for chunk in reply.chunks():
                for piece in decoder.feed(chunk):
                    body += piece
                    if len(body) >= classify.ERROR_BODY_BYTES_MAX:
                        return bytes(body[: classify.ERROR_BODY_BYTES_MAX])
    except (TimeoutError, TransportFaultError, CorruptBodyError, UnknownEncodingError):
        pass
    return bytes(body)


def _only_counted() -> Usage:
    """A request without any usage: unknown, which is not zero."""
    return Usage(request_count=1, is_unknown=True)


def _broken_usage(reader: StreamReader, request_bytes: int) -> Usage:
    """What was reported stays exact; the rest is estimated and stays unknown."""
    found = reader.usage()
    if not found.is_unknown:
        return found
    asked = -(-request_bytes // 4) if found.prompt is None else 0
    answered = reader.estimate_tokens() if found.completion is None else 0
    return replace(found, is_estimated=True, estimate_tokens=asked + answered)
