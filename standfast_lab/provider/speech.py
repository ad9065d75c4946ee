"""What the protocols have in common: how a request is read and an answer is put on the wire, faults at their place.

A protocol is two modules: `*_request` turns bytes into `Heard`, `*_answer` gives the `Words` of an answer; nothing else knows its forms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from standfast_lab.provider.answer import Answer, Fault, How, Text, Thinking, ToolCall, Where
from standfast_lab.provider.heard import Heard
from standfast_lab.provider.http_steps import Body, Close, Cut, End, Head, Hold, RawBody, Reset, Step, Wait

_DELTA_CHARS = 64 * 1024
_DELTAS_DEFAULT = 3
_IN_AN_EVENT = (Where.MID_EVENT, Where.MID_CHUNK)


class BadRequestError(ValueError):
    """The request breaks the protocol; the message is for the error body."""


@dataclass(frozen=True)
class Frames:
    """The events of one part of a streamed answer. `stop` may be empty where the protocol marks no end of a part."""

    start: tuple[bytes, ...]
    deltas: tuple[bytes, ...]
    stop: tuple[bytes, ...] = ()


class Words(Protocol):
    """One answer as its protocol spells it."""

    @property
    def request_id(self) -> tuple[str, str]:
        """The header that names the answer."""

    def whole(self) -> bytes:
        """The body without streaming."""

    def opening(self) -> Iterable[bytes]:
        """The events before the first part."""

    def parts(self) -> Iterable[Frames]:
        """The events of each part, in order; a fault lies in the last."""

    def closing(self) -> Sequence[bytes]:
        """The events that end the answer; at least one."""

    def error_event(self, kind: str) -> bytes:
        """An error inside the stream. `kind` is a word of the lab, see `directives`."""


class WriteError(Protocol):
    """Writes an error body of the protocol. `kind` is a word of the lab; one it does not know goes out as it is."""

    def __call__(
        self, status: int, kind: str, message: str, seed: str, retry_after_s: float | None = None
    ) -> list[Step]: ...


@dataclass(frozen=True)
class Speech:
    """One protocol: `read` raises BadRequestError as the real API answers 400; `say` spells an answer by its seed."""

    read: Callable[[str, Mapping[str, str], bytes], Heard]
    say: Callable[[Answer, Heard, str], Words]
    write_error: WriteError


def answer_steps(speech: Speech, answer: Answer, heard: Heard, *, seed: str) -> list[Step]:
    """Returns the HTTP steps of an answer. `seed` makes ids: the same seed gives the same bytes."""
    steps: list[Step] = [Wait(answer.latency_s)] if answer.latency_s else []
    words = speech.say(answer, heard, seed)
    fault = answer.fault
    if fault and fault.where is Where.BEFORE_HEAD:
        steps += _break(fault, words)
        if fault.how is not How.HANG:
            return steps
        fault = None
    if answer.status != 200:
        return steps + speech.write_error(
            answer.status, answer.error_type or "api_error", answer.error_message or "", seed, answer.retry_after_s
        )
    if not heard.stream:
        body = words.whole()
        if fault is None:
            return [*steps, *_whole_steps(body, words, len(body)), End()]
        if fault.how is How.ERROR_EVENT:
            return steps + speech.write_error(529, fault.error_type, "lab: error", seed)
        half = 0 if fault.where is Where.AFTER_HEAD else len(body) // 2
        if fault.how is How.END:
            # An orderly end has a content-length that fits: the JSON text is what is cut.
            return [*steps, *_whole_steps(body[:half], words, half), End()]
        return [*steps, *_whole_steps(body[:half], words, len(body)), *_break(fault, words), Body(body[half:]), End()]
    headers = (("content-type", "text/event-stream; charset=utf-8"), ("cache-control", "no-cache"), words.request_id)
    return [*steps, Head(200, headers), *_stream(answer, words, fault), End()]


def error_steps(
    status: int, body: bytes, headers: Sequence[tuple[str, str]], retry_after_s: float | None
) -> list[Step]:
    """Returns the HTTP steps of an error body."""
    more = [] if retry_after_s is None else [("retry-after", f"{retry_after_s:g}")]
    kind_and_length = [("content-type", "application/json"), ("content-length", str(len(body)))]
    return [Head(status, (*kind_and_length, *headers, *more)), Body(body), End()]


def input_tokens(heard: Heard) -> int:
    """A fixed function of the request's texts."""
    return 10 + sum(len(block.text) for message in heard.messages for block in message.blocks) // 4


