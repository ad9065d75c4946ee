"""Replaces registered secrets in whatever leaves a process as text: logs, errors, stored output.

Found: a secret as it is; JSON-escaped, percent-encoded, in hex; and inside any base64 text that encodes it, at each of
the three alignments, in both alphabets (`Authorization: Basic` holds `user:secret` in base64). `Bearer <secret>` is
the secret as it is. Not found: a secret cut over two separate log values, one that was compressed, encrypted or
encoded in another way, and a part of a secret. A stream of bytes cut in two reads is MaskingStream's work.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

_SECRET_MIN_CHARS = 8


class SecretMask:
    """The secrets of one process. Register them before anything that could print them starts."""

    def __init__(self) -> None:
        self._names: dict[bytes, str] = {}
        self._pattern: re.Pattern[bytes] | None = None
        self._version = 0

    def register(self, secret: str, name: str) -> None:
        """`name` is shown in place of the secret: `[masked:NAME]`. Secrets of fewer than 8 characters are refused:
        masking such a text would garble everything and hide little.
        """
        if len(secret) < _SECRET_MIN_CHARS:
            raise ValueError(
                f"the secret {name} has {len(secret)} characters; expected at least {_SECRET_MIN_CHARS}. "
                "Check that it is the secret and not a placeholder."
            )
        for form in _forms(secret):
            self._names.setdefault(form, name)
        longest_first = sorted(self._names, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(re.escape(form) for form in longest_first))
        self._version += 1

    @property
    def forms(self) -> list[bytes]:
        return list(self._names)

    @property
    def version(self) -> int:
        """Raised by each registration."""
        return self._version

    @property
    def pattern(self) -> re.Pattern[bytes] | None:
        """Matches any form, the longest first; None while nothing is registered."""
        return self._pattern

    def replacement(self, form: bytes) -> bytes:
        return f"[masked:{self._names[form]}]".encode()

    def data(self, raw: bytes) -> bytes:
        """Whole bytes, masked. For bytes that come in pieces use MaskingStream."""
        if self._pattern is None:
            return raw
        return self._pattern.sub(lambda match: self.replacement(match.group()), raw)

    def text(self, text: str) -> str:
        if self._pattern is None:
            return text
        raw = text.encode("utf-8", "surrogatepass")
        if self._pattern.search(raw) is None:
            return text
        return self.data(raw).decode("utf-8", "surrogatepass")

    def value(self, value: Any) -> Any:
        """A log value, masked at every depth, keys too. What is not plain data becomes its masked repr."""
        if value is None or isinstance(value, bool | int | float):
            return value if self.text(repr(value)) == repr(value) else self.text(repr(value))
        if isinstance(value, str):
            return self.text(str(value))
        if isinstance(value, bytes | bytearray | memoryview):
            return self.data(bytes(value)).decode("utf-8", "backslashreplace")
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.value(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self.value(inner) for inner in value]
        return self.text(repr(value))


class MaskingStream:
    """Masks bytes that arrive in pieces; finds a secret that is cut over any number of reads.

    What could be the beginning of a secret is held back until more is known or close() is called; never more than the
    longest form minus one byte. `keep_length`: a secret becomes as many `*` as it has bytes, so that offsets hold.
    """

    def __init__(self, mask: SecretMask, *, keep_length: bool = False) -> None:
        self._mask = mask
        self._keep_length = keep_length
        self._held = b""
        self._version = -1
        self._beginnings: frozenset[bytes] = frozenset()
        self._first_bytes: frozenset[int] = frozenset()
        self._longest = 0

    def feed(self, raw: bytes) -> bytes:
        """What can be passed on after this piece."""
        pattern = self._mask.pattern
        if pattern is None:
            return raw
        if self._version != self._mask.version:
            self._version = self._mask.version
            forms = self._mask.forms
            self._beginnings = frozenset(form[:length] for form in forms for length in range(1, len(form)))
            self._first_bytes = frozenset(form[0] for form in forms)
            self._longest = max(len(form) for form in forms)
        buffer = self._held + raw
        cut, spans = self._cut(pattern, buffer)
        self._held = buffer[cut:]
        return self._masked(buffer[:cut], spans)

    def close(self) -> bytes:
        """The rest, masked. A secret of which only a part arrived is not masked."""
        held, self._held = self._held, b""
        pattern = self._mask.pattern
        if pattern is None:
            return held
        return self._masked(held, [match.span() for match in pattern.finditer(held)])

    def _cut(self, pattern: re.Pattern[bytes], buffer: bytes) -> tuple[int, list[tuple[int, int]]]:
        """Where to stop for now, and the secrets before that."""
        spans = [match.span() for match in pattern.finditer(buffer)]
        for start in range(max(0, len(buffer) - self._longest + 1), len(buffer)):
            if buffer[start] not in self._first_bytes or buffer[start:] not in self._beginnings:
                continue
            if not any(begin < start < end for begin, end in spans[-self._longest :]):
                return start, [span for span in spans if span[1] <= start]
        return len(buffer), spans

    def _masked(self, raw: bytes, spans: list[tuple[int, int]]) -> bytes:
        parts: list[bytes] = []
        position = 0
        for begin, end in spans:
            form = raw[begin:end]
            parts.append(raw[position:begin])
            parts.append(b"*" * len(form) if self._keep_length else self._mask.replacement(form))
            position = end
        parts.append(raw[position:])
        return b"".join(parts)


def _forms(secret: str) -> set[bytes]:
    raw = secret.encode()
    forms = {
        raw,
        json.dumps(secret)[1:-1].encode(),
        json.dumps(secret, ensure_ascii=False)[1:-1].encode(),
        quote(secret, safe="").encode(),
        quote(secret).encode(),
        raw.hex().encode(),
        raw.hex().upper().encode(),
    }
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + raw)
        # The characters that hold only bits of the secret: not those shared with what stands before and after it.
        begin = (before * 8 + 5) // 6
        end = (before + len(raw)) * 8 // 6
        inner = encoded[begin:end]
        forms.add(inner)
        forms.add(inner.translate(bytes.maketrans(b"+/", b"-_")))
    return forms
