"""One line of the bridge as normalised events. Pure, and without memory: whose the line is, the reader decides."""

from __future__ import annotations

from runner.core.events import (
    AssistantMessage,
    NativeRequest,
    Normalised,
    ProviderRetry,
    Question,
    QuestionOption,
    TextDelta,
    ToolCall,
    ToolResult,
    Usage,
    Warned,
)
from runner.drivers.http_bridge.frames import Frame
from runner.drivers.json_fields import to_json

KINDS = ("permission", "question")


def normalise(frame: Frame) -> list[Normalised]:
    """The events of a content line; none for lines that carry nothing for a client."""
    parent = frame.text("parent")
    match frame.kind:
        case "delta" if text := frame.text("text"):
            return [TextDelta(text, parent)]
        case "text" if text := frame.text("text"):
            message = frame.text("message")
            return [AssistantMessage(message_id=message or "", text=text, parent_id=parent, native_uuid=message)]
        case "tool":
            call, tool = frame.text("call") or "", frame.text("tool") or ""
            return [ToolCall(call, tool, to_json(frame.fields.get("input")), parent)]
        case "tool_result":
            return [ToolResult(frame.text("call") or "", frame.text("text") or "", frame.flag("is_error"), parent)]
        case "retry":
            return [ProviderRetry(frame.number("attempt") or 0, None, frame.number("delay_ms"), None, parent)]
        case "warning":
            return [Warned(frame.text("code") or "CLI_MESSAGE", frame.text("detail") or "")]
        case _:
            return []


def native_request(frame: Frame) -> NativeRequest | None:
    """A request that waits for an answer; None where it has no id, since nothing could be answered then."""
    request_id = frame.text("id")
    if request_id is None:
        return None
    kind = frame.text("kind")
    return NativeRequest(
        request_id=request_id,
        kind=kind if kind in KINDS else "other",
        payload_json=to_json(frame.fields.get("payload")),
        tool=frame.text("tool"),
        questions=tuple(_question(one) for one in frame.list("questions")),
        parent_id=frame.text("parent"),
    )


def _question(found: Frame) -> Question:
    options = tuple(
        QuestionOption(one.text("label") or "", one.text("description") or "") for one in found.list("options")
    )
    return Question(
        header=found.text("header") or "",
        text=found.text("text") or "",
        options=options,
        multiple=found.flag("multiple"),
        free_text=found.flag("free_text"),
    )


def usage_of(frame: Frame) -> Usage | None:
    """The turn's token counts; None where the bridge tells none."""
    usage = frame.object("usage")
    if not usage.fields:
        return None
    return Usage(
        input_tokens=usage.number("input"),
        output_tokens=usage.number("output"),
        cache_read_tokens=usage.number("cache_read"),
        cache_write_tokens=usage.number("cache_write"),
    )
