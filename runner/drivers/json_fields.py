"""Reads what a CLI printed as JSON, and writes JSON for it. Pure; shared by the drivers. Reading never raises on content."""

from __future__ import annotations

import json
from typing import Any


def parse_object(line: bytes) -> dict[str, Any] | None:
    """The JSON object of one line; None for anything else, which is then noise."""
    try:
        value = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):  # not UTF-8, not JSON, an absurd number, or nested without end
        return None
    return value if isinstance(value, dict) else None


def whole_text(value: str) -> str:
    """The text with lone surrogates replaced: JSON can spell them, UTF-8 cannot carry them."""
    if value.isascii():
        return value
    return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def read_text(fields: dict[str, Any], name: str) -> str | None:
    value = fields.get(name)
    return whole_text(value) if isinstance(value, str) else None


def read_number(fields: dict[str, Any], name: str) -> int | None:
    """A whole number that fits 64 bits. JSON's 1.0 counts as one; true does not."""
    value = fields.get(name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
        return None
    return value


def read_object(fields: dict[str, Any], name: str) -> dict[str, Any]:
    value = fields.get(name)
    return value if isinstance(value, dict) else {}


def read_list(fields: dict[str, Any], name: str) -> list[Any]:
    value = fields.get(name)
    return value if isinstance(value, list) else []


def objects(values: list[Any]) -> list[dict[str, Any]]:
    """The members of a JSON list that are objects."""
    return [value for value in values if isinstance(value, dict)]


def to_json(value: Any) -> str:
    """JSON text with lone surrogates escaped, so that it can be sent as UTF-8."""
    written = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        written.encode("utf-8")
    except UnicodeEncodeError:
        written = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return written
