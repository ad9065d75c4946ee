"""A cut document and a malformed one are told apart, at every byte."""

from __future__ import annotations

import json
from typing import Any

import jiter
import pytest
from hypothesis import given
from hypothesis import strategies as st

from direct_agent.providers.event_json import (
    CutEventError,
    MalformedEventError,
    event_value,
    is_done,
    is_proper_prefix,
    whole_text,
)
from direct_agent.providers.sse_lines import DataLine

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    "cut",
    [b'{"a":tru', b'{"a":"\\u12', b'{"a":"\xc3', b'{"a":1e', b"{", b'{"a":-', b'{"a":"\\ud83dx', b'{"a":nu', b'"abc'],
)
def test_jiter_still_says_eof_of_a_prefix(cut: bytes) -> None:
    assert is_proper_prefix(cut)


@pytest.mark.parametrize(
    ("payload", "words"),
    [(b'{"a":1}}', "trailing characters"), (b'{"a":}', "expected value"), (b'{"a":nux', "expected ident")],
)
def test_jiter_still_names_what_is_malformed(payload: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        jiter.from_json(payload)
    assert not is_proper_prefix(payload)


@given(st.dictionaries(st.text(max_size=6), VALUES, min_size=1, max_size=4), st.booleans(), st.data())
def test_every_proper_prefix_of_a_document_is_a_cut(
    value: dict[str, Any], ascii_only: bool, data: st.DataObject
) -> None:
    raw = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "replace")
    at = data.draw(st.integers(1, len(raw) - 1))
    with pytest.raises(CutEventError):
        event_value(DataLine(raw[:at], is_whole=False))
    with pytest.raises(MalformedEventError):
        event_value(DataLine(raw[:at], is_whole=True))
    assert event_value(DataLine(raw, is_whole=False)) == json.loads(raw)


@pytest.mark.parametrize(
    "rubbish",
    [
        b'{"a":}',
        b'{"a":1}}',
        b"{,",
        b'{"a":nux',
        b'{"a":01}',
        b'{"a":\xff',
        b'{"a":"\xff\xff',
        b'{"a":NaN',
        b'{"a":"\x01',
        b"<html>",
    ],
)
@pytest.mark.parametrize("is_whole", [True, False])
def test_rubbish_is_malformed_with_and_without_a_line_end(rubbish: bytes, is_whole: bool) -> None:
    with pytest.raises(MalformedEventError):
        event_value(DataLine(rubbish, is_whole))


@pytest.mark.parametrize("value", [b"[]", b"1", b'"text"', b"null"])
def test_an_event_that_is_no_object_is_malformed(value: bytes) -> None:
    with pytest.raises(MalformedEventError):
        event_value(DataLine(value, is_whole=True))


@pytest.mark.parametrize("at", range(1, 6))
def test_a_proper_prefix_of_done_without_line_end_is_a_cut(at: int) -> None:
    with pytest.raises(CutEventError):
        is_done(DataLine(b"[DONE]"[:at], is_whole=False))
    assert not is_done(DataLine(b"[DONE]"[:at], is_whole=True))


def test_done_is_done_with_and_without_a_line_end() -> None:
    assert is_done(DataLine(b"[DONE]", is_whole=True))
    assert is_done(DataLine(b"[DONE]", is_whole=False))


def test_halves_of_a_surrogate_pair_in_two_events_are_joined() -> None:
    first = event_value(DataLine(b'{"d":"\\ud83d"}', is_whole=True))["d"]
    second = event_value(DataLine(b'{"d":"\\ude00"}', is_whole=True))["d"]
    assert whole_text(first + second) == "\U0001f600"
    assert whole_text(first) == "\N{REPLACEMENT CHARACTER}"
