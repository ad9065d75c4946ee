"""What a request holds besides its messages: the system text, the tools, the output limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from direct_agent.core.endpoint import Endpoint, Wire

# Messages demands a limit; this is one that current models take.
MESSAGES_MAX_TOKENS = 32_000


class ToolDeclaration(Protocol):
    """What the model is told of one tool. `parameters` is a JSON schema of one object."""

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def parameters(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """What a request holds besides its messages. `max_tokens` None: the endpoint's own."""

    system: str = ""
    tools: Sequence[ToolDeclaration] = field(default=())
    max_tokens: int | None = None


def requested_output(endpoint: Endpoint, settings: RequestSettings) -> int | None:
    """The output limit that the request names, or None."""
    if settings.max_tokens is not None:
        return settings.max_tokens
    if endpoint.max_tokens is not None:
        return endpoint.max_tokens
    return MESSAGES_MAX_TOKENS if endpoint.wire is Wire.MESSAGES else None
