from __future__ import annotations

import json

import pytest

from sandbox_manager.host.relay.headers import credentials, request_headers, response_headers
from sandbox_manager.host.relay.request_peek import HEAD_BYTES, RequestPeek


def test_chunks_win_over_a_length_that_is_also_given() -> None:
    received = [(b"Content-Length", b"5"), (b"Transfer-Encoding", b"chunked")]
    assert request_headers(received, b"h", None) == [(b"host", b"h"), (b"transfer-encoding", b"chunked")]
    assert response_headers(received) == []


def test_a_connection_header_cannot_hide_the_length() -> None:
    received = [(b"Connection", b"close, Content-Length, X-A"), (b"Content-Length", b"5"), (b"X-A", b"1")]
    assert request_headers(received, b"h", (b"x-api-key", b"k")) == [
        (b"host", b"h"),
        (b"Content-Length", b"5"),
        (b"x-api-key", b"k"),
    ]


def test_every_credential_presented_is_seen() -> None:
    received = [(b"X-Api-Key", b" a "), (b"Authorization", b"bearer  b"), (b"authorization", b"Basic c")]
    assert credentials(received) == [b"a", b"b", b"Basic c"]


@pytest.mark.parametrize(
    ("body", "model"),
    [
        (b'{"model":"m1","messages":[]}', "m1"),
        (b' {\n "max_tokens" : 5 , "metadata":{"model":"no"}, "model" : "m\\u00e9" }', "mé"),
        (b'{"messages":[{"model":"no"}],"model":"m2"}', "m2"),
        (b'{"model":5}', None),
        (b'{"messages":"' + b"x" * HEAD_BYTES + b'","model":"beyond the head"}', None),
        (b'{"model":"m3","messages":"' + b"x" * HEAD_BYTES + b'"}', "m3"),
        (b"not json", None),
        (b"[]", None),
        (b"", None),
        (b'{"a":' + b"[" * 5000, None),
        (b"\xff\xfe", None),
    ],
)
def test_the_model_is_read_from_the_top_level_or_unknown(body: bytes, model: str | None) -> None:
    peek = RequestPeek()
    for at in range(0, len(body), 1000):
        peek.feed(body[at : at + 1000])
    assert peek.model() == model


def test_reading_the_model_leaves_json_to_the_upstream() -> None:
    peek = RequestPeek()
    peek.feed(json.dumps({"model": "m", "messages": []}).encode() + b"} trailing rubbish")
    assert peek.model() == "m"
