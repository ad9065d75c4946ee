"""The host's codec of the control socket's frames.

Written apart from the supervisor's; both pass `tests/vectors/guest_frames.json`. Layout, big-endian u32: `total`
(bytes that follow), `header_length`, header (UTF-8 JSON object), payload (the rest).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

Json = dict[str, object]

PAYLOAD_BYTES_MAX = 1024 * 1024
HEADER_BYTES_MAX = 1024 * 1024
_PREFIX_BYTES = 8


class FrameBrokenError(ValueError):
    """The bytes are no frame; the connection cannot be read any further."""


@dataclass(frozen=True, slots=True)
class GuestFrame:
    """One frame as it came."""

    header: Json
    payload: bytes = field(repr=False)


def pack(header: Json, payload: bytes = b"") -> bytes:
    """A frame's bytes. Raises FrameBrokenError when a part is over its bound."""
    head = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    if len(head) > HEADER_BYTES_MAX or len(payload) > PAYLOAD_BYTES_MAX:
        raise FrameBrokenError(f"header {len(head)} and payload {len(payload)} bytes: over the bound of a frame")
    return (4 + len(head) + len(payload)).to_bytes(4) + len(head).to_bytes(4) + head + payload


class Unpacker:
    """Collects bytes in any cuts and gives whole frames."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[GuestFrame]:
        """The frames that are whole now. Raises FrameBrokenError."""
        self._held.extend(data)
        frames: list[GuestFrame] = []
        used = 0
        while len(self._held) - used >= _PREFIX_BYTES:
            total = int.from_bytes(self._held[used : used + 4])
            head_length = int.from_bytes(self._held[used + 4 : used + 8])
            body = used + _PREFIX_BYTES
            payload_length = total - 4 - head_length
            if head_length > HEADER_BYTES_MAX or not 0 <= payload_length <= PAYLOAD_BYTES_MAX:
                raise FrameBrokenError(f"a frame claims {head_length} bytes of header in {total}")
            if len(self._held) < body + head_length + payload_length:
                break
            head = bytes(self._held[body : body + head_length])
            payload = bytes(self._held[body + head_length : body + head_length + payload_length])
            frames.append(GuestFrame(_object(head), payload))
            used = body + head_length + payload_length
        del self._held[:used]
        return frames


def _object(head: bytes) -> Json:
    try:
        header = json.loads(head)
    except ValueError as error:
        raise FrameBrokenError("a frame's header is not JSON") from error
    if not isinstance(header, dict):
        raise FrameBrokenError("a frame's header is not a JSON object")
    return header
