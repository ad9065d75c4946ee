"""One frame of Claude Code as normalised events. Pure, and without memory: whose the frame is, the reader decides.

A synthetic message (model `<synthetic>`, or marked as an API error) is the CLI's own writing, never output of the
model.
"""

from __future__ import annotations

from typing import Any

from runner.core.events import (
    AssistantMessage,
    Normalised,
    ProviderRetry,
    TextDelta,
    ToolCall,
    ToolResult,
    Usage,
    Warned,
)
from runner.drivers.claude_code.frames import Frame, text_of_content
from runner.drivers.json_fields import objects, read_list, read_number, read_object, read_text, to_json

SYNTHETIC_MODEL = "<synthetic>"


def normalise(frame: Frame) -> list[Normalised]:
    """The events of a content frame; none for frames that carry nothing for a client."""
    match frame.kind:
        case "assistant":
            return _assistant(frame)
        case "user":
            return _tool_results(frame)
        case "stream_event":
            return _delta(frame)
        case "system/api_retry":
            return [_retry(frame.fields, frame.parent_id)]
        case "tool_progress":
            retry = frame.object("subagent_retry")
            return [_retry(retry, frame.parent_id)] if retry else []
        case "system/compact_boundary":
            return [Warned("NATIVE_COMPACTION", "the CLI compacted the conversation by itself")]
        case "system/model_refusal_no_fallback":
            return [Warned("MODEL_REFUSAL", "the model refused and the CLI has no other model to ask")]
        case _:
            return []


def _assistant(frame: Frame) -> list[Normalised]:
    message = frame.object("message")
    if frame.fields.get("is_api_error_message") is True:
        return []  # the result of the turn carries the same text as its error
    is_synthetic = read_text(message, "model") == SYNTHETIC_MODEL
    events: list[Normalised] = []
    for block in objects(read_list(message, "content")):
        text = read_text(block, "text")
        if block.get("type") == "text" and text:
            if is_synthetic:
                events.append(Warned("CLI_MESSAGE", text))
                continue
            events.append(
                AssistantMessage(
                    message_id=read_text(message, "id") or "",
                    text=text,
                    parent_id=frame.parent_id,
                    native_uuid=frame.text("uuid"),
                    aborted=frame.fields.get("aborted") is True,
                )
            )
        elif block.get("type") == "tool_use":
            events.append(
                ToolCall(
                    call_id=read_text(block, "id") or "",
                    tool=read_text(block, "name") or "",
                    input_json=to_json(block.get("input")),
                    parent_id=frame.parent_id,
                )
            )
    return events


def _tool_results(frame: Frame) -> list[Normalised]:
    """Tool results only: other user frames are prompts of sub-agents and the CLI's own marks."""
    blocks = objects(read_list(frame.object("message"), "content"))
    return [
        ToolResult(
            call_id=read_text(block, "tool_use_id") or "",
            text=text_of_content(block.get("content")),
            is_error=block.get("is_error") is True,
            parent_id=frame.parent_id,
        )
        for block in blocks
        if block.get("type") == "tool_result"
    ]


def _delta(frame: Frame) -> list[Normalised]:
    event = frame.object("event")
    delta = read_object(event, "delta")
    text = read_text(delta, "text")
    if event.get("type") != "content_block_delta" or delta.get("type") != "text_delta" or not text:
        return []
    return [TextDelta(text, frame.parent_id)]


def _retry(fields: dict[str, Any], parent_id: str | None) -> ProviderRetry:
    return ProviderRetry(
        attempt=read_number(fields, "attempt") or 0,
        attempts_max=read_number(fields, "max_retries"),
        delay_ms=read_number(fields, "retry_delay_ms"),
        status=read_number(fields, "error_status"),
        parent_id=parent_id,
    )


def usage_of(frame: Frame) -> Usage | None:
    """The turn's token counts from its result. `modelUsage` beside it counts the whole process, so it is not read."""
    usage = frame.object("usage")
    if not usage:
        return None
    return Usage(
        input_tokens=read_number(usage, "input_tokens"),
        output_tokens=read_number(usage, "output_tokens"),
        cache_read_tokens=read_number(usage, "cache_read_input_tokens"),
        cache_write_tokens=read_number(usage, "cache_creation_input_tokens"),
    )
