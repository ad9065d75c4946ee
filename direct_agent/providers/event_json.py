"""One event's JSON: its value, or whether it was cut or is malformed.

A document that ran out of bytes (`EOF while parsing`, jiter's words, kept by a test) is a cut when its line had no end
either. Everything else that does not parse is malformed, and so is a cut-looking document on a whole line.
"""

from __future__ import annotations

import json
import re
from codecs import getincrementaldecoder
from typing import Any

import jiter

from direct_agent.providers.sse_lines import DataLine

_LONE_HALF = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_DONE = b"[DONE]"


class CutEventError(Exception):
    """The body ended inside this event."""


class MalformedEventError(Exception):
    """The event is whole, and not JSON or not of the protocol's shape."""


def is_done(line: DataLine) -> bool:
    """Whether the line is the end marker `[DONE]`. Raises CutEventError for a proper prefix of it without line end."""
    if line.payload == _DONE:
        return True
    if not line.is_whole and line.payload and _DONE.startswith(line.payload):
        raise CutEventError
    return False


def event_value(line: DataLine) -> dict[str, Any]:
    """The event's object. Raises CutEventError or MalformedEventError."""
    try:
        value = _parsed(line.payload)
    except ValueError:
        if not line.is_whole and is_proper_prefix(line.payload):
            raise CutEventError from None
        raise MalformedEventError from None
    if not isinstance(value, dict):
        raise MalformedEventError
    return value


def is_proper_prefix(payload: bytes) -> bool:
    """Whether bytes could still become a JSON document by adding more."""
    decoder = getincrementaldecoder("utf-8")()
    try:
        decoder.decode(payload)
    except UnicodeDecodeError:
        return False
    # jiter refuses half of a surrogate pair, which is JSON all the same: it must not hide where the text ends.
    whole = _LONE_HALF.sub(rb"\\u0041", payload)
    try:
        jiter.from_json(whole, allow_inf_nan=False)
    except ValueError as error:
        return str(error).startswith("EOF while parsing")
    return False


def _parsed(payload: bytes) -> Any:
    try:
        return jiter.from_json(payload, allow_inf_nan=False)
    except ValueError:
        if _LONE_HALF.search(payload) is None:
            raise
    # Some servers cut a pair of surrogates over two events; the standard library takes each half.
    return json.loads(payload, parse_constant=_refused)


def _refused(constant: str) -> Any:
    raise ValueError(constant)


def whole_text(text: str) -> str:
    """Halves of a surrogate pair that came apart are joined; a lone one becomes the replacement character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def obj(value: Any) -> dict[str, Any]:
    """An object; absent and null count as an empty one. Raises MalformedEventError for anything else."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise MalformedEventError
    return value


def items(value: Any) -> list[Any]:
    """A list; absent and null count as an empty one."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise MalformedEventError
    return value


def text(value: Any) -> str:
    """A string; absent and null count as empty."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise MalformedEventError
    return value


def index(value: Any, default: int = 0) -> int:
    """A small number that is not negative."""
    if value is None:
        return default
    if type(value) is not int or not 0 <= value < 100_000:
        raise MalformedEventError
    return value


def count(value: Any) -> int | None:
    """A token count, or None when there is none: unknown is not zero."""
    return value if type(value) is int and value >= 0 else None
