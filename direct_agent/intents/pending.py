"""Calls of an interrupted turn whose outcome is unknown, and what is done when the model asks for one of them again. Pure.

They are remembered under the tool's name and its arguments in canonical JSON: the order of keys and spacing do not matter. A call whose
arguments are no JSON is remembered under its text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from direct_agent.transcript import AssistantMessage, RunState, ToolCall, ToolResult, Transcript, UserMessage, run_state


@dataclass(frozen=True, slots=True)
class CallKey:
    """What makes two calls the same call."""

    name: str
    arguments: str


def key_of(call: ToolCall) -> CallKey:
    try:
        value = json.loads(call.arguments) if call.arguments.strip() else {}
        arguments = json.dumps(value, sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        arguments = call.arguments
    return CallKey(call.name, arguments)


def unresolved_calls(transcript: Transcript) -> tuple[ToolCall, ...]:
    """The calls without any result, in order. The same id in two answers is two calls; a result belongs to the newest before it."""
    open_calls: list[ToolCall] = []
    for message in transcript:
        if isinstance(message, AssistantMessage):
            open_calls += message.tool_calls
        elif isinstance(message, ToolResult):
            match = next((call for call in reversed(open_calls) if call.call_id == message.call_id), None)
            if match is not None:
                open_calls.remove(match)
    return tuple(open_calls)


def unknown_calls(turn: Sequence[object]) -> tuple[ToolCall, ...]:
    """The calls of these messages whose one result says that the outcome is unknown."""
    calls: dict[str, ToolCall] = {}
    found: list[ToolCall] = []
    for message in turn:
        if isinstance(message, AssistantMessage):
            calls |= {call.call_id: call for call in message.tool_calls}
        elif isinstance(message, ToolResult) and run_state(message) is RunState.UNKNOWN and message.call_id in calls:
            found.append(calls[message.call_id])
    return tuple(found)


def last_turn(transcript: Transcript) -> tuple[object, ...]:
    """The messages from the person's last message on."""
    for at in range(len(transcript) - 1, -1, -1):
        message = transcript[at]
        if isinstance(message, UserMessage) and not message.is_host:
            return transcript[at:]
    return ()


class PendingCalls:
    """The unknown calls of what was interrupted, while nobody knows better. `writes_only` False: also shell and others."""

    def __init__(self, calls: Sequence[ToolCall] = ()) -> None:
        self._calls: dict[CallKey, list[ToolCall]] = {}
        for call in calls:
            self._calls.setdefault(key_of(call), []).append(call)

    def __bool__(self) -> bool:
        return bool(self._calls)

    def same_as(self, call: ToolCall) -> tuple[ToolCall, ...]:
        """The remembered calls that are this call, oldest first; none when it is a new one."""
        return tuple(self._calls.get(key_of(call), ()))

    def all(self) -> tuple[ToolCall, ...]:
        return tuple(call for calls in self._calls.values() for call in calls)
