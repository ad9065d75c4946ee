"""The relay's reading copy of one response: undoes the content encoding and feeds the protocol's reader.

A reader never stops the passing: whatever it cannot read makes the response `unread` and no more.
"""

from __future__ import annotations

from sandbox_manager.host.relay.activation import ActivationLedger
from sandbox_manager.host.relay.answer import AnswerFacts, MakeReader, StreamedAnswer, UnreadableError, WholeAnswer
from sandbox_manager.host.relay.chat import ChatReader
from sandbox_manager.host.relay.decoding import Decoder, DecodingError, decoder_for
from sandbox_manager.host.relay.headers import Headers, first
from sandbox_manager.host.relay.messages import MessagesReader
from sandbox_manager.host.relay.responses import ResponsesReader
from sandbox_manager.host.relay.sse import EventTooLargeError
from sandbox_manager.host.relay.upstream import ModelProtocol

WHOLE_ANSWER_BYTES_MAX = 32 * 1024 * 1024
DECODED_BYTES_MAX = 512 * 1024 * 1024

_READERS: dict[ModelProtocol, MakeReader] = {
    ModelProtocol.MESSAGES: MessagesReader,
    ModelProtocol.CHAT: ChatReader,
    ModelProtocol.RESPONSES: ResponsesReader,
}


class ResponseReader:
    """Reads one answer to a model request. `feed` it what was passed on, then `close` (whole) or `cut`."""

    def __init__(self, protocol: ModelProtocol, status: int, headers: Headers, ledger: ActivationLedger) -> None:
        self.facts = AnswerFacts()
        self._protocol = protocol
        self._is_over = False
        self.is_unread = False
        self._ledger = ledger
        self._decoder: Decoder | None = None
        self._decoded_bytes = 0
        self._answer: StreamedAnswer | WholeAnswer | None = None
        self._named = False
        # Only a success carries texts; an error's body is for the client alone.
        if status == 200:
            self._choose(headers)

    def feed(self, chunk: bytes) -> None:
        """Takes bytes that were handed to the client."""
        if self._decoder is None:
            return
        try:
            self._decoder.feed(chunk)
        except (UnreadableError, EventTooLargeError, DecodingError):
            self._give_up()
        self._tell_names()

    def close(self) -> None:
        """The whole response was handed to the client."""
        self._is_over = True
        if self._decoder is None or self._answer is None:
            return
        try:
            self._decoder.close()
            self._answer.close()
        except (UnreadableError, DecodingError):
            self._give_up()
        self._tell_names()

    def cut(self) -> None:
        """The response broke off, on either side. Does nothing after `close`."""
        if not self._is_over and self._answer is not None:
            self._is_over = True
            self._answer.cut()

    def _choose(self, headers: Headers) -> None:
        encoding = (first(headers, b"content-encoding") or b"").strip().lower().decode("latin-1")
        kind = (first(headers, b"content-type") or b"").partition(b";")[0].strip().lower()
        reader = _READERS[self._protocol](self.facts, self._ledger.delivered)
        if kind == b"text/event-stream":
            self._answer = StreamedAnswer(reader)
        elif kind == b"application/json":
            self._answer = WholeAnswer(reader, WHOLE_ANSWER_BYTES_MAX)
        else:
            self._give_up()
            return
        self._decoder = decoder_for(encoding, self._take)
        if self._decoder is None:
            self._give_up()

    def _take(self, piece: bytes) -> None:
        self._decoded_bytes += len(piece)
        if self._decoded_bytes > DECODED_BYTES_MAX:
            raise UnreadableError("the decoded answer is too large")
        if self._answer is not None:
            self._answer.feed(piece)

    def _tell_names(self) -> None:
        # Told as soon as known: an answer that is cut later has named itself all the same.
        if not self._named and self.facts.message_id is not None:
            self._named = True
            self._ledger.named(self.facts.message_id, self.facts.model)

    def _give_up(self) -> None:
        self._answer = None
        self._decoder = None
        if not self.is_unread:
            self.is_unread = True
            self._ledger.unread += 1
