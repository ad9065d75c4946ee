"""Reads fields of the server's JSON. A field of another type reads as absent: a server's slip is no crash of ours."""

from typing import Any

Fields = dict[str, Any]


def text(fields: Fields, *path: str) -> str | None:
    """The text at a path of keys."""
    found = _at(fields, path)
    return found if isinstance(found, str) else None


def number(fields: Fields, *path: str) -> int | None:
    """The whole number at a path of keys; true is none."""
    found = _at(fields, path)
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def fields(found: Fields, *path: str) -> Fields:
    """The object at a path of keys; an empty one where there is none."""
    value = _at(found, path)
    return value if isinstance(value, dict) else {}


def items(found: Fields, *path: str) -> list[Fields]:
    """The objects in the list at a path of keys."""
    value = _at(found, path)
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def flag(found: Fields, *path: str) -> bool:
    """Whether the value at a path of keys is true."""
    return _at(found, path) is True


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value
