"""From the canonical transcript to what may be sent: no intents, a result for each call, no empty turn.

The same object comes back when nothing has to change, and an untouched message keeps its identity. The transcript is
never changed.
"""

from __future__ import annotations

import json
from dataclasses import replace

import jiter

from direct_agent.transcript import (
    INTERRUPTED_OUTPUT,
    AssistantMessage,
    Message,
    RunState,
    ToolCall,
    ToolResult,
    Transcript,
)


def base_view(transcript: Transcript) -> Transcript:
    """The provider view without any repair.

    - Write intents are left out.
    - Arguments that are no JSON (a stored call that was cut) are closed into JSON, or become `{}`.
    - A call without a stored result gets a placeholder of unknown outcome, after the results there are; results come in
      the order of the calls; a result whose call is not there is left out.
    - An assistant message without any content is left out.
    """
    view: list[Message] = []
    position = 0
    while position < len(transcript):
        message = transcript[position]
        position += 1
        if isinstance(message, ToolResult):
            continue
        if not isinstance(message, AssistantMessage):
            view.append(message)
            continue
        results: list[ToolResult] = []
        while position < len(transcript) and isinstance(following := transcript[position], ToolResult):
            results.append(following)
            position += 1
        if is_empty(message):
            continue
        view.append(_without_private(message))
        view.extend(_paired(message.tool_calls, results))
    is_same = len(view) == len(transcript) and all(a is b for a, b in zip(view, transcript, strict=True))
    return transcript if is_same else tuple(view)


def is_empty(message: AssistantMessage) -> bool:
    """Whether nothing of the message would be sent: no visible text, no call, no opaque item, no reasoning."""
    return not (message.text.strip() or message.tool_calls or message.opaque or message.reasoning)


def _without_private(message: AssistantMessage) -> AssistantMessage:
    calls = tuple(_sendable(call) for call in message.tool_calls)
    if all(new is old for new, old in zip(calls, message.tool_calls, strict=True)):
        return message
    return replace(message, tool_calls=calls)


def _sendable(call: ToolCall) -> ToolCall:
    arguments = closed_arguments(call.arguments)
    if not call.intents and arguments == call.arguments:
        return call
    return replace(call, arguments=arguments, intents=())


def closed_arguments(arguments: str) -> str:
    """The arguments as they are when they are one JSON object; else closed into one, else `{}`."""
    try:
        if isinstance(json.loads(arguments), dict):
            return arguments
    except (ValueError, RecursionError):
        pass
    try:
        value = jiter.from_json(arguments.encode(), partial_mode="trailing-strings")
    except (ValueError, UnicodeEncodeError):
        return "{}"
    return json.dumps(value) if isinstance(value, dict) else "{}"


def _paired(calls: tuple[ToolCall, ...], results: list[ToolResult]) -> list[ToolResult]:
    left = list(results)
    paired: list[ToolResult] = []
    for call in calls:
        found = next((each for each in left if each.call_id == call.call_id), None)
        if found is None:
            paired.append(ToolResult(call.call_id, call.name, INTERRUPTED_OUTPUT, RunState.UNKNOWN, is_error=True))
        else:
            left.remove(found)
            paired.append(found)
    return paired
