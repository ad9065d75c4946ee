"""What an HTTP answer is made of: a list of steps, so that a fault is exact on the wire."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Head:
    """Status and headers. Without a content-length the body is chunked."""

    status: int
    headers: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Body:
    """A piece of the body; one HTTP chunk when chunked."""

    data: bytes


@dataclass(frozen=True)
class RawBody:
    """`framing` and `data` go to the socket as they are; only `data` counts as body."""

    framing: bytes
    data: bytes


@dataclass(frozen=True)
class Wait:
    """A pause."""

    seconds: float


@dataclass(frozen=True)
class Hold:
    """Nothing happens until a release, or until the client leaves."""


@dataclass(frozen=True)
class Cut:
    """The TCP stream ends here, with no terminator."""


@dataclass(frozen=True)
class Reset:
    """The TCP stream is reset here."""


@dataclass(frozen=True)
class Close:
    """The answer ends here in order, whatever steps follow."""


@dataclass(frozen=True)
class End:
    """The answer ends in order."""


Step = Head | Body | RawBody | Wait | Hold | Cut | Reset | Close | End
