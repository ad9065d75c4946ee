"""One item or notification of Codex as normalised events. Pure, and without memory: whose it is, the reader decides."""

from __future__ import annotations

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
from runner.drivers.codex.frames import Frame
from runner.drivers.json_fields import read_number, read_object, read_text, to_json

# Items that are no tool and no text: our own message, the model's thinking, marks of the CLI.
_NO_TOOL = frozenset(
    {
        "userMessage",
        "agentMessage",
        "reasoning",
        "plan",
        "hookPrompt",
        "functionCallOutput",
        "contextCompaction",
        "enteredReviewMode",
        "exitedReviewMode",
        "subAgentActivity",
    }
)
# What a tool's item says of its run; the rest of it is what the tool was called with.
_OUTCOME_FIELDS = frozenset(
    {
        "id",
        "type",
        "status",
        "aggregatedOutput",
        "exitCode",
        "durationMs",
        "startedAtMs",
        "completedAtMs",
        "processId",
        "commandActions",
        "source",
        "result",
        "results",
        "error",
        "contentItems",
        "success",
        "agentsStates",
        "receiverThreadIds",
        "pluginId",
        "scriptPath",
        "failure",
        "savedPath",
    }
)
_GOOD = frozenset({"completed", None})


def started(frame: Frame) -> list[Normalised]:
    """An item that began: a tool's call. A text's beginning says nothing yet."""
    item = frame.item
    kind = read_text(item, "type")
    if kind is None or kind in _NO_TOOL:
        return []
    called_with = {name: value for name, value in item.items() if name not in _OUTCOME_FIELDS and value is not None}
    return [ToolCall(read_text(item, "id") or "", _tool_name(item, kind), to_json(called_with), None)]


def completed(frame: Frame) -> list[Normalised]:
    """An item that is whole: an assistant's text, a tool's result."""
    item = frame.item
    kind, item_id = read_text(item, "type"), read_text(item, "id") or ""
    if kind == "agentMessage" and item.get("delivery") is not None:
        # A tool of the newer models that writes to the user while the turn goes on; an answer to it would be a new message.
        said = {name: item[name] for name in ("text", "questions") if item.get(name)}
        return [ToolCall(item_id, "message_to_user", to_json(said), None)]
    if kind == "agentMessage":
        text = read_text(item, "text")
        return [AssistantMessage(item_id, text, None, item_id or None)] if text else []
    if kind == "contextCompaction":
        return [Warned("NATIVE_COMPACTION", "the CLI compacted the conversation by itself")]
    if kind is None or kind in _NO_TOOL:
        return []
    failed = read_text(item, "status") not in _GOOD or item.get("success") is False
    return [ToolResult(call_id=item_id, text=_tool_text(item, kind), is_error=failed, parent_id=None)]


def delta(frame: Frame) -> list[Normalised]:
    text = read_text(frame.params, "delta")
    return [TextDelta(text, None)] if text else []


def retry(frame: Frame) -> ProviderRetry:
    """An `error` with `willRetry`. HTTP 5xx answers are retried with no word at all (observed), so none of these comes then."""
    error = read_object(frame.params, "error")
    attempt, attempts_max = _attempt_of(read_text(error, "message") or "")
    return ProviderRetry(attempt, attempts_max, None, status_of(error), None)


def warned(frame: Frame) -> list[Normalised]:
    match frame.kind:
        case "warning" | "guardianWarning":
            message = read_text(frame.params, "message")
            return [Warned("CLI_WARNING", message)] if message else []
        case "model/rerouted":
            return [Warned("MODEL_REROUTED", "the CLI asked another model than the one that was set")]
        case _:
            return []


def ended(frame: Frame) -> NativeTurnEnded:
    """`turn/completed`. The status says whether it failed; its `items` are a summary and no text is read from them."""
    turn = read_object(frame.params, "turn")
    status, error = read_text(turn, "status"), read_object(turn, "error")
    failed = status != "completed"  # a turn that does not say that it is good is not good
    return NativeTurnEnded(
        failed=failed,
        cancelled=status == "interrupted",
        reason=(error_word(error) or status) if failed else status,
        error=read_text(error, "message") if failed else None,
        status=status_of(error),
    )


def error_word(error: dict[str, Any]) -> str | None:
    """`codexErrorInfo`: a word, or an object with one key, e.g. {"httpConnectionFailed": {"httpStatusCode": 401}}."""
    found = error.get("codexErrorInfo")
    if isinstance(found, dict) and found:
        return str(next(iter(found)))
    return found if isinstance(found, str) else None


def status_of(error: dict[str, Any]) -> int | None:
    found = error.get("codexErrorInfo")
    if not isinstance(found, dict):
        return None
    details = next((value for value in found.values() if isinstance(value, dict)), {})
    return read_number(details, "httpStatusCode")


def usage_of(total: dict[str, Any], before: dict[str, Any]) -> Usage:
    """The turn's token counts: the thread's total less what it was before this turn."""

    def spent(name: str) -> int | None:
        now, then = read_number(total, name), read_number(before, name)
        return None if now is None else now - (then or 0)

    return Usage(
        input_tokens=spent("inputTokens"),
        output_tokens=spent("outputTokens"),
        cache_read_tokens=spent("cachedInputTokens"),
        cache_write_tokens=spent("cacheWriteInputTokens"),
    )


def less(total: dict[str, Any], last: dict[str, Any]) -> dict[str, Any]:
    """`total` as it was before `last` was added."""
    return {name: (read_number(total, name) or 0) - (read_number(last, name) or 0) for name in total}


def _tool_name(item: dict[str, Any], kind: str) -> str:
    match kind:
        case "commandExecution":
            return "shell"
        case "fileChange":
            return "apply_patch"
        case "mcpToolCall":
            return f"{read_text(item, 'server') or 'mcp'}.{read_text(item, 'tool') or ''}"
        case _:
            return read_text(item, "tool") or kind


def _tool_text(item: dict[str, Any], kind: str) -> str:
    if kind == "commandExecution":
        output = read_text(item, "aggregatedOutput")
        return output if output is not None else (read_text(item, "status") or "")
    if kind == "fileChange":
        return read_text(item, "status") or ""
    for name in ("result", "contentItems", "error", "results", "agentsStates"):
        if item.get(name):
            return to_json(item[name])
    return read_text(item, "status") or ""


def _attempt_of(message: str) -> tuple[int, int | None]:
    """The numbers of "Reconnecting... 1/2"; (0, None) where the message has none."""
    words = message.split()
    tail = words[-1].split("/") if words else []
    if len(tail) == 2 and all(word.isascii() and word.isdigit() and len(word) < 6 for word in tail):
        return int(tail[0]), int(tail[1])
    return 0, None
