"""The one fixed upstream of a protocol, and the key that is added outside the sandbox.

The key comes from a file or the environment of the host agent, never from a flag (argv is readable by
everyone on the machine). It is put into one request header and nowhere else: it has no `repr`.
"""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from sandbox_manager.host.relay.errors import ProviderKeyError, RelayError

KEY_FILE_BYTES_MAX = 8192


class ModelProtocol(enum.Enum):
    """What a CLI speaks to its model."""

    MESSAGES = "messages"
    CHAT = "chat"
    RESPONSES = "responses"

    @property
    def provider_name(self) -> str:
        """Whose protocol it is, by the names of the tracing conventions."""
        return "anthropic" if self is ModelProtocol.MESSAGES else "openai"


class KeyStyle(enum.Enum):
    """How the provider wants to see its key."""

    X_API_KEY = "x-api-key"
    BEARER = "bearer"


class ProviderKey:
    """A provider's key that does not show itself in logs, errors or `repr`."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        if not value or not value.isascii() or not value.isprintable() or " " in value:
            raise ProviderKeyError(
                "the provider key must be one word of printable ASCII; the text found is not "
                "(empty, or with spaces, line breaks or other characters)"
            )
        self._value = value.encode("ascii")

    @classmethod
    def from_file(cls, path: Path) -> ProviderKey:
        """Reads the key from `path`; surrounding white space is not part of it."""
        try:
            with path.open("rb") as file:
                raw = file.read(KEY_FILE_BYTES_MAX + 1)
        except OSError as error:
            raise ProviderKeyError(
                f"the provider key file {path} cannot be read: {error.strerror}", {"path": str(path)}
            ) from error
        try:
            text = raw.decode("ascii").strip()
        except UnicodeDecodeError:
            # `from None`: the decode error carries the file's bytes.
            raise ProviderKeyError(f"the provider key file {path} holds bytes that are not ASCII") from None
        if len(raw) > KEY_FILE_BYTES_MAX:
            raise ProviderKeyError(f"the provider key file {path} is longer than {KEY_FILE_BYTES_MAX} bytes")
        return cls(text)

    @classmethod
    def from_environment(cls, name: str) -> ProviderKey:
        """Takes the key from the variable `name` and removes it there, so that no child inherits it."""
        value = os.environ.pop(name, None)
        if value is None:
            raise ProviderKeyError(f"the environment variable {name} is not set; it should hold the provider key")
        return cls(value.strip())

    def reveal(self) -> bytes:
        """The key's bytes, for the one upstream header."""
        return self._value

    def __repr__(self) -> str:
        return "<provider key>"

    def __reduce__(self) -> str:
        raise TypeError("a provider key is not pickled")


@dataclass(frozen=True)
class Upstream:
    """Where requests of one protocol go. `key` None: the caller's credential is removed and none is added."""

    base_url: str
    key: ProviderKey | None
    key_style: KeyStyle = KeyStyle.X_API_KEY
    connect_timeout_s: float = 10.0
    # A long think sends pings; ten silent minutes are a dead upstream.
    read_timeout_s: float = 600.0
    write_timeout_s: float = 60.0
    # Shorter than what providers and gateways keep: a request on a connection that the other side has just
    # closed would be lost, and nothing is retried here.
    keepalive_s: float = 15.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.base_url)
        problem = None
        if parts.scheme not in ("http", "https"):
            problem = "its scheme must be http or https"
        elif not parts.hostname:
            problem = "it names no host"
        elif parts.username is not None or parts.password is not None:
            problem = "it must not hold a credential; use the key file or the environment"
        elif parts.query or parts.fragment:
            problem = "it must have neither query nor fragment"
        if problem is not None:
            # The URL is not repeated: it may hold a password.
            raise RelayError(f"the provider base URL cannot be used: {problem}")

    @property
    def origin(self) -> str:
        """Scheme, host and port as written, for the connection."""
        parts = urlsplit(self.base_url)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def path_prefix(self) -> bytes:
        """The base URL's path without its last slash, put before every request target."""
        return urlsplit(self.base_url).path.rstrip("/").encode("ascii")

    @property
    def host_header(self) -> bytes:
        """The value of `host` towards the upstream."""
        return urlsplit(self.base_url).netloc.encode("ascii")

    @property
    def address(self) -> tuple[str, int]:
        """Host name and port, for spans."""
        parts = urlsplit(self.base_url)
        return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)

    def credential_header(self) -> tuple[bytes, bytes] | None:
        """The header that carries the key, or None where there is no key."""
        if self.key is None:
            return None
        if self.key_style is KeyStyle.BEARER:
            return b"authorization", b"Bearer " + self.key.reveal()
        return b"x-api-key", self.key.reveal()


@dataclass(frozen=True)
class Upstreams:
    """The one fixed upstream of each protocol. OpenAI's two want their key as a bearer token."""

    messages: Upstream
    chat: Upstream
    responses: Upstream

    @classmethod
    def same(cls, upstream: Upstream) -> Upstreams:
        """One provider with one key speaks all three; the style given is that of Messages."""
        bearer = replace(upstream, key_style=KeyStyle.BEARER)
        return cls(upstream, bearer, bearer)

    def of(self, protocol: ModelProtocol) -> Upstream:
        """Where requests of this protocol go."""
        match protocol:
            case ModelProtocol.MESSAGES:
                return self.messages
            case ModelProtocol.CHAT:
                return self.chat
            case ModelProtocol.RESPONSES:
                return self.responses

    @property
    def keepalive_s(self) -> float:
        """The shortest: they share their connections."""
        return min(one.keepalive_s for one in (self.messages, self.chat, self.responses))
