from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox_manager.host.relay.key_guard import KeyGuard, KeySeenError

KEY = b"sk-sk-sk-0123456789"


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in pairwise(places)]


@given(
    st.lists(st.sampled_from([b"s", b"k", b"-", b"sk-", b"sk-sk-", b"sk-sk-sk-012345", b"0", b"x"])),
    st.lists(st.integers(0, 99)),
)
def test_bytes_without_the_key_pass_unchanged(words: list[bytes], cuts: list[int]) -> None:
    data = b"".join(words)
    guard = KeyGuard(KEY)
    assert b"".join(guard.feed(piece) for piece in pieces(data, cuts)) + guard.close() == data


@given(st.binary(max_size=30), st.binary(max_size=30), st.lists(st.integers(0, 99)))
def test_the_key_never_passes_however_it_is_cut(before: bytes, after: bytes, cuts: list[int]) -> None:
    guard, passed = KeyGuard(KEY), b""

    def feed_all() -> None:
        nonlocal passed
        for piece in pieces(before + KEY + after, cuts):
            passed += guard.feed(piece)

    with pytest.raises(KeySeenError) as seen:
        feed_all()
    assert passed + seen.value.clean == before


def test_only_a_tail_that_begins_the_key_is_held() -> None:
    guard = KeyGuard(KEY)
    assert guard.feed(b"hello sx") == b"hello sx"
    assert guard.feed(b"hello sk-s") == b"hello "
    assert guard.feed(b"!") == b"sk-s!"


def test_a_word_too_short_to_be_a_key_is_not_looked_for() -> None:
    assert KeyGuard(b"short").feed(b"a short word") == b"a short word"
    assert KeyGuard(None).feed(b"x") == b"x"
