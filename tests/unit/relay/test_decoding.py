from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

import brotli
import pytest
import zstandard

from sandbox_manager.host.relay.decoding import PIECE_BYTES, DecodingError, decoder_for

PACK: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": lambda data: zstandard.ZstdCompressor(level=19).compress(data),
    "identity": lambda data: data,
}


@pytest.mark.parametrize("encoding", [name for name in PACK if name != "identity"])
def test_a_small_body_that_unfolds_comes_in_bounded_pieces(encoding: str) -> None:
    packed = PACK[encoding](bytes(32 * 1024 * 1024))
    assert len(packed) < 64 * 1024
    sizes: list[int] = []
    decoder = decoder_for(encoding, lambda piece: sizes.append(len(piece)))
    assert decoder is not None
    decoder.feed(packed)
    decoder.close()
    assert sum(sizes) == 32 * 1024 * 1024
    assert max(sizes) <= 2 * PIECE_BYTES


@pytest.mark.parametrize("step", [7, 10_000_000])
@pytest.mark.parametrize("encoding", list(PACK))
def test_a_body_of_many_pieces_is_whole_at_its_end(encoding: str, step: int) -> None:
    """With brotli the library once kept output back and said that it took more."""
    plain = b"x" * 2_000_000
    packed = PACK[encoding](plain)
    got = bytearray()
    decoder = decoder_for(encoding, got.extend)
    assert decoder is not None
    for at in range(0, len(packed), step):
        decoder.feed(packed[at : at + step])
    decoder.close()
    assert bytes(got) == plain


@pytest.mark.parametrize("encoding", list(PACK))
def test_pieces_of_any_size_give_the_same_bytes(encoding: str) -> None:
    plain = bytes(range(256)) * 40
    packed = PACK[encoding](plain)
    for size in (1, 2, 7, 1000):
        got = bytearray()
        decoder = decoder_for(encoding, got.extend)
        assert decoder is not None
        for at in range(0, len(packed), size):
            decoder.feed(packed[at : at + size])
        decoder.close()
        assert bytes(got) == plain


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br"])
def test_a_body_without_its_end_is_an_error(encoding: str) -> None:
    decoder = decoder_for(encoding, lambda piece: None)
    assert decoder is not None
    decoder.feed(PACK[encoding](b"hello")[:-2])
    with pytest.raises(DecodingError):
        decoder.close()


def test_a_taker_that_has_enough_stops_the_unfolding() -> None:
    class EnoughError(Exception):
        pass

    def take(piece: bytes) -> None:
        raise EnoughError

    for encoding, pack in PACK.items():
        decoder = decoder_for(encoding, take)
        assert decoder is not None
        with pytest.raises(EnoughError):
            decoder.feed(pack(bytes(1024 * 1024)))


def test_an_encoding_nobody_knows_has_no_decoder() -> None:
    assert decoder_for("compress", lambda piece: None) is None
