"""Undoes a response's content encoding for the relay's reading copy: gzip, deflate, br, zstd.

The pinned CLI asks for all four (`Accept-Encoding: gzip, deflate, br, zstd`, observed), and headers pass as they are. Output comes
in bounded pieces: a small body must not unfold into memory at once.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import brotli
import zstandard

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

PIECE_BYTES = 256 * 1024
# What a browser accepts too (RFC 8878, 3.1.1.1.2); a larger window is refused.
ZSTD_WINDOW_BYTES_MAX = 8 * 1024 * 1024

Take = Callable[[bytes], None]


class DecodingError(Exception):
    """The body is not what its encoding says, or goes on after its end."""


class Decoder(Protocol):
    """`feed` encoded bytes; decoded pieces go to the taker it was made with. `close` when the body is over."""

    def feed(self, data: bytes) -> None:
        """Raises DecodingError."""

    def close(self) -> None:
        """Raises DecodingError when the encoded body is not whole."""


def decoder_for(encoding: str, take: Take) -> Decoder | None:
    """A decoder for one content encoding in lower case, or None when it is not known."""
    match encoding:
        case "identity" | "":
            return _Identity(take)
        case "gzip" | "x-gzip":
            return _Zlib(take, zlib.MAX_WBITS | 16)
        case "deflate":
            return _Zlib(take, zlib.MAX_WBITS)
        case "br":
            return _Brotli(take)
        case "zstd":
            return _Zstd(take)
        case _:
            return None


class _Identity:
    def __init__(self, take: Take) -> None:
        self._take = take

    def feed(self, data: bytes) -> None:
        self._take(data)

    def close(self) -> None:
        return


class _Zlib:
    def __init__(self, take: Take, wbits: int) -> None:
        self._take = take
        self._decoder = zlib.decompressobj(wbits)

    def feed(self, data: bytes) -> None:
        rest = data
        while rest:
            if self._decoder.eof:
                # A second member: clients differ in whether they read it.
                raise DecodingError("bytes after the end of the encoded body")
            try:
                piece = self._decoder.decompress(rest, PIECE_BYTES)
            except zlib.error as error:
                raise DecodingError(str(error)) from error
            rest = self._decoder.unconsumed_tail or self._decoder.unused_data
            self._take(piece)

    def close(self) -> None:
        if not self._decoder.eof:
            raise DecodingError("the encoded body is not whole")


class _Brotli:
    def __init__(self, take: Take) -> None:
        self._take = take
        self._decoder = brotli.Decompressor()

    def feed(self, data: bytes) -> None:
        try:
            piece = self._decoder.process(data, output_buffer_limit=PIECE_BYTES)
            # The library says that it accepts more while it still holds output back: only an empty piece is the end of it.
            while piece:
                self._take(piece)
                piece = (
                    b"" if self._decoder.is_finished() else self._decoder.process(b"", output_buffer_limit=PIECE_BYTES)
                )
        except brotli.error as error:
            raise DecodingError(str(error)) from error

    def close(self) -> None:
        if not self._decoder.is_finished():
            raise DecodingError("the encoded body is not whole")


class _Sink(io.BytesIO):
    """What the zstd library writes into; it keeps nothing."""

    def __init__(self, take: Take) -> None:
        super().__init__()
        self._take = take

    def write(self, data: ReadableBuffer, /) -> int:
        piece = bytes(data)
        self._take(piece)
        return len(piece)


class _Zstd:
    def __init__(self, take: Take) -> None:
        library = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX)
        self._writer = library.stream_writer(_Sink(take), write_size=PIECE_BYTES, closefd=False)

    def feed(self, data: bytes) -> None:
        try:
            self._writer.write(data)
        except zstandard.ZstdError as error:
            raise DecodingError(str(error)) from error

    def close(self) -> None:
        # The library does not say whether its frame is whole; the protocol's own end does.
        return
