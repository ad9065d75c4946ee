"""A call's argument text against its tool's schema. Pure.

Only what the schemas here use: one object with `properties`, `required` and no others; strings, integers with bounds, booleans, and
arrays of such objects. The refusal is for the model, so it says what to send.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from direct_agent.tools.errors import ArgumentError
from direct_agent.tools.port import Arguments, ToolSpec

_TYPES: dict[str, type] = {"string": str, "integer": int, "boolean": bool, "array": list, "object": dict}


def parse(spec: ToolSpec, text: str) -> Arguments:
    """The arguments. Raises ArgumentError; blank text is an empty object."""
    try:
        value = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        raise ArgumentError(
            f"{spec.name}: expected its arguments as one JSON object, found no JSON; send them again"
        ) from None
    _check(value, spec.parameters, spec.name)
    found: Arguments = value
    return found


def _check(value: Any, schema: Mapping[str, Any], at: str) -> None:
    wanted = _TYPES[schema["type"]]
    # JSON's true is a Python int as well; here it is not.
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise ArgumentError(f"{at}: expected {schema['type']}, found {_kind(value)}")
    if isinstance(value, dict):
        _check_object(value, schema, at)
    elif isinstance(value, list):
        _check_bounds(len(value), schema.get("minItems"), schema.get("maxItems"), f"{at}: number of entries")
        for number, entry in enumerate(value):
            _check(entry, schema["items"], f"{at}[{number}]")
    elif isinstance(value, int):
        _check_bounds(value, schema.get("minimum"), schema.get("maximum"), at)


def _check_object(value: dict[str, Any], schema: Mapping[str, Any], at: str) -> None:
    properties = schema["properties"]
    missing = [name for name in schema["required"] if name not in value]
    unknown = [name for name in value if name not in properties]
    if missing:
        raise ArgumentError(f"{at}: expected {', '.join(missing)} as well; send all required arguments")
    if unknown:
        raise ArgumentError(f"{at}: expected only {', '.join(properties)}, found {', '.join(unknown[:5])[:200]} too")
    for name, entry in value.items():
        _check(entry, properties[name], f"{at}.{name}")


def _check_bounds(number: int, low: int | None, high: int | None, at: str) -> None:
    if low is not None and number < low:
        raise ArgumentError(f"{at}: expected at least {low}, found {number}")
    if high is not None and number > high:
        raise ArgumentError(f"{at}: expected at most {high}, found {number}")


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    return next((name for name, kind in _TYPES.items() if isinstance(value, kind) and type(value) is kind), "a number")
