from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_manager.host.relay.sse import EventTooLargeError, SsePushParser


def test_an_event_counts_only_with_its_blank_line() -> None:
    parser = SsePushParser()
    assert parser.feed(b"data: one\n") == []
    assert parser.feed(b"\n") == [b"one"]
    assert parser.feed(b"data: cut") == []


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_all_line_ends_are_known_and_others_are_text(end: bytes) -> None:
    stream = end.join(
        [b": comment", b"event: x", "data: a\u2028b".encode(), b"data:c", b"id: 1", b"", b"data: d", b"", b""]
    )
    # A lone CR at the very end may be half of a CR LF; the next byte tells.
    assert SsePushParser().feed(stream + b":") == ["a\u2028b\nc".encode(), b"d"]


def test_a_byte_order_mark_is_no_part_of_the_first_name() -> None:
    assert SsePushParser().feed(b"\xef\xbb\xbfdata: x\n\n") == [b"x"]


def test_an_event_beyond_the_bound_is_an_error() -> None:
    with pytest.raises(EventTooLargeError):
        SsePushParser(event_bytes_max=100).feed(b"data: 1234567890\n" * 20)
    with pytest.raises(EventTooLargeError):
        SsePushParser(event_bytes_max=100).feed(b"x" * 101)


@given(
    st.lists(st.sampled_from([b"data: a", b"data: ", "data: ü".encode(), b"event: e", b"", b": c", b"data"])),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.lists(st.integers(0, 200)),
)
def test_where_the_bytes_are_cut_does_not_matter(lines: list[bytes], end: bytes, cuts: list[int]) -> None:
    stream = end.join([*lines, b"", b""]) + b":"
    places = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    parser = SsePushParser()
    pieces = [event for a, b in pairwise(places) for event in parser.feed(stream[a:b])]
    assert pieces == SsePushParser().feed(stream)
