"""One frame of Pi as normalised events. Pure, and without memory: whose the frame is, the reader decides."""

from __future__ import annotations

from runner.core.events import (
    AssistantMessage,
    NativeRequest,
    Normalised,
    ProviderRetry,
    TextDelta,
    ToolCall,
    ToolResult,
    Warned,
)
from runner.drivers.json_fields import to_json
from runner.drivers.pi.frames import Frame, status_of

FAILED_STOPS = frozenset({"error"})


def normalise(frame: Frame) -> list[Normalised]:
    """The events of a content frame; none for frames that carry nothing for a client."""
    match frame.kind:
        case "message_update":
            return _delta(frame.object("assistantMessageEvent"))
        case "message_end":
            return _assistant(frame.object("message"))
        case "tool_execution_end":
            return [_tool_result(frame)]
        case "auto_retry_start":
            return [_retry(frame)]
        case "compaction_end" if frame.fields.get("result") is not None:
            return [Warned("NATIVE_COMPACTION", "the CLI compacted the conversation by itself")]
        case _:
            return []


def _delta(event: Frame) -> list[Normalised]:
    text = event.text("delta")
    return [TextDelta(text, None)] if event.text("type") == "text_delta" and text else []


def _assistant(message: Frame) -> list[Normalised]:
    """The blocks of a whole reply. Of a try that failed nothing is passed on but what streamed: the next try begins anew."""
    stop = message.text("stopReason")
    if message.text("role") != "assistant" or stop in FAILED_STOPS:
        return []
    events: list[Normalised] = []
    for block in message.objects("content"):
        text = block.text("text")
        if block.text("type") == "text" and text:
            events.append(
                AssistantMessage(
                    message_id=message.text("responseId") or "",
                    text=text,
                    parent_id=None,
                    native_uuid=None,
                    aborted=stop == "aborted",
                )
            )
        elif block.text("type") == "toolCall":
            events.append(
                ToolCall(
                    call_id=block.text("id") or "",
                    tool=block.text("name") or "",
                    input_json=to_json(block.object("arguments").fields),
                    parent_id=None,
                )
            )
    return events


def _tool_result(frame: Frame) -> ToolResult:
    blocks = frame.object("result").objects("content")
    return ToolResult(
        call_id=frame.text("toolCallId") or "",
        text="\n".join(text for block in blocks if (text := block.text("text")) is not None),
        is_error=frame.fields.get("isError") is True,
        parent_id=None,
    )


def _retry(frame: Frame) -> ProviderRetry:
    return ProviderRetry(
        attempt=frame.number("attempt") or 0,
        attempts_max=frame.number("maxAttempts"),
        delay_ms=frame.number("delayMs"),
        status=status_of(frame.text("errorMessage")),
        parent_id=None,
    )


def native_request(frame: Frame) -> NativeRequest | None:
    """A question of an extension; None where it has no id, since nothing could be answered then."""
    request_id = frame.text("id")
    return None if request_id is None else NativeRequest(request_id, "other", to_json(frame.fields))
