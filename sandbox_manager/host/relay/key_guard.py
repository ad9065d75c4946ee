"""Keeps the provider's key out of what is passed into a sandbox, should an upstream ever echo it.

Bytes pass unchanged. Only when the key itself stands in them does the guard say so, and the response is cut before
it. What it does not see: a key inside an encoded (gzip, br) body, or spelled in another way.
"""

from __future__ import annotations

# A shorter word occurs by chance; a real key is longer than this.
KEY_BYTES_MIN = 16


class KeySeenError(Exception):
    """The key stands in the response; `clean` is what came before it and may be passed."""

    def __init__(self, clean: bytes) -> None:
        super().__init__("the provider's key stands in the upstream's response")
        self.clean = clean


class KeyGuard:
    """Push filter: `feed` bytes, pass on what it returns, `close` for what was held."""

    def __init__(self, key: bytes | None) -> None:
        self._key = key if key is not None and len(key) >= KEY_BYTES_MIN else None
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """Returns what may be passed now. Raises KeySeenError."""
        if self._key is None:
            return chunk
        joined = self._held + chunk if self._held else chunk
        at = joined.find(self._key)
        if at >= 0:
            self._held = b""
            raise KeySeenError(joined[:at])
        keep = self._begun_at_the_end(joined, self._key)
        self._held = joined[len(joined) - keep :] if keep else b""
        return joined[: len(joined) - keep] if keep else joined

    def close(self) -> bytes:
        """What was held back and turned out not to be the key."""
        held, self._held = self._held, b""
        return held

    def is_in(self, value: bytes) -> bool:
        """True when the key stands in `value` (a header's value)."""
        return self._key is not None and self._key in value

    @staticmethod
    def _begun_at_the_end(joined: bytes, key: bytes) -> int:
        head = key[:1]
        tail_start = max(0, len(joined) - len(key) + 1)
        at = joined.find(head, tail_start)
        while at >= 0:
            if key.startswith(joined[at:]):
                return len(joined) - at
            at = joined.find(head, at + 1)
        return 0
