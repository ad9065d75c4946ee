"""The body of a Chat Completions request."""

from __future__ import annotations

from typing import Any

from direct_agent.core.endpoint import Endpoint, EndpointKind, Thinking, requires_reasoning
from direct_agent.core.request_settings import RequestSettings, requested_output
from direct_agent.transcript import AssistantMessage, ReasoningKind, ToolResult, Transcript, UserMessage


def body(endpoint: Endpoint, view: Transcript, settings: RequestSettings) -> dict[str, Any]:
    """Model, messages, tools, stream, limit, then how to think."""
    messages: list[dict[str, Any]] = []
    if settings.system:
        messages.append({"role": "system", "content": settings.system})
    for each in view:
        if isinstance(each, UserMessage):
            messages.append({"role": "user", "content": each.text})
        elif isinstance(each, ToolResult):
            messages.append({"role": "tool", "content": each.output, "tool_call_id": each.call_id, "name": each.name})
        else:
            messages.append(_assistant(endpoint, each))
    value: dict[str, Any] = {"model": endpoint.model, "messages": messages}
    if settings.tools:
        value["tools"] = [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)},
            }
            for tool in settings.tools
        ]
    value["stream"] = True
    value["stream_options"] = {"include_usage": True}
    if (limit := requested_output(endpoint, settings)) is not None:
        value["max_completion_tokens" if endpoint.kind is EndpointKind.OFFICIAL else "max_tokens"] = limit
    value.update(_thinking(endpoint))
    return value


def _assistant(endpoint: Endpoint, message: AssistantMessage) -> dict[str, Any]:
    value: dict[str, Any] = {"role": "assistant", "content": message.text or (None if message.tool_calls else "")}
    reasoning = "".join(
        each.text for each in message.reasoning if each.kind in (ReasoningKind.TEXT, ReasoningKind.THINKING)
    )
    # The empty field is DeepSeek's own contract for a tool turn that came without reasoning; nobody else is sent one.
    if reasoning.strip() or (message.tool_calls and requires_reasoning(endpoint, message)):
        value["reasoning_content"] = reasoning
    if message.tool_calls:
        value["tool_calls"] = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return value


def _thinking(endpoint: Endpoint) -> dict[str, Any]:
    """DeepSeek has a switch and an effort; OpenAI an effort alone; servers run by oneself a template switch."""
    off = not endpoint.is_thinking
    effort = {"reasoning_effort": endpoint.effort} if endpoint.effort is not None else {}
    match endpoint.kind:
        case EndpointKind.STRICT_DEEPSEEK:
            if off:
                return {"thinking": {"type": "disabled"}}
            switch = {} if endpoint.thinking is Thinking.SERVER else {"thinking": {"type": "enabled"}}
            return switch | effort
        case EndpointKind.OFFICIAL:
            return {"reasoning_effort": "none"} if off else effort
        case _:
            if off:
                return {"chat_template_kwargs": {"enable_thinking": False}}
            return effort