def output_tokens(answer: Answer) -> int:
    """A fixed function of the answer's texts."""
    return 1 + sum(len(part_text(part)) for part in answer.parts) // 4


def usage_of(answer: Answer, heard: Heard) -> tuple[int, int]:
    """(input, output) tokens: what the answer claims, else counted."""
    return answer.usage or (input_tokens(heard), output_tokens(answer))


def part_text(part: Text | Thinking | ToolCall) -> str:
    """The text that a part's deltas carry."""
    return part.arguments if isinstance(part, ToolCall) else part.text


def pieces(part: Text | Thinking | ToolCall, count: int | None) -> list[str]:
    """Cuts a part's text into pieces of nearly one length; with fewer characters than pieces some are empty."""
    text = part_text(part)
    if count is None:
        count = max(min(_DELTAS_DEFAULT, len(text)), -(-len(text) // _DELTA_CHARS), 1)
    bounds = [len(text) * i // count for i in range(count + 1)]
    return [text[a:b] for a, b in pairwise(bounds)]


def _whole_steps(body: bytes, words: Words, length: int) -> list[Step]:
    headers = (("content-type", "application/json"), ("content-length", str(length)), words.request_id)
    return [Head(200, headers), Body(body)]


def _stream(answer: Answer, words: Words, fault: Fault | None) -> Iterator[Step]:
    """Yields the events of a stream, with the fault at its place: in the last part, the one with the reply."""
    if fault and fault.where is Where.AFTER_HEAD:
        yield from _break(fault, words)
    for event in words.opening():
        yield Body(event)
    closing: Sequence[bytes] | None = None
    for index, part in enumerate(words.parts()):
        is_last = index == len(answer.parts) - 1
        for event in part.start:
            yield Body(event)
        for place, delta in enumerate(part.deltas):
            if answer.delta_delay_s:
                yield Wait(answer.delta_delay_s)
            if fault and is_last and place == (len(part.deltas) + 1) // 2:
                yield from _fault_at(fault, delta, words)
                if fault.where in _IN_AN_EVENT:
                    continue
            yield Body(delta)
        after = [*part.stop]
        if fault and is_last and len(part.deltas) == 1:
            # Nothing can lie in the middle of a single delta's text, so it lies before or in the event after it.
            if not after:
                closing = words.closing()
            rest = after or list(closing or ())
            yield from _fault_at(fault, rest[0], words)
            if fault.where in _IN_AN_EVENT and after:
                del after[0]
            elif fault.where in _IN_AN_EVENT:
                closing = rest[1:]
        for event in after:
            yield Body(event)
    if fault and (fault.where is Where.BEFORE_STOP or not answer.parts):
        yield from _break(fault, words)
    for event in words.closing() if closing is None else closing:
        yield Body(event)


def _fault_at(fault: Fault, event: bytes, words: Words) -> Iterator[Step]:
    half = len(event) // 2
    match fault.where:
        case Where.MID_TEXT:
            yield from _break(fault, words)
        case Where.MID_EVENT:
            yield Body(event[:half])
            yield from _break(fault, words)
            yield Body(event[half:])
        case Where.MID_CHUNK:
            yield RawBody(f"{len(event):x}\r\n".encode(), event[:half])
            yield from _break(fault, words)
            # Inside an announced chunk nothing else can follow but its rest.
            yield Close()
        case _:
            return


def _break(fault: Fault, words: Words) -> Iterator[Step]:
    if fault.pause_s:
        yield Wait(fault.pause_s)
    match fault.how:
        case How.CUT:
            yield Cut()
        case How.END:
            yield Close()
        case How.RESET:
            yield Reset()
        case How.HANG:
            yield Hold()
        case How.ERROR_EVENT:
            yield Body(words.error_event(fault.error_type))
            yield Close()
