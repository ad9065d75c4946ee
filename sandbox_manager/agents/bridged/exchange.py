"""One HTTP exchange of a bridge with its server, from the bytes of both ways as the supervisor kept them. Pure.

One connection carries one exchange. The bytes come in any cuts; what is no HTTP ends the exchange as `is_broken`, and nothing of it counts.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

BODY_BYTES_MAX = 64 << 20
_HEAD_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Request:
    """What the bridge asked. `body` is its JSON, None where there is none; it is whole once `Exchange.request` is not None."""

    method: str
    path: str  # without its query
    query: str
    body: Any


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer of the server. `digest` is sha256 hex of the body as received."""

    status: int
    body: Any
    digest: str


class Exchange:
    """One connection. `request` and `response` are there when each is whole; a stream of events never has a response."""

    def __init__(self) -> None:
        self.request: Request | None = None
        self.response: Response | None = None
        self.is_broken = False
        self._asked = bytearray()
        self._received = bytearray()
        self._body = bytearray()
        self._status: int | None = None
        self._length: int | None = None  # of the body; None: in chunks, or to the end
        self._is_chunked = False
        self._is_stream = False
        self._chunk_left = 0
        self._chunks_over = False
        self._data: list[bytes] = []

    def from_bridge(self, data: bytes) -> None:
        """The bridge's bytes."""
        if self.request is not None or self.is_broken:
            return
        self._asked += data
        head, end, body = bytes(self._asked).partition(_HEAD_END)
        if not end:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        words = first.split(" ")
        length = _header(lines, "content-length") or "0"
        if len(words) != 3 or not length.isdecimal():
            self.is_broken = True
            return
        if len(body) < int(length):
            return
        path, _, query = words[1].partition("?")
        self.request = Request(words[0], path, query, _json(body))
        self._asked.clear()

    def from_server(self, data: bytes) -> list[dict[str, Any]]:
        """The server's bytes; gives the events that they complete, where the answer is a stream of events."""
        if self.is_broken or self.response is not None:
            return []
        self._received += data
        if self._status is None and not self._head():
            return []
        self._take_body()
        if len(self._body) > BODY_BYTES_MAX:
            self.is_broken = True
            return []
        if self._is_stream and self._status == 200:
            return self._events()
        if (self._length is not None and len(self._body) >= self._length) or (self._is_chunked and self._chunks_over):
            self._whole()
        return []

    def closed(self) -> None:
        """No more bytes. A body without a length ends here."""
        is_open = self._status is not None and self.response is None and not self._is_stream
        if is_open and self._length is None and not self._is_chunked and not self.is_broken:
            self._whole()

    # --- private -------------------------------------------------------------------------------------------------------------------
    def _head(self) -> bool:
        head, end, rest = bytes(self._received).partition(_HEAD_END)
        if not end:
            return False
        first, *lines = head.decode("latin-1").split("\r\n")
        words = first.split(" ", 2)
        length = _header(lines, "content-length")
        if len(words) < 2 or not words[1].isdecimal() or (length is not None and not length.isdecimal()):
            self.is_broken = True
            return False
        self._status = int(words[1])
        self._is_chunked = (_header(lines, "transfer-encoding") or "").lower() == "chunked"
        self._is_stream = (_header(lines, "content-type") or "").startswith("text/event-stream")
        self._length = 0 if self._status == 204 else int(length) if length is not None else None
        self._received = bytearray(rest)
        return True

    def _take_body(self) -> None:
        if not self._is_chunked:
            self._body += self._received
            self._received.clear()
            return
        at = 0
        while not self._chunks_over:
            if self._chunk_left > 0:
                piece = self._received[at : at + self._chunk_left]
                if not piece:
                    break
                self._body += piece
                at += len(piece)
                self._chunk_left -= len(piece)
                continue
            end = self._received.find(b"\r\n", at)
            if end < 0:
                break
            line = bytes(self._received[at:end]).partition(b";")[0]
            at = end + 2
            if not line:
                continue  # the line end after a chunk
            try:
                self._chunk_left = int(line, 16)
            except ValueError:
                self.is_broken = True
                break
            self._chunks_over = self._chunk_left == 0
        del self._received[:at]

    def _whole(self) -> None:
        body = bytes(self._body)
        self._body.clear()
        self.response = Response(self._status or 0, _json(body), hashlib.sha256(body).hexdigest())

    def _events(self) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        *lines, rest = bytes(self._body).split(b"\n")
        self._body = bytearray(rest)
        for line in lines:
            stripped = line.removesuffix(b"\r")
            if stripped.startswith(b"data:"):
                self._data.append(stripped[5:].removeprefix(b" "))
            elif not stripped and self._data:
                event = _json(b"\n".join(self._data))
                self._data = []
                if isinstance(event, dict):
                    events.append(event)
        return events


def _header(lines: list[str], name: str) -> str | None:
    for line in lines:
        found, colon, value = line.partition(":")
        if colon and found.strip().lower() == name:
            return value.strip()
    return None


def _json(body: bytes) -> Any:
    if not body:
        return None
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
