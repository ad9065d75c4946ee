"""One frame of the built-in agent as normalised events. Pure, and without memory: whose the frame is, the reader decides."""

from __future__ import annotations

import json
from typing import Any

from runner.core.events import (
    AssistantMessage,
    NativeTurnEnded,
    Normalised,
    ProviderRetry,
    TextDelta,
    ToolCall,
    ToolResult,
    Usage,
    Warned,
)
from runner.drivers.direct.frames import Frame, whole_text


def normalise(frame: Frame) -> list[Normalised]:
    """The events of a content frame; none for frames that carry nothing for a client."""
    match frame.type:
        case "text_delta":
            text = frame.text("text")
            return [TextDelta(text, None)] if text else []
        case "assistant":
            return _assistant(frame)
        case "tool_result":
            return [
                ToolResult(
                    call_id=frame.text("call_id") or "",
                    text=frame.text("text") or "",
                    is_error=frame.fields.get("is_error") is not False,
                    parent_id=None,
                )
            ]
        case "retrying":
            return [_retry(frame)]
        case "error":
            return [Warned("CLI_MESSAGE", frame.text("error") or "the agent refused a frame")]
        case _:
            return []


def _assistant(frame: Frame) -> list[Normalised]:
    uuid, text = frame.text("uuid"), frame.text("text")
    events: list[Normalised] = []
    if text:
        events.append(AssistantMessage(message_id=uuid or "", text=text, parent_id=None, native_uuid=uuid))
    for call in frame.objects("tool_calls"):
        events.append(
            ToolCall(
                call_id=call.text("call_id") or "",
                tool=call.text("tool") or "",
                input_json=call.text("arguments") or "",
                parent_id=None,
            )
        )
    return events


def _retry(frame: Frame) -> ProviderRetry:
    return ProviderRetry(
        attempt=frame.number("attempt") or 0,
        attempts_max=frame.number("limit"),
        delay_ms=_milliseconds(frame.fields.get("delay_s")),
        status=frame.number("status"),
        parent_id=None,
    )


def _milliseconds(seconds: Any) -> int | None:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 2**40:
        return None
    return int(seconds * 1000)


def turn_ended(frame: Frame) -> NativeTurnEnded:
    """Only the outcome tells; one that is not known is a failure."""
    outcome = frame.text("outcome")
    return NativeTurnEnded(
        failed=outcome != "completed",
        cancelled=outcome == "cancelled",
        reason=frame.text("reason"),
        error=frame.text("error") if outcome != "completed" else None,
        status=frame.number("status"),
    )


def usage_of(frame: Frame) -> Usage | None:
    """Unknown counts are absent, never 0."""
    usage = frame.object("usage")
    if not usage.fields:
        return None
    return Usage(
        input_tokens=usage.number("input_tokens"),
        output_tokens=usage.number("output_tokens"),
        cache_read_tokens=usage.number("cache_read_tokens"),
        cache_write_tokens=None,
    )


def _json(value: dict[str, Any]) -> str:
    return whole_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
