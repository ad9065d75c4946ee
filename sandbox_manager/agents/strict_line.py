"""Reads one line towards a CLI so strictly that no two parsers can read it differently. Pure; shared by the agents' grammars.

A repeated key is refused: two parsers may take another one of the two, and then the text that was compared is not the text that the
CLI sees. The same goes for NaN, for control bytes outside strings, for a byte order mark, and for half a surrogate pair.
"""

from __future__ import annotations

import json
from typing import Final

_NEWLINE: Final = 0x0A
_ID_LENGTH_MAX: Final = 200


class LineRefusedError(Exception):
    """A line that a grammar does not know. Its text names shapes only, never content."""


def one_object(frame: bytes) -> dict[str, object]:
    """The one JSON object of a line with its line end. Raises LineRefusedError."""
    if not frame.endswith(b"\n"):
        raise LineRefusedError("expected one line with its line end, found no line end")
    body = frame[:-1]
    # A line end inside would be a second line for the CLI; another raw control byte is legal JSON only between tokens, where nobody
    # needs it.
    if _NEWLINE in body:
        raise LineRefusedError("expected one line, found more than one")
    if any(byte in body for byte in _CONTROL_BYTES):
        raise LineRefusedError("expected JSON without raw control bytes, found one")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise LineRefusedError("expected UTF-8, found other bytes") from None
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except ValueError:
        raise LineRefusedError("expected one JSON object, found no JSON") from None
    if not isinstance(value, dict):
        raise LineRefusedError("expected one JSON object, found another JSON value")
    return value


_CONTROL_BYTES: Final = bytes(byte for byte in range(0x20) if byte != _NEWLINE)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made: dict[str, object] = {}
    for key, value in pairs:
        if key in made:
            raise LineRefusedError("expected each key once, found one repeated")
        made[key] = value
    return made


def _no_constant(_word: str) -> object:
    raise LineRefusedError("expected plain JSON numbers, found NaN or Infinity")


def object_of(value: object, name: str) -> dict[str, object]:
    """The value as an object. Raises LineRefusedError."""
    if not isinstance(value, dict):
        raise LineRefusedError(f"expected an object as {name}, found another value")
    return value


def require_keys(
    value: dict[str, object], required: set[str], *, of: str, optional: frozenset[str] | set[str] = frozenset()
) -> None:
    """Exactly these keys, the optional ones or not. Raises LineRefusedError."""
    if not required <= value.keys() <= required | optional:
        expected = ", ".join(sorted(required | optional))
        raise LineRefusedError(f"expected the keys {expected} in {of}, found others or fewer ({len(value)} keys)")


def identifier(value: object, name: str) -> str:
    """A short text. Raises LineRefusedError."""
    if not isinstance(value, str) or not 0 < len(value) <= _ID_LENGTH_MAX:
        raise LineRefusedError(f"expected a short text as {name}, found another value")
    return value


def text_bytes(value: object, name: str) -> bytes:
    """A text of whole characters, as UTF-8. Raises LineRefusedError."""
    if not isinstance(value, str):
        raise LineRefusedError(f"expected a text as {name}, found another value")
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError:
        raise LineRefusedError("expected whole characters, found half a surrogate pair") from None
