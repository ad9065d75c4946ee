"""One round's request, built once: the view and the settings as the bytes of one protocol.

The same input always gives the same bytes: keys in a fixed order, no clock, no random id. No credential is in it; the
transport adds that. Nothing is ever put in place of reasoning that was not received, except chat's empty field where
the DeepSeek contract asks for it.
"""

from __future__ import annotations

import json
from typing import Any

from direct_agent.core.endpoint import Endpoint, Wire, request_url
from direct_agent.core.request_settings import RequestSettings
from direct_agent.ports import FrozenRequest
from direct_agent.providers import chat_request, messages_request, responses_request
from direct_agent.providers.event_json import whole_text
from direct_agent.transcript import Transcript


def frozen_request(endpoint: Endpoint, view: Transcript, settings: RequestSettings) -> FrozenRequest:
    """The request for a view. The view is sent as it is: projections and repairs have been made before."""
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


def _whole(value: Any) -> Any:
    """The value with text that UTF-8 can carry."""
    if isinstance(value, str):
        return whole_text(value)
    if isinstance(value, dict):
        return {whole_text(key): _whole(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_whole(each) for each in value]
    return value
