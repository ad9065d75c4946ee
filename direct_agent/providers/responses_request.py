"""The body of a Responses request. The server keeps nothing (`store` false): the whole history goes every time."""

from __future__ import annotations

import json
from typing import Any

from direct_agent.core.endpoint import Endpoint, EndpointKind
from direct_agent.core.request_settings import RequestSettings, requested_output
from direct_agent.transcript import AssistantMessage, ReasoningKind, ToolResult, Transcript, UserMessage


def body(endpoint: Endpoint, view: Transcript, settings: RequestSettings) -> dict[str, Any]:
    """Model, instructions, input, tools, stream, limit, then how to think."""
    entries: list[dict[str, Any]] = []
    for each in view:
        if isinstance(each, UserMessage):
            entries.append({"role": "user", "content": each.text})
        elif isinstance(each, ToolResult):
            entries.append({"type": "function_call_output", "call_id": each.call_id, "output": each.output})
        else:
            entries.extend(_assistant(each))
    value: dict[str, Any] = {"model": endpoint.model}
    if settings.system:
        value["instructions"] = settings.system
    value["input"] = entries
    if settings.tools:
        value["tools"] = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": dict(tool.parameters),
            }
            for tool in settings.tools
        ]
    value["stream"] = True
    value["store"] = False
    if (limit := requested_output(endpoint, settings)) is not None:
        value["max_output_tokens"] = limit
    if not endpoint.is_thinking:
        value["reasoning"] = {"effort": "none"}
    elif endpoint.effort is not None:
        value["reasoning"] = {"effort": endpoint.effort}
    if endpoint.kind is EndpointKind.OFFICIAL and endpoint.is_thinking:
        # Without `store`, OpenAI's reasoning can be sent back only in its encrypted form.
        value["include"] = ["reasoning.encrypted_content"]
    return value


def _assistant(message: AssistantMessage) -> list[dict[str, Any]]:
    """Reasoning items as they came, opaque items, text, calls. An item without any content is refused by servers."""
    entries: list[dict[str, Any]] = [
        json.loads(each.raw_json)
        for each in message.reasoning
        if each.kind is ReasoningKind.ITEM and each.raw_json and (each.text.strip() or each.data)
    ]
    entries.extend(json.loads(each.raw_json) for each in message.opaque)
    if message.text:
        entries.append({"role": "assistant", "content": message.text})
    entries.extend(
        {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments}
        for call in message.tool_calls
    )
    return entries
