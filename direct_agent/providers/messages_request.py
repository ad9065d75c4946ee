"""The body of a Messages request: roles alternate, thinking goes back as it came, nothing empty is sent."""

from __future__ import annotations

import json
from typing import Any

from direct_agent.core.endpoint import Endpoint, EndpointKind, Thinking
from direct_agent.core.request_settings import RequestSettings, requested_output
from direct_agent.transcript import (
    AssistantMessage,
    Message,
    Reasoning,
    ReasoningKind,
    ToolResult,
    Transcript,
    UserMessage,
)

_THINKING_TYPES = ("thinking", "redacted_thinking")


def body(endpoint: Endpoint, view: Transcript, settings: RequestSettings) -> dict[str, Any]:
    """Model, limit, system, messages, tools, stream, then how to think."""
    value: dict[str, Any] = {"model": endpoint.model, "max_tokens": requested_output(endpoint, settings)}
    if settings.system:
        value["system"] = settings.system
    value["messages"] = _messages(endpoint, view)
    if settings.tools:
        value["tools"] = [
            {"name": tool.name, "description": tool.description, "input_schema": dict(tool.parameters)}
            for tool in settings.tools
        ]
    value["stream"] = True
    value.update(_thinking(endpoint))
    return value


def _messages(endpoint: Endpoint, view: Transcript) -> list[dict[str, Any]]:
    """Neighbours of one role become one message, since empty turns are left out and results are of the user's role."""
    merged: list[tuple[str, list[dict[str, Any]]]] = []
    for each in view:
        role = "assistant" if isinstance(each, AssistantMessage) else "user"
        blocks = _blocks(endpoint, each)
        if not blocks:
            continue
        if merged and merged[-1][0] == role:
            merged[-1][1].extend(blocks)
        else:
            merged.append((role, blocks))
    return [{"role": role, "content": _content(role, blocks)} for role, blocks in merged]


def _content(role: str, blocks: list[dict[str, Any]]) -> Any:
    if role == "assistant":
        # Of two merged messages the second's thinking would otherwise stand behind text.
        return sorted(blocks, key=lambda block: block["type"] not in _THINKING_TYPES)
    if len(blocks) == 1 and blocks[0]["type"] == "text":
        return blocks[0]["text"]
    return blocks


def _blocks(endpoint: Endpoint, message: Message) -> list[dict[str, Any]]:
    if isinstance(message, UserMessage):
        return [{"type": "text", "text": message.text}] if message.text else []
    if isinstance(message, ToolResult):
        result: dict[str, Any] = {"type": "tool_result", "tool_use_id": message.call_id, "content": message.output}
        return [result | {"is_error": True}] if message.is_error else [result]
    blocks = [block for each in message.reasoning if (block := _reasoning(endpoint, each)) is not None]
    blocks.extend(json.loads(each.raw_json) for each in message.opaque)
    if message.text.strip():
        blocks.append({"type": "text", "text": message.text})
    blocks.extend(
        {"type": "tool_use", "id": call.call_id, "name": call.name, "input": json.loads(call.arguments)}
        for call in message.tool_calls
    )
    return blocks


def _reasoning(endpoint: Endpoint, each: Reasoning) -> dict[str, Any] | None:
    """The block as received: a signature only if one was. What another protocol gave is not one of its blocks."""
    if each.kind is ReasoningKind.REDACTED:
        return {"type": "redacted_thinking", "data": each.data} if each.data else None
    # An old session's one thinking text counts as one unsigned block.
    if each.kind not in (ReasoningKind.THINKING, ReasoningKind.TEXT):
        return None
    block: dict[str, Any] = {"type": "thinking", "thinking": each.text}
    if each.signature:
        return block | {"signature": each.signature}
    return block if each.text and endpoint.kind is not EndpointKind.NATIVE_CLAUDE else None


def _thinking(endpoint: Endpoint) -> dict[str, Any]:
    if not endpoint.is_thinking:
        return {"thinking": {"type": "disabled"}}
    effort = {"output_config": {"effort": endpoint.effort}} if endpoint.effort is not None else {}
    match endpoint.thinking:
        case Thinking.SERVER | Thinking.OFF:
            return effort
        case Thinking.ADAPTIVE:
            return {"thinking": {"type": "adaptive"}} | effort
        case Thinking.ON:
            is_deepseek = endpoint.kind is EndpointKind.STRICT_DEEPSEEK
            return {"thinking": {"type": "enabled" if is_deepseek else "adaptive"}} | effort
