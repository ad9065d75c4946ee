"""Which headers pass, and which the relay owns: hop-by-hop ones, `host`, and the credential.

Everything else goes through as it came, in its order and spelling, with its content encoding untouched.
"""

from __future__ import annotations

from collections.abc import Iterable

Headers = list[tuple[bytes, bytes]]

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
CREDENTIALS = frozenset({b"x-api-key", b"authorization"})
# `expect` is between the client and us: we answer 100 ourselves when the upstream is ready for the body.
OURS_IN_REQUESTS = HOP_BY_HOP | CREDENTIALS | {b"host", b"expect"}


def is_chunked(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """True when the message's length is told by chunks."""
    return any(name.lower() == b"transfer-encoding" for name, _ in headers)


def request_headers(received: Headers, host: bytes, credential: tuple[bytes, bytes] | None) -> Headers:
    """The headers of the upstream request for one that was received."""
    hidden = _named_by_connection(received)
    chunked = is_chunked(received)
    result: Headers = [(b"host", host)]
    for name, value in received:
        key = name.lower()
        # With both lengths given, the chunks count (RFC 9112, 6.3); two lengths upstream would be a smuggling hole.
        if key in OURS_IN_REQUESTS or key in hidden or (chunked and key == b"content-length"):
            continue
        result.append((name, value))
    if chunked:
        result.append((b"transfer-encoding", b"chunked"))
    if credential is not None:
        result.append(credential)
    return result


def response_headers(received: Headers) -> Headers:
    """The headers passed to the client for those that the upstream sent."""
    hidden = _named_by_connection(received)
    chunked = is_chunked(received)
    return [
        (name, value)
        for name, value in received
        if (key := name.lower()) not in HOP_BY_HOP and key not in hidden and not (chunked and key == b"content-length")
    ]


def credentials(received: Headers) -> list[bytes]:
    """Every secret presented: the values of x-api-key, and of authorization with the scheme Bearer."""
    found: list[bytes] = []
    for name, value in received:
        key = name.lower()
        if key == b"x-api-key":
            found.append(value.strip())
        elif key == b"authorization":
            scheme, _, rest = value.strip().partition(b" ")
            found.append(rest.strip() if scheme.lower() == b"bearer" else value.strip())
    return found


def first(received: Headers, wanted: bytes) -> bytes | None:
    """The value of the first header called `wanted` (lower case), or None."""
    return next((value for name, value in received if name.lower() == wanted), None)


def _named_by_connection(received: Headers) -> frozenset[bytes]:
    named = {
        word.strip().lower() for name, value in received if name.lower() == b"connection" for word in value.split(b",")
    }
    # The length frames the body and is never a hop's own.
    return frozenset(named - {b"content-length"})
