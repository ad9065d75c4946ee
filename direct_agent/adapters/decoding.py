"""Undoes a response's content encoding: gzip, deflate, br, zstd, alone or one over the other.

We ask for none (`accept-encoding: identity`), yet some gateways encode all the same. Output comes in bounded pieces.
Whether the encoded body is whole matters as much as its bytes: a cut body is an interruption, a corrupt one is not.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Protocol

import brotli
import zstandard

PIECE_BYTES = 256 * 1024
# What a browser accepts too (RFC 8878, 3.1.1.1.2); a larger window is refused.
_ZSTD_WINDOW_BYTES_MAX = 8 * 1024 * 1024
# A run-length block unfolds 4 bytes into 128 KiB: a short slice bounds what one call may give.
_ZSTD_SLICE_BYTES = 64


class CorruptBodyError(Exception):
    """The body is not what its encoding says."""


class UnknownEncodingError(Exception):
    """A content encoding that is not one of ours."""


class Decoder(Protocol):
    @property
    def is_whole(self) -> bool:
        """Whether the body may end here."""
        ...

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Decoded pieces. Raises CorruptBodyError. What follows the end of the encoded body is ignored."""
        ...


def decoder_for(content_encoding: str) -> Decoder:
    """A decoder for a `Content-Encoding` header's value; raises UnknownEncodingError."""
    names = [name.strip().lower() for name in content_encoding.split(",")]
    chain: Decoder = _Identity()
    for name in reversed([name for name in names if name not in ("", "identity")]):
        match name:
            case "gzip" | "x-gzip":
                one: Decoder = _Zlib(zlib.MAX_WBITS | 16)
            case "deflate":
                one = _Deflate()
            case "br":
                one = _Brotli()
            case "zstd":
                one = _Zstd()
            case _:
                raise UnknownEncodingError(name)
        chain = one if isinstance(chain, _Identity) else _Chain(chain, one)
    return chain


class _Identity:
    is_whole = True

    def feed(self, data: bytes) -> Iterator[bytes]:
        yield data


class _Chain:
    """`outer` was applied last, so it is undone first."""

    def __init__(self, outer: Decoder, inner: Decoder) -> None:
        self._outer, self._inner = outer, inner

    @property
    def is_whole(self) -> bool:
        return self._outer.is_whole and self._inner.is_whole

    def feed(self, data: bytes) -> Iterator[bytes]:
        for piece in self._outer.feed(data):
            yield from self._inner.feed(piece)


class _Zlib:
    def __init__(self, wbits: int) -> None:
        self._decoder = zlib.decompressobj(wbits)

    @property
    def is_whole(self) -> bool:
        return self._decoder.eof

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data and not self._decoder.eof:
            try:
                piece = self._decoder.decompress(data, PIECE_BYTES)
            except zlib.error as error:
                raise CorruptBodyError(str(error)) from error
            data = self._decoder.unconsumed_tail
            if piece:
                yield piece


class _Deflate:
    """The name stands for two formats: with a zlib header (the standard), and without (some servers)."""

    def __init__(self) -> None:
        self._decoder: _Zlib | None = None
        self._head = b""

    @property
    def is_whole(self) -> bool:
        return self._decoder is not None and self._decoder.is_whole

    def feed(self, data: bytes) -> Iterator[bytes]:
        if self._decoder is None:
            self._head += data
            if len(self._head) < 2:
                return
            # RFC 1950: method 8, and the first two bytes are a multiple of 31.
            has_header = self._head[0] & 0x0F == 8 and int.from_bytes(self._head[:2], "big") % 31 == 0
            self._decoder = _Zlib(zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS)
            data = self._head
        yield from self._decoder.feed(data)


class _Brotli:
    def __init__(self) -> None:
        self._decoder = brotli.Decompressor()

    @property
    def is_whole(self) -> bool:
        return bool(self._decoder.is_finished())

    def feed(self, data: bytes) -> Iterator[bytes]:
        if self.is_whole:
            return
        try:
            piece = self._decoder.process(data, output_buffer_limit=PIECE_BYTES)
            # The library says that it accepts more while it still holds output back: only an empty piece is the end.
            while piece:
                yield piece
                piece = b"" if self.is_whole else self._decoder.process(b"", output_buffer_limit=PIECE_BYTES)
        except brotli.error as error:
            raise CorruptBodyError(str(error)) from error


class _Zstd:
    def __init__(self) -> None:
        library = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX)
        self._decoder = library.decompressobj()

    @property
    def is_whole(self) -> bool:
        return bool(self._decoder.eof)

    def feed(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), _ZSTD_SLICE_BYTES):
            if self._decoder.eof:
                return
            try:
                piece = self._decoder.decompress(data[start : start + _ZSTD_SLICE_BYTES])
            except zstandard.ZstdError as error:
                raise CorruptBodyError(str(error)) from error
            if piece:
                yield piece
