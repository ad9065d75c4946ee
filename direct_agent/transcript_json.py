"""Transcript values to JSON values and back, for session records and digests. Version 1.

Intents travel as the raw texts they are: what they hold is not read here. A key that is unknown is refused rather than
dropped, since a later load would otherwise lose it; the session keeps such a record raw.
"""

from __future__ import annotations

import json
from typing import Any

from direct_agent.transcript import (
    AssistantMessage,
    Finish,
    Message,
    Opaque,
    Reasoning,
    ReasoningKind,
    ReasoningState,
    RunState,
    ToolCall,
    ToolResult,
    UserMessage,
)


class TranscriptFormatError(ValueError):
    """A JSON value is not a message of this version."""


def to_json(message: Message) -> dict[str, Any]:
    """One message as plain data. Defaults are left out, so that a later default-valued field changes no digest."""
    if isinstance(message, UserMessage):
        return _lean({"role": "user", "text": message.text, "host": message.is_host or None})
    if isinstance(message, ToolResult):
        return _lean(
            {
                "role": "tool",
                "call_id": message.call_id,
                "name": message.name,
                "output": message.output,
                "state": message.state.value if message.state else None,
                "error": message.is_error or None,
            }
        )
    return _lean(
        {
            "role": "assistant",
            "text": message.text,
            "reasoning": [_reasoning_json(each) for each in message.reasoning] or None,
            "reasoning_state": message.reasoning_state.value,
            "tool_calls": [_call_json(each) for each in message.tool_calls] or None,
            "opaque": [{"kind": each.kind, "raw": each.raw_json} for each in message.opaque] or None,
            "finish": message.finish.value,
        }
    )


def from_json(value: Any) -> Message:
    """The message of a JSON value, or TranscriptFormatError."""
    try:
        match value:
            case {"role": "user", "text": str(text)}:
                rest = _rest(value, "text", "host")
                return UserMessage(text, bool(rest.get("host", False)))
            case {"role": "tool", "call_id": str(call_id), "name": str(name), "output": str(output)}:
                rest = _rest(value, "call_id", "name", "output", "state", "error")
                return ToolResult(call_id, name, output, _state(rest.get("state")), bool(rest.get("error")))
            case {"role": "assistant", "text": str(text)}:
                rest = _rest(value, "text", "reasoning", "reasoning_state", "tool_calls", "opaque", "finish")
                return AssistantMessage(
                    text,
                    tuple(_reasoning(each) for each in rest.get("reasoning", ())),
                    ReasoningState(rest.get("reasoning_state", ReasoningState.UNSET)),
                    tuple(_call(each) for each in rest.get("tool_calls", ())),
                    tuple(Opaque(each["kind"], each["raw"]) for each in rest.get("opaque", ())),
                    Finish(rest.get("finish", Finish.STOP)),
                )
    except (KeyError, TypeError, ValueError) as error:
        raise TranscriptFormatError(f"expected a message of version 1: {error}") from error
    raise TranscriptFormatError(
        "expected a message of version 1: an object with role user, assistant or tool and its fields"
    )


def canonical_bytes(value: Any) -> bytes:
    """One byte form for one JSON value: sorted keys, no spaces, UTF-8 with lone surrogates kept apart."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def _state(word: object) -> RunState | None:
    if word is None:
        return None
    # A state that a later version wrote proves nothing: it is read as unknown, never as done.
    return next((state for state in RunState if state.value == word), RunState.UNKNOWN)


def _reasoning_json(each: Reasoning) -> dict[str, Any]:
    return _lean(
        {
            "kind": each.kind.value,
            "text": each.text or None,
            "signature": each.signature,
            "data": each.data,
            "raw": each.raw_json,
            "complete": None if each.is_complete else False,
        }
    )


def _reasoning(value: dict[str, Any]) -> Reasoning:
    return Reasoning(
        ReasoningKind(value["kind"]),
        value.get("text", ""),
        value.get("signature"),
        value.get("data"),
        value.get("raw"),
        value.get("complete", True),
    )


def _call_json(each: ToolCall) -> dict[str, Any]:
    return _lean(
        {"id": each.call_id, "name": each.name, "arguments": each.arguments, "intents": list(each.intents) or None}
    )


def _call(value: dict[str, Any]) -> ToolCall:
    return ToolCall(value["id"], value["name"], value["arguments"], tuple(value.get("intents", ())))


def _lean(value: dict[str, Any]) -> dict[str, Any]:
    return {key: each for key, each in value.items() if each is not None}


def _rest(value: dict[str, Any], *known: str) -> dict[str, Any]:
    if unknown := sorted(set(value) - {"role", *known}):
        raise ValueError(f"unknown keys {unknown}")
    return value
