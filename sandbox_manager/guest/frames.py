"""Frames on the control socket: one JSON header and raw bytes.

Layout, all integers big-endian u32: `total` (bytes that follow), `header_length`, header (UTF-8 JSON object), payload
(the rest). The host has a codec of its own; both pass `tests/vectors/guest_frames.json`.
"""

import json
import struct
from typing import Any, NamedTuple

MAX_PAYLOAD_BYTES = 1 << 20
MAX_HEADER_BYTES = 1 << 20
_LENGTH = struct.Struct(">I")
_LENGTHS = struct.Struct(">II")

Header = dict[str, Any]


class FrameError(ValueError):
    """The peer sent something that is not a frame; the connection cannot go on."""


class Frame(NamedTuple):
    """One decoded frame."""

    header: Header
    payload: bytes


def encode(header: Header, payload: bytes = b"") -> bytes:
    """Returns the frame's bytes; raises FrameError if a part is over its bound."""
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    if len(text) > MAX_HEADER_BYTES:
        raise FrameError(f"header of {len(text)} bytes, at most {MAX_HEADER_BYTES} are allowed")
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise FrameError(f"payload of {len(payload)} bytes, at most {MAX_PAYLOAD_BYTES} are allowed")
    return b"".join((_LENGTHS.pack(_LENGTH.size + len(text) + len(payload), len(text)), text, payload))


class FrameDecoder:
    """Cuts a byte stream into frames; holds at most one incomplete frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Takes the next bytes of the stream and returns the frames that are complete by now."""
        self._buffer += data
        frames: list[Frame] = []
        at = 0
        while len(self._buffer) - at >= _LENGTHS.size:
            total, header_length = _LENGTHS.unpack_from(self._buffer, at)
            if header_length > MAX_HEADER_BYTES or total < _LENGTH.size + header_length:
                raise FrameError(f"a frame with total {total} and header length {header_length}")
            if total - _LENGTH.size - header_length > MAX_PAYLOAD_BYTES:
                raise FrameError(f"a frame of {total} bytes, its payload is over {MAX_PAYLOAD_BYTES}")
            end = at + _LENGTH.size + total
            if len(self._buffer) < end:
                break
            start = at + _LENGTHS.size
            frames.append(
                Frame(
                    _parse(bytes(self._buffer[start : start + header_length])),
                    bytes(self._buffer[start + header_length : end]),
                )
            )
            at = end
        del self._buffer[:at]
        return frames


def _parse(text: bytes) -> Header:
    try:
        header = json.loads(text)
    except ValueError as error:
        raise FrameError("a frame's header is not JSON") from error
    if not isinstance(header, dict):
        raise FrameError("a frame's header is not a JSON object")
    return header
