"""Encoded bodies: whole, cut and corrupt are three things, in bounded pieces."""

from __future__ import annotations

import gzip
import zlib

import brotli
import pytest
import zstandard

from direct_agent.adapters.decoding import PIECE_BYTES, CorruptBodyError, UnknownEncodingError, decoder_for

BODY = b"data: {}\n\n" * 50
PACKED = {
    "gzip": gzip.compress(BODY),
    "deflate": zlib.compress(BODY),
    "br": brotli.compress(BODY),
    "zstd": zstandard.ZstdCompressor().compress(BODY),
    "gzip, br": brotli.compress(gzip.compress(BODY)),
    "identity": BODY,
    "": BODY,
}


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_the_body_comes_back_whole(name: str, size: int) -> None:
    decoder = decoder_for(name)
    packed = PACKED[name]
    out = b"".join(piece for at in range(0, len(packed), size) for piece in decoder.feed(packed[at : at + size]))
    assert out == BODY
    assert decoder.is_whole


@pytest.mark.parametrize("name", ["gzip", "deflate", "br", "zstd"])
def test_a_cut_body_is_not_whole_and_not_corrupt(name: str) -> None:
    decoder = decoder_for(name)
    list(decoder.feed(PACKED[name][:-1]))
    assert not decoder.is_whole


@pytest.mark.parametrize("name", ["gzip", "deflate", "br", "zstd"])
def test_other_bytes_are_corrupt(name: str) -> None:
    decoder = decoder_for(name)
    with pytest.raises(CorruptBodyError):
        list(decoder.feed(b"\xff\xfe not that encoding" * 50))


@pytest.mark.parametrize("name", ["gzip", "deflate", "br", "zstd"])
def test_a_small_body_does_not_unfold_at_once(name: str) -> None:
    big = b"\0" * (8 * PIECE_BYTES)
    pack = {
        "gzip": gzip.compress,
        "deflate": zlib.compress,
        "br": brotli.compress,
        "zstd": zstandard.ZstdCompressor().compress,
    }
    sizes = [len(piece) for piece in decoder_for(name).feed(pack[name](big))]
    assert sum(sizes) == len(big)
    assert max(sizes) <= 8 * PIECE_BYTES if name == "zstd" else max(sizes) <= 2 * PIECE_BYTES


def test_an_unknown_encoding_is_refused() -> None:
    with pytest.raises(UnknownEncodingError):
        decoder_for("gzip, rot13")
