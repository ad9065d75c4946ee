"""Recorded streams, cut at every byte, in three protocols and five content encodings: complete, retried or terminal.

The oracle knows the contract, not the readers: it looks at which whole lines had arrived.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

import brotli
import pytest
import zstandard

from direct_agent.adapters.decoding import decoder_for
from direct_agent.core.endpoint import Wire
from direct_agent.providers.stream_reader import StreamFaultError
from direct_agent.recovery.fault import FaultClass, Reason
from direct_agent.transcript import Candidate
from tests.unit.direct_providers.recorded import STREAMS, reader

FINISHED = {Wire.CHAT: b'"finish_reason":"', Wire.MESSAGES: b'"stop_reason":"'}
TERMINAL = {
    Wire.CHAT: b"data: [DONE]",
    Wire.MESSAGES: b'data: {"type":"message_stop"}',
    Wire.RESPONSES: b'"response.completed"',
}


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(body) + packer.flush()


ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "deflate raw": raw_deflate,
    "br": brotli.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}


def expected(wire: Wire, seen: bytes, *, is_clean: bool) -> str:
    """`complete` or `retried`, for the first bytes of a healthy stream."""
    *whole, rest = seen.split(b"\n")
    if any(TERMINAL[wire] in line for line in whole):
        return "complete"
    # A last line without its end counts when its document is whole.
    is_rest_whole = rest == b"data: [DONE]" or (
        rest.startswith(b"data:") and rest.endswith(b"}") and _is_json(rest[5:])
    )
    if is_rest_whole and TERMINAL[wire] in rest:
        return "complete"
    if wire is Wire.RESPONSES or not is_clean:
        return "retried"
    is_cut_inside = rest.startswith(b"data:") and rest[5:].strip() != b"" and not is_rest_whole
    has_finish = any(FINISHED[wire] in line for line in [*whole, *([rest] if is_rest_whole else [])])
    return "complete" if has_finish and not is_cut_inside else "retried"


def _is_json(payload: bytes) -> bool:
    import json

    try:
        json.loads(payload)
    except ValueError:
        return False
    return True


def outcome(wire: Wire, chunks: list[bytes], broken: Reason | None) -> tuple[str, Candidate | None]:
    one = reader(wire)
    try:
        for chunk in chunks:
            one.feed(chunk)
            if one.is_done:
                break
        candidate = one.finish(broken)
    except StreamFaultError as error:
        fault = error.fault
        assert fault.fault_class is FaultClass.STREAM, fault
        assert fault.is_retryable
        assert not fault.may_wait
        return "retried", None
    return "complete", candidate


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean end", "broken connection"])
@pytest.mark.parametrize("name", STREAMS)
def test_a_cut_at_every_byte_is_complete_or_retried_as_specified(name: str, is_clean: bool) -> None:
    wire, body = STREAMS[name]
    whole = outcome(wire, [body], None)[1]
    assert whole is not None
    for at in range(len(body) + 1):
        seen = body[:at]
        found, candidate = outcome(wire, [seen], None if is_clean else Reason.CONNECTION_RESET)
        assert found == expected(wire, seen, is_clean=is_clean), (at, seen[-40:])
        if candidate is not None:
            # Whatever is complete is the whole answer; only usage may still be missing.
            assert candidate.message == whole.message, at


@pytest.mark.parametrize("name", STREAMS)
def test_the_cuts_of_reads_change_no_answer(name: str) -> None:
    wire, body = STREAMS[name]
    whole = outcome(wire, [body], None)
    for at in range(len(body)):
        assert outcome(wire, [body[:at], body[at:]], None) == whole
    assert outcome(wire, [body[at : at + 1] for at in range(len(body))], None) == whole


@pytest.mark.parametrize("encoding", ENCODERS)
@pytest.mark.parametrize("name", ["chat tool", "responses tool", "messages tool"])
def test_an_encoded_body_cut_at_every_byte_is_complete_or_retried(name: str, encoding: str) -> None:
    wire, body = STREAMS[name]
    packed = ENCODERS[encoding](body)
    whole = outcome(wire, [body], None)[1]
    assert whole is not None
    ends = set()
    for at in range(len(packed) + 1):
        decoder = decoder_for(encoding.split()[0])
        pieces = list(decoder.feed(packed[:at]))
        found, candidate = outcome(wire, pieces, None if decoder.is_whole else Reason.PREMATURE_EOF)
        assert found == expected(wire, b"".join(pieces), is_clean=decoder.is_whole), at
        ends.add(found)
        if candidate is not None:
            assert candidate.message == whole.message
    assert ends == {"complete", "retried"}


@pytest.mark.parametrize("name", STREAMS)
def test_one_wrong_byte_in_a_whole_line_is_terminal_or_skipped_but_never_a_cut(name: str) -> None:
    wire, body = STREAMS[name]
    lines = body.split(b"\n")
    first = next(at for at, line in enumerate(lines) if line.startswith(b"data: {"))
    lines[first] = lines[first][:-1] + b"]"
    one = reader(wire)
    if wire is Wire.RESPONSES:
        # Skipped; the rest of the stream is whole.
        one.feed(b"\n".join(lines))
        assert one.is_done
        return
    with pytest.raises(StreamFaultError) as raised:
        one.feed(b"\n".join(lines))
    assert raised.value.fault.fault_class is FaultClass.MALFORMED_EVENT
    assert not raised.value.fault.is_retryable
