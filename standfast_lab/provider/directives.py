"""Words that steer the lab: `[[lab:WORD]]` inside the last user text, or the `do` list of a script step.

    status=403 [type=T] [message="M"]     an error body of the protocol. T is a word of Messages (rate_limit_error, overloaded_error,
                                          ...), which the other protocols spell in their way; any other T goes out as it is
    retry-after=1                         that header, in seconds; alone it means status 429
    cut=WHERE  reset=WHERE  end=WHERE  hang[=WHERE]
                                          a fault at before-head, after-head, mid-text, mid-event, mid-chunk or before-stop
                                          (hang alone: before-head; the others: mid-text); pause=200ms goes before it
    error-event[=TYPE]                    an error event inside a 200 stream
    slow=20x50ms                          that many deltas, with that pause before each
    latency=200ms                         a pause before the head
    say TEXT                              this reply and no other, verbatim from behind the one space
    long=8MiB                             a reply of that many bytes
    think=TEXT                            a thinking block before the reply
    usage=120000x50                       the answer claims these input and output tokens
    empty   refusal   max_tokens          a reply with no content; a refusal; a reply cut short. The first and the last
                                          work once unless told otherwise, since the CLI goes on by itself
    tool=NAME {JSON}                      a tool call; several are called one after the other, then the reply follows
    task PROMPT                           a call of the sub-agent tool with this prompt, which may hold words of its own

Every word takes `times=N`: it works N times for the same session and user text, then it is passed over.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from standfast_lab.provider.answer import Answer, Fault, How, Stop, Text, Thinking, Where

_OPEN = "[[lab:"
_CLOSE = "]]"
_BYTES = re.compile(r"(?P<count>\d+)\s*(?P<unit>B|KiB|MiB)?")
_UNIT_BYTES = {None: 1, "B": 1, "KiB": 1024, "MiB": 1024 * 1024}
_TOOL = re.compile(r"tool=\S+ +")
_DURATION = re.compile(r"(?P<count>\d+(?:\.\d+)?)(?P<unit>ms|s)?")
_LONG_BYTES_MAX = 64 * 1024 * 1024
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class DirectiveError(ValueError):
    """A lab word that cannot be read; the message names the word and what was expected."""


@dataclass(frozen=True)
class Directive:
    """One word. `times` None means always."""

    name: str
    value: str = ""
    options: dict[str, str] = field(default_factory=dict)
    times: int | None = None


def find_directives(text: str) -> list[Directive]:
    """Returns the words in a user text, in order. Brackets inside a word nest."""
    return [parse_directive(body) for body, _, _ in _spans(text)]


def without_directives(text: str) -> str:
    """Returns the text with its words taken out; other characters stay as they are."""
    kept, at = [], 0
    for _, start, end in _spans(text):
        kept.append(text[at:start])
        at = end
    return "".join([*kept, text[at:]])


def parse_directive(body: str) -> Directive:
    """Reads one word, without its brackets."""
    head, _, rest = body.partition(" ")
    name, _, value = head.partition("=")
    if name in ("say", "task"):
        return Directive(name, rest)
    if name == "tool":
        return Directive(name, value, {"input": _json_object(rest, body)})
    try:
        words = shlex.split(body)
    except ValueError as error:
        raise DirectiveError(f"lab word {body!r}: quotes do not match") from error
    if name not in _WORDS:
        raise DirectiveError(f"lab word {body!r}: no such word; known are {', '.join(sorted(_WORDS))}, say, task, tool")
    options = dict(word.partition("=")[::2] for word in words[1:])
    times = options.pop("times", "1" if name in ("max_tokens", "empty") else None)
    value = words[0].partition("=")[2]
    return Directive(name, value, options, None if times is None else _number(times, body))


def apply_directives(answer: Answer, directives: Sequence[Directive]) -> Answer:
    """Returns the answer with each word applied.

    Tool calls are not applied here: which one is due depends on the history.
    """
    for directive in directives:
        if directive.name in _WORDS:
            answer = replace(_WORDS[directive.name](answer, directive), label=directive.name)
        elif directive.name == "say":
            answer = replace(answer, parts=(Text(directive.value),), label="say")
    return answer


def _status(answer: Answer, d: Directive) -> Answer:
    status = _number(d.value, f"status={d.value}")
    if not 400 <= status <= 599:
        raise DirectiveError(f"lab word status={d.value}: expected 400 to 599")
    kind = d.options.get("type") or _ERROR_TYPES.get(status, "api_error")
    message = d.options.get("message") or f"lab: status {status}"
    return replace(answer, status=status, error_type=kind, error_message=message)


def _retry_after(answer: Answer, d: Directive) -> Answer:
    if answer.status == 200:
        answer = _status(answer, Directive("status", "429"))
    return replace(answer, retry_after_s=_duration_s(d.value))


def _fault(how: How) -> Callable[[Answer, Directive], Answer]:
    def apply(answer: Answer, d: Directive) -> Answer:
        try:
            where = Where(d.value or (Where.BEFORE_HEAD if how is How.HANG else Where.MID_TEXT))
        except ValueError as error:
            raise DirectiveError(f"lab word {how}={d.value}: expected one of {', '.join(Where)}") from error
        if how is How.END and where in (Where.BEFORE_HEAD, Where.MID_CHUNK):
            raise DirectiveError(f"lab word end={where}: HTTP has no orderly end there; use cut")
        return replace(answer, fault=Fault(where, how, pause_s=_duration_s(d.options.get("pause", "0"))))

    return apply


def _error_event(answer: Answer, d: Directive) -> Answer:
    return replace(answer, fault=Fault(Where.MID_TEXT, How.ERROR_EVENT, d.value or "overloaded_error"))


def _slow(answer: Answer, d: Directive) -> Answer:
    count, _, delay = d.value.partition("x")
    return replace(answer, deltas=_number(count, f"slow={d.value}"), delta_delay_s=_duration_s(delay))


def _latency(answer: Answer, d: Directive) -> Answer:
    return replace(answer, latency_s=_duration_s(d.value))


def _long(answer: Answer, d: Directive) -> Answer:
    match = _BYTES.fullmatch(d.value)
    size = int(match["count"]) * _UNIT_BYTES[match["unit"]] if match else 0
    if not 0 < size <= _LONG_BYTES_MAX:
        raise DirectiveError(f"lab word long={d.value}: expected 1B to 64MiB")
    line = "0123456789abcdef" * 4
    return replace(answer, parts=(Text((line * (size // len(line) + 1))[:size]),))


def _think(answer: Answer, d: Directive) -> Answer:
    return replace(answer, parts=(Thinking(d.value or "the lab thinks"), *answer.parts))


def _usage(answer: Answer, d: Directive) -> Answer:
    given, _, made = d.value.partition("x")
    return replace(answer, usage=(_number(given, f"usage={d.value}"), _number(made, f"usage={d.value}")))


def _empty(answer: Answer, d: Directive) -> Answer:
    return replace(answer, parts=())


def _refusal(answer: Answer, d: Directive) -> Answer:
    return replace(answer, parts=(), stop=Stop.REFUSAL)


def _max_tokens(answer: Answer, d: Directive) -> Answer:
    return replace(answer, stop=Stop.MAX_TOKENS)


_WORDS: dict[str, Callable[[Answer, Directive], Answer]] = {
    "status": _status,
    "retry-after": _retry_after,
    "cut": _fault(How.CUT),
    "end": _fault(How.END),
    "reset": _fault(How.RESET),
    "hang": _fault(How.HANG),
    "error-event": _error_event,
    "slow": _slow,
    "latency": _latency,
    "long": _long,
    "think": _think,
    "usage": _usage,
    "empty": _empty,
    "refusal": _refusal,
    "max_tokens": _max_tokens,
}


def _spans(text: str) -> list[tuple[str, int, int]]:
    """Returns (body, start, end) of each outermost word; an unclosed one is plain text."""
    found: list[tuple[str, int, int]] = []
    at = 0
    while (start := text.find(_OPEN, at)) >= 0:
        depth, cursor = 1, start + len(_OPEN)
        # A tool's input may hold the closing brackets itself, so it is read as JSON first.
        if tool := _TOOL.match(text, cursor):
            cursor = _json_end(text, tool.end())
        while depth:
            close = text.find(_CLOSE, cursor)
            if close < 0:
                return found
            inner = text.find(_OPEN, cursor)
            if 0 <= inner < close:
                depth, cursor = depth + 1, inner + len(_OPEN)
            else:
                depth, cursor = depth - 1, close + len(_CLOSE)
        found.append((text[start + len(_OPEN) : cursor - len(_CLOSE)], start, cursor))
        at = cursor
    return found


def _json_end(text: str, start: int) -> int:
    try:
        return json.JSONDecoder().raw_decode(text, start)[1]
    except ValueError:
        return start


def _json_object(text: str, body: str) -> str:
    try:
        if isinstance(json.loads(text or "{}"), dict):
            return text or "{}"
    except ValueError as error:
        raise DirectiveError(f"lab word {body!r}: the tool's input is not JSON: {error}") from error
    raise DirectiveError(f"lab word {body!r}: the tool's input must be a JSON object")


def _number(text: str, body: str) -> int:
    if not text.isdigit():
        raise DirectiveError(f"lab word {body!r}: {text!r} is not a whole number")
    return int(text)


def _duration_s(text: str) -> float:
    match = _DURATION.fullmatch(text)
    if not match:
        raise DirectiveError(f"lab word: {text!r} is not a duration like 50ms or 1.5s")
    return float(match["count"]) / (1000 if match["unit"] == "ms" else 1)
