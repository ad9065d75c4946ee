"""The relay's reading copy of one response: undoes the content encoding and feeds the protocol's reader.

A reader never stops the passing: whatever it cannot read makes the response `unread` and no more.
Encodings read: identity, gzip, deflate. Others (br, zstd) are passed on and unread.
"""

from __future__ import annotations

import zlib
from typing import Protocol

from sandbox_manager.host.relay.activation import ActivationLedger
from sandbox_manager.host.relay.headers import Headers, first
from sandbox_manager.host.relay.messages import AnswerFacts, StreamedAnswer, UnreadableError, WholeAnswer
from sandbox_manager.host.relay.sse import EventTooLargeError

WHOLE_ANSWER_BYTES_MAX = 32 * 1024 * 1024
# Decoded in pieces of this size, so that a small body cannot unfold into memory at once.
DECODED_PIECE_BYTES = 256 * 1024
DECODED_BYTES_MAX = 512 * 1024 * 1024


class _Decoder(Protocol):
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...

    @property
    def unconsumed_tail(self) -> bytes: ...


class ResponseReader:
    """Reads one answer to a model request. `feed` it what was passed on, then `close` (whole) or drop it (cut)."""

    def __init__(self, status: int, headers: Headers, ledger: ActivationLedger) -> None:
        self.facts = AnswerFacts()
        self.is_unread = False
        self._ledger = ledger
        self._decoder: _Decoder | None = None
        self._decoded_bytes = 0
        self._answer: StreamedAnswer | WholeAnswer | None = None
        self._named = False
        # Only a success carries texts; an error's body is for the client alone.
        if status == 200:
            self._choose(headers)

    def feed(self, chunk: bytes) -> None:
        """Takes bytes that were handed to the client."""
        if self._answer is None:
            return
        try:
            self._decode(chunk)
        except (UnreadableError, EventTooLargeError, zlib.error):
            self._give_up()
        self._tell_names()

    def close(self) -> None:
        """The whole response was handed to the client."""
        if self._answer is None:
            return
        try:
            self._answer.close()
        except UnreadableError:
            self._give_up()
        self._tell_names()

    def _choose(self, headers: Headers) -> None:
        encoding = (first(headers, b"content-encoding") or b"identity").strip().lower()
        kind = (first(headers, b"content-type") or b"").partition(b";")[0].strip().lower()
        if encoding in (b"gzip", b"x-gzip"):
            self._decoder = zlib.decompressobj(zlib.MAX_WBITS | 16)
        elif encoding == b"deflate":
            self._decoder = zlib.decompressobj()
        elif encoding != b"identity":
            self._give_up()
            return
        if kind == b"text/event-stream":
            self._answer = StreamedAnswer(self.facts, self._ledger.delivered)
        elif kind == b"application/json":
            self._answer = WholeAnswer(self.facts, self._ledger.delivered, WHOLE_ANSWER_BYTES_MAX)
        else:
            self._give_up()

    def _decode(self, chunk: bytes) -> None:
        answer = self._answer
        if answer is None:
            return
        if self._decoder is None:
            answer.feed(chunk)
            return
        rest = chunk
        while rest:
            piece = self._decoder.decompress(rest, DECODED_PIECE_BYTES)
            rest = self._decoder.unconsumed_tail
            self._decoded_bytes += len(piece)
            if self._decoded_bytes > DECODED_BYTES_MAX:
                raise UnreadableError("the decoded answer is too large")
            answer.feed(piece)

    def _tell_names(self) -> None:
        # Told as soon as known: an answer that is cut later has named itself all the same.
        if not self._named and self.facts.message_id is not None:
            self._named = True
            self._ledger.named(self.facts.message_id, self.facts.model)

    def _give_up(self) -> None:
        self._answer = None
        if not self.is_unread:
            self.is_unread = True
            self._ledger.unread += 1
