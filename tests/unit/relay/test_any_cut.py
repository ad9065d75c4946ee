"""The observers of the three protocols, however the bytes are cut, whatever their encoding, and wherever the stream breaks off."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from itertools import pairwise

import brotli
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox_manager.host.relay.activation import ActivationLedger
from sandbox_manager.host.relay.answer import text_sha256
from sandbox_manager.host.relay.reading import ResponseReader
from sandbox_manager.host.relay.upstream import ModelProtocol

PACK: dict[str, Callable[[bytes], bytes]] = {
    "identity": lambda data: data,
    "gzip": lambda data: gzip.compress(data, mtime=0),
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": lambda data: zstandard.ZstdCompressor().compress(data),
}
Events = list[bytes]


def named(**event: object) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def unnamed(event: object) -> bytes:
    return f"data: {json.dumps(event, ensure_ascii=False)}\n\n".encode("utf-8", "surrogatepass")


def messages_stream(texts: list[list[str]]) -> Events:
    events = [named(type="message_start", message={"id": "m", "model": "x", "usage": {}}), named(type="ping")]
    for index, pieces in enumerate(texts):
        events.append(named(type="content_block_start", index=index, content_block={"type": "text", "text": ""}))
        for piece in pieces:
            delta = {"type": "text_delta", "text": piece}
            events.append(named(type="content_block_delta", index=index, delta=delta))
        events.append(named(type="content_block_stop", index=index))
    return [*events, named(type="message_delta", delta={"stop_reason": "end_turn"}), named(type="message_stop")]


def chat_stream(texts: list[list[str]]) -> Events:
    """One text a choice, the choices one after the other."""
    events = [
        unnamed({"id": "m", "model": "x", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    ]
    for index, pieces in enumerate(texts):
        events += [unnamed({"id": "m", "choices": [{"index": index, "delta": {"content": piece}}]}) for piece in pieces]
        events.append(unnamed({"id": "m", "choices": [{"index": index, "delta": {}, "finish_reason": "stop"}]}))
    return [*events, unnamed({"choices": [], "usage": {"prompt_tokens": 3}}), b"data: [DONE]\n\n"]


def responses_stream(texts: list[list[str]]) -> Events:
    events = [named(type="response.created", response={"id": "m", "model": "x"})]
    output = []
    for index, pieces in enumerate(texts):
        text = "".join(pieces)
        item = {"type": "message", "content": [{"type": "output_text", "text": text}]}
        output.append(item)
        events.append(named(type="response.output_item.added", output_index=index, item={"type": "message"}))
        at = {"output_index": index, "content_index": 0}
        events += [named(type="response.output_text.delta", **at, delta=piece) for piece in pieces]
        events.append(named(type="response.output_text.done", **at, text=text))
        events.append(named(type="response.output_item.done", output_index=index, item=item))
    ended = {"id": "m", "model": "x", "status": "completed", "output": output}
    return [*events, named(type="response.completed", response=ended)]


STREAMS: dict[ModelProtocol, Callable[[list[list[str]]], Events]] = {
    ModelProtocol.MESSAGES: messages_stream,
    ModelProtocol.CHAT: chat_stream,
    ModelProtocol.RESPONSES: responses_stream,
}
protocols = st.sampled_from(list(STREAMS))
# Texts are not empty: what an empty one is differs by protocol. Surrogates may be shared by two pieces only as whole characters here.
texts = st.lists(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=4), max_size=4)
cuts = st.lists(st.integers(0, 1 << 16), max_size=12)


def read(
    protocol: ModelProtocol, body: bytes, places: list[int], encoding: str = "identity", *, is_whole: bool = True
) -> tuple[tuple[str, ...], int, ResponseReader]:
    ledger = ActivationLedger("a", None, outside=0)
    headers = [(b"content-type", b"text/event-stream"), (b"content-encoding", encoding.encode())]
    reader = ResponseReader(protocol, 200, headers, ledger)
    bounds = sorted({0, len(body), *(place % (len(body) + 1) for place in places)})
    for a, b in pairwise(bounds):
        reader.feed(body[a:b])
    if is_whole:
        reader.close()
    reader.cut()
    seen = ledger.observe()
    return seen.delivered_text_sha256, seen.unread, reader


def digests(told: list[list[str]]) -> tuple[str, ...]:
    return tuple(text_sha256("".join(pieces)) for pieces in told)


@given(protocols, texts, cuts, st.sampled_from(list(PACK)))
@settings(max_examples=300, deadline=None)
def test_the_texts_are_the_same_however_the_bytes_are_cut(
    protocol: ModelProtocol, told: list[list[str]], places: list[int], encoding: str
) -> None:
    body = PACK[encoding](b"".join(STREAMS[protocol](told)))
    found, unread, reader = read(protocol, body, places, encoding)
    assert (found, unread) == (digests(told), 0)
    assert reader.facts.is_ended
    assert (reader.facts.message_id, reader.facts.model) == ("m", "x")


@given(protocols, texts, cuts, st.integers(0, 1 << 16))
@settings(max_examples=300, deadline=None)
def test_of_a_stream_that_breaks_off_only_what_came_counts(
    protocol: ModelProtocol, told: list[list[str]], places: list[int], end: int
) -> None:
    whole = b"".join(STREAMS[protocol](told))
    body = whole[: end % (len(whole) + 1)]
    found, unread, _ = read(protocol, body, places, is_whole=False)
    assert unread == 0
    expected = digests(told)
    complete = found if found == expected[: len(found)] else found[:-1]
    assert complete == expected[: len(complete)], "a text that was not said, or not in its order"
    if protocol is not ModelProtocol.CHAT:
        assert found == complete, "half a text counts in Chat Completions alone"
    elif found != complete:
        # It is what some of the pieces come to.
        pieces = told[len(complete)]
        assert found[-1] in {text_sha256("".join(pieces[: n + 1])) for n in range(len(pieces))}


@given(protocols, st.binary(max_size=300), cuts)
@settings(max_examples=200, deadline=None)
def test_no_bytes_at_all_break_a_reader(protocol: ModelProtocol, noise: bytes, places: list[int]) -> None:
    found, _, _ = read(protocol, b"data: " + noise + b"\n\n" + noise, places)
    assert found == ()


@pytest.mark.parametrize("protocol", STREAMS)
def test_a_surrogate_pair_shared_by_two_pieces_is_one_character(protocol: ModelProtocol) -> None:
    found, unread, _ = read(protocol, b"".join(STREAMS[protocol]([["a\ud83d", "\ude00b"]])), [])
    assert unread == 0
    if protocol is not ModelProtocol.CHAT:  # the stream above spells it as raw bytes there, which no JSON reader joins
        assert found == (text_sha256("a\U0001f600b"),)


def test_a_text_that_is_told_anew_in_another_form_counts_in_both() -> None:
    item = {"type": "message", "content": [{"type": "output_text", "text": "mended"}]}
    body = b"".join(
        [
            named(type="response.output_text.done", output_index=0, content_index=0, text="broken"),
            named(type="response.output_item.done", output_index=0, item=item),
            named(type="response.completed", response={"id": "m", "status": "completed", "output": [item]}),
        ]
    )
    assert read(ModelProtocol.RESPONSES, body, [])[0] == (text_sha256("broken"), text_sha256("mended"))


def test_a_text_that_only_the_end_tells_counts() -> None:
    item = {"type": "message", "content": [{"type": "refusal", "refusal": "no"}]}
    body = named(type="response.completed", response={"id": "m", "status": "completed", "output": [item]})
    assert read(ModelProtocol.RESPONSES, body, [])[0] == (text_sha256("no"),)


def test_a_refusal_of_the_model_is_a_text_beside_the_content() -> None:
    events = [unnamed({"choices": [{"index": 0, "delta": {"refusal": piece}}]}) for piece in ("I ", "may not")]
    assert read(ModelProtocol.CHAT, b"".join(events), [])[0] == (text_sha256("I may not"),)


@pytest.mark.parametrize(
    ("protocol", "usage", "counts"),
    [
        (
            ModelProtocol.CHAT,
            {"prompt_tokens": 20, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 8}},
            {"input_tokens": 12, "output_tokens": 5, "cache_read_input_tokens": 8},
        ),
        (
            ModelProtocol.RESPONSES,
            {"input_tokens": 20, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 0}},
            {"input_tokens": 20, "output_tokens": 5, "cache_read_input_tokens": 0},
        ),
        (ModelProtocol.RESPONSES, {"output_tokens": 5}, {"output_tokens": 5}),
        (ModelProtocol.CHAT, None, {}),
    ],
)
def test_usage_is_told_under_one_set_of_names_and_unknown_counts_are_left_out(
    protocol: ModelProtocol, usage: object, counts: dict[str, int]
) -> None:
    response = {"id": "m", "status": "completed", "output": [], "usage": usage}
    chunk = unnamed({"choices": [], "usage": usage})
    body = chunk if protocol is ModelProtocol.CHAT else named(type="response.completed", response=response)
    assert read(protocol, body, [])[2].facts.usage == counts
