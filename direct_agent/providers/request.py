"""One round's request, built once: the view and the settings as the bytes of one protocol.

The same input always gives the same bytes: keys in a fixed order, no clock, no random id. No credential is in it; the
transport adds that. Nothing is ever put in place of reasoning that was not received, except chat's empty field where
the DeepSeek contract asks for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from direct_agent.core.endpoint import Endpoint, Wire, request_url
from direct_agent.ports import FrozenRequest
from direct_agent.providers.event_json import whole_text
from direct_agent.transcript import Transcript


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


def frozen_request(endpoint: Endpoint, view: Transcript, settings: RequestSettings) -> FrozenRequest:
    """The request for a view. The view is sent as it is: projections and repairs have been made before."""
    # Each protocol's file imports this one's types.
    from direct_agent.providers import chat_request, messages_request, responses_request

    build = {
        Wire.CHAT: chat_request.body,
        Wire.RESPONSES: responses_request.body,
        Wire.MESSAGES: messages_request.body,
    }[endpoint.wire]
    headers = [("content-type", "application/json"), ("accept", "text/event-stream"), ("accept-encoding", "identity")]
    if endpoint.wire is Wire.MESSAGES:
        headers.append(("anthropic-version", "2023-06-01"))
    body = json.dumps(_whole(build(endpoint, view, settings)), ensure_ascii=False, separators=(",", ":")).encode()
    return FrozenRequest(request_url(endpoint.wire, endpoint.base_url), tuple(headers), body, len(view))


def requested_output(endpoint: Endpoint, settings: RequestSettings) -> int | None:
    """The output limit that the request names, or None."""
    if settings.max_tokens is not None:
        return settings.max_tokens
    if endpoint.max_tokens is not None:
        return endpoint.max_tokens
    return MESSAGES_MAX_TOKENS if endpoint.wire is Wire.MESSAGES else None


# Messages demands a limit; this is one that current models take.
MESSAGES_MAX_TOKENS = 32_000


def raw(text: str) -> Any:
    """A stored raw JSON text as the value it was."""
    return json.loads(text)


def _whole(value: Any) -> Any:
    """The value with text that UTF-8 can carry."""
    if isinstance(value, str):
        return whole_text(value)
    if isinstance(value, dict):
        return {whole_text(key): _whole(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_whole(each) for each in value]
    return value
