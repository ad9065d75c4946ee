"""The same lines come out however the bytes were cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from direct_agent.providers.sse_lines import DataLine, LineParser, OverLongLineError

PIECES = st.lists(
    st.sampled_from(
        [b"data: {}", b"data:{}", b": comment", b"event: x", b"", b"\r", b"\n", b"\r\n", b"data:", "é".encode(), b"dat"]
    ),
    max_size=12,
)


def read(chunks: list[bytes], limit: int = 1000) -> tuple[list[DataLine], DataLine | None]:
    parser = LineParser(limit)
    found = [line for chunk in chunks for line in parser.feed(chunk)]
    return found, parser.close()


@given(PIECES, st.integers(1, 7))
def test_cuts_change_nothing(pieces: list[bytes], size: int) -> None:
    body = b"".join(pieces)
    chunks = [body[at : at + size] for at in range(0, len(body), size)]
    assert read(chunks) == read([body])


def test_only_data_lines_come_out_and_a_cr_is_not_part_of_one() -> None:
    lines, left = read([b': hi\r\nevent: message\r\ndata: {"a":1}\r\n\r\ndata:{}\nid: 3\n'])
    assert lines == [DataLine(b'{"a":1}', True), DataLine(b"{}", True)]
    assert left is None


def test_the_last_line_without_an_end_says_so() -> None:
    assert read([b'data: {"a"']) == ([], DataLine(b'{"a"', False))
    assert read([b"dat"]) == ([], None)


def test_a_byte_order_mark_hides_nothing() -> None:
    assert read([b"\xef\xbb\xbfdata: {}\n"])[0] == [DataLine(b"{}", True)]


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_over_the_limit_is_refused_whole_or_not(end: bytes) -> None:
    with pytest.raises(OverLongLineError):
        read([b"data: " + b"x" * 1000 + end])


def test_every_whole_line_counts_as_a_sign_of_life() -> None:
    parser = LineParser(100)
    parser.feed(b": ping\n\ndata: {}\nrest")
    assert parser.lines == 3
