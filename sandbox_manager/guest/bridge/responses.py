"""Reads one HTTP/1.1 response from bytes in any cuts. Pure. One connection carries one exchange.

Bodies: by length, in chunks, or to the end of the connection. What is none of these raises ResponseError.
"""

from enum import Enum

HEAD_BYTES_MAX = 64 << 10
_LINE_BYTES_MAX = 8 << 10


class ResponseError(ValueError):
    """The server's answer is no HTTP response, or it broke off in the middle."""


class _Body(Enum):
    LENGTH = "LENGTH"
    CHUNKS = "CHUNKS"
    TO_END = "TO_END"


class ResponseReader:
    """One response. `status` and `headers` (lower-case names) are there once `has_head`."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.has_head = False
        self.is_complete = False
        self._buffer = bytearray()
        self._kind = _Body.TO_END
        self._left = 0  # bytes of the body, or of the chunk, still to come
        self._in_trailer = False

    def feed(self, data: bytes) -> bytes:
        """Takes the next bytes; gives what they add to the body."""
        self._buffer += data
        if not self.has_head and not self._read_head():
            return b""
        body = bytearray()
        while not self.is_complete and self._advance(body):
            pass
        return bytes(body)

    def end(self) -> None:
        """The connection ended. Raises ResponseError when the response is not complete."""
        if self.has_head and self._kind is _Body.TO_END:
            self.is_complete = True
        if not self.is_complete:
            raise ResponseError("the connection ended in the middle of a response")

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > HEAD_BYTES_MAX:
                raise ResponseError(f"a response's head is over {HEAD_BYTES_MAX} bytes")
            return False
        first, *lines = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        words = first.split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdecimal():
            raise ResponseError("expected an HTTP/1 status line, found something else")
        self.status = int(words[1])
        for line in lines:
            name, colon, value = line.partition(":")
            if colon:
                self.headers[name.strip().lower()] = value.strip()
        self.has_head = True
        self._choose_body()
        return True

    def _choose_body(self) -> None:
        length = self.headers.get("content-length")
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            self._kind = _Body.CHUNKS
        elif length is not None:
            if not length.isdecimal():
                raise ResponseError("expected a number as content-length, found something else")
            self._kind, self._left = _Body.LENGTH, int(length)
        if self.status == 204 or (self._kind is _Body.LENGTH and self._left == 0):
            self.is_complete = True

    def _advance(self, body: bytearray) -> bool:
        """One step; whether another may follow at once."""
        if self._kind is _Body.TO_END:
            body += self._buffer
            self._buffer.clear()
            return False
        if self._left > 0:
            taken = self._buffer[: self._left]
            if not taken:
                return False
            body += taken
            del self._buffer[: len(taken)]
            self._left -= len(taken)
            self.is_complete = self._kind is _Body.LENGTH and self._left == 0
            return True
        return self._chunk_line()

    def _chunk_line(self) -> bool:
        end = self._buffer.find(b"\r\n")
        if end < 0:
            if len(self._buffer) > _LINE_BYTES_MAX:
                raise ResponseError("expected a chunk's size, found a long line")
            return False
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        if self._in_trailer:
            self.is_complete = not line
        elif line:  # an empty one ends the chunk before
            try:
                self._left = int(line.partition(b";")[0], 16)
            except ValueError:
                raise ResponseError("expected a chunk's size, found something else") from None
            self._in_trailer = self._left == 0
        return True
