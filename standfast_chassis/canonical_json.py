"""One byte form for a JSON value, so that its digest means the same to everyone.

Keys sorted by code point, no white space, UTF-8, no escapes beyond those that JSON demands. Floats are refused: two
writers disagree about them. For ASCII keys this equals RFC 8785 (JCS).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

JsonValue = None | bool | int | str | Sequence["JsonValue"] | Mapping[str, "JsonValue"]


def canonical_json(value: JsonValue) -> bytes:
    """Raises ValueError for what has no canonical form (a float, a key that is not text, a lone surrogate)."""
    _check(value, "$")
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def sha256_hex(value: bytes | JsonValue) -> str:
    """64 lower-case hex digits: of the bytes as they are, or of a JSON value's canonical form.

    A text is a JSON value here: its digest is that of the quoted form. Encode it first if its own bytes are meant.
    """
    raw = value if isinstance(value, bytes) else canonical_json(value)
    return hashlib.sha256(raw).hexdigest()


def _check(value: object, path: str) -> None:
    if value is None or isinstance(value, bool | int):
        return
    if isinstance(value, str):
        _check_text(value, path)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{path}: expected text keys, found {type(key).__name__}")
            _check_text(key, path)
            _check(inner, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            _check(inner, f"{path}[{index}]")
    else:
        raise ValueError(
            f"{path}: a {type(value).__name__} has no canonical JSON form; expected null, true or false, an integer, "
            "text, a list or an object"
        )


def _check_text(text: str, path: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{path}: text with a lone surrogate has no UTF-8 form") from error
