"""What to answer, in words that no protocol owns; the protocol module makes the bytes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Where(StrEnum):
    """The place in an answer where a fault happens. Without streaming, every place in the body means its middle."""

    BEFORE_HEAD = "before-head"
    AFTER_HEAD = "after-head"
    MID_TEXT = "mid-text"  # between two whole events
    MID_EVENT = "mid-event"  # inside the bytes of one event
    MID_CHUNK = "mid-chunk"  # inside an HTTP chunk whose length was already announced
    BEFORE_STOP = "before-stop"  # all of the text has gone, the closing events have not


class How(StrEnum):
    """What the fault is."""

    CUT = "cut"  # the TCP stream ends (FIN) with no terminator
    END = "end"  # the HTTP body ends in order, though the protocol's closing events have not come
    RESET = "reset"  # the TCP stream is reset (RST)
    HANG = "hang"  # nothing more comes until the client leaves, or until a release
    ERROR_EVENT = "error-event"  # an error event inside a 200 stream, then an orderly end


@dataclass(frozen=True)
class Fault:
    """One fault in an otherwise whole answer. `error_type` is one of the lab's words, see `directives`.

    `pause_s` passes just before it. Without a pause what was sent before a cut may reach the client together with the
    cut, and what the client makes of it is a race.
    """

    where: Where
    how: How
    error_type: str = "overloaded_error"
    pause_s: float = 0.0


@dataclass(frozen=True)
class Text:
    """A text block."""

    text: str


@dataclass(frozen=True)
class Thinking:
    """A thinking block; the lab signs it with a digest of its text."""

    text: str


@dataclass(frozen=True)
class ToolCall:
    """A tool call; `arguments` is JSON text."""

    name: str
    arguments: str


class Stop(StrEnum):
    """Why the model stopped."""

    END_TURN = "end_turn"
    TOOL_USE = "tool_use"
    MAX_TOKENS = "max_tokens"
    REFUSAL = "refusal"


@dataclass(frozen=True)
class Answer:
    """One answer. With a `status` other than 200 only the error fields matter.

    `deltas` None leaves the split to the protocol; otherwise the text goes out in that many deltas, `delta_delay_s`
    before each. `usage` is (input, output) tokens as the answer claims them; None counts the texts.
    """

    label: str
    parts: tuple[Text | Thinking | ToolCall, ...] = ()
    stop: Stop = Stop.END_TURN
    status: int = 200
    error_type: str | None = None
    error_message: str | None = None
    retry_after_s: float | None = None
    latency_s: float = 0.0
    deltas: int | None = None
    delta_delay_s: float = 0.0
    fault: Fault | None = None
    usage: tuple[int, int] | None = None
