"""Values to JSON and back: for the host agent's journal and for what it signs to the manager. Pure.

An envelope says what is in it: `{"kind": "Observation", "version": 1, "value": {...}}`. Reading is strict: an unknown or missing key,
a repeated key, another kind, another version, or a value of another type is a CodecError that names the place. A reader that fills in
what is missing would turn "not known" into a fact.

Bytes are canonical (sorted keys, no spaces, ASCII), so one value has one digest.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

from standfast_chassis.errors import StandfastError

VERSION = 1

T = TypeVar("T")


class CodecError(StandfastError):
    """JSON that is not the value it should be. `metadata["at"]` is the place in it."""

    reason = "RECORD_UNREADABLE"

    def __init__(self, at: str, expected: str, found: str) -> None:
        super().__init__(
            f"at {at}: expected {expected}, found {found}", {"at": at, "expected": expected, "found": found}
        )


def to_json(value: object) -> dict[str, Any]:
    """The envelope of a dataclass value, made of plain JSON types."""
    return {"kind": type(value).__name__, "version": VERSION, "value": _plain(value)}


def from_json(kind: type[T], envelope: object) -> T:
    """The value in an envelope. Raises CodecError for anything that is not exactly one."""
    if not isinstance(envelope, dict) or envelope.keys() != {"kind", "version", "value"}:
        raise CodecError("$", "an object of kind, version and value", _shape(envelope))
    if envelope["kind"] != kind.__name__:
        raise CodecError("$.kind", kind.__name__, repr(envelope["kind"])[:80])
    if envelope["version"] != VERSION or isinstance(envelope["version"], bool):
        raise CodecError("$.version", str(VERSION), repr(envelope["version"])[:80])
    made: T = _read(kind, envelope["value"], "$.value")
    return made


def encode(value: object) -> bytes:
    """Canonical bytes of the envelope."""
    return json.dumps(
        to_json(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    ).encode()


def decode(kind: type[T], data: bytes) -> T:
    """Reads what `encode` wrote. Raises CodecError."""
    try:
        envelope = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise CodecError("$", "JSON", "other bytes") from None
    return from_json(kind, envelope)


def _plain(value: object) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    raise CodecError("$", "a dataclass of plain values", type(value).__name__)


def _read(hint: Any, value: object, at: str) -> Any:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return _read_optional(hint, value, at)
    if origin is tuple:
        return _read_tuple(typing.get_args(hint), value, at)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _read_dataclass(hint, value, at)
    if isinstance(hint, type) and issubclass(hint, Enum):
        try:
            return hint(value)
        except ValueError:
            raise CodecError(at, f"a {hint.__name__}", _shape(value)) from None
    # bool is a kind of int for Python, not for us.
    if hint in (str, int, bool) and type(value) is hint:
        return value
    raise CodecError(at, getattr(hint, "__name__", str(hint)), _shape(value))


def _read_optional(hint: Any, value: object, at: str) -> Any:
    kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
    if value is None and len(kinds) < len(typing.get_args(hint)):
        return None
    if len(kinds) != 1:
        raise CodecError(at, "a type with one choice beside None", str(hint))
    return _read(kinds[0], value, at)


def _read_tuple(kinds: tuple[Any, ...], value: object, at: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise CodecError(at, "a list", _shape(value))
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_read(kinds[0], one, f"{at}[{index}]") for index, one in enumerate(value))
    if len(kinds) != len(value):
        raise CodecError(at, f"a list of {len(kinds)}", f"a list of {len(value)}")
    return tuple(_read(kind, one, f"{at}[{index}]") for index, (kind, one) in enumerate(zip(kinds, value, strict=True)))


def _read_dataclass(kind: type[Any], value: object, at: str) -> Any:
    if not isinstance(value, dict):
        raise CodecError(at, f"an object ({kind.__name__})", _shape(value))
    hints = _hints(kind)
    if value.keys() != hints.keys():
        odd = ", ".join(sorted(str(key)[:40] for key in value.keys() ^ hints.keys()))
        raise CodecError(at, f"exactly the fields of {kind.__name__}", f"a difference in: {odd}")
    return kind(**{name: _read(hint, value[name], f"{at}.{name}") for name, hint in hints.items()})


_HINTS: dict[type[Any], Mapping[str, Any]] = {}


def _hints(kind: type[Any]) -> Mapping[str, Any]:
    # Resolving the annotations is slow beside reading the values; they never change.
    found = _HINTS.get(kind)
    if found is None:
        resolved = typing.get_type_hints(kind)
        found = _HINTS[kind] = {field.name: resolved[field.name] for field in dataclasses.fields(kind)}
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise CodecError("$", "each key once", "one repeated")
    return made


def _no_constant(word: str) -> object:
    raise CodecError("$", "plain JSON numbers", word)


def _shape(value: object) -> str:
    """What a value is, without its content: it may come from a stranger."""
    if isinstance(value, dict):
        return f"an object of {len(value)} keys"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return type(value).__name__
