"""A span for each of the turn's tool calls, from the call to its result, as the CLI prints them, below the turn's own span.

Nothing of a tool's input or output is in them. The CLI runs the tools; what is told here is when it said so.
"""

from __future__ import annotations

from collections import OrderedDict

from opentelemetry.trace import Span

from runner.core.events import Fact, Normalised, ToolCall, ToolResult
from standfast_chassis import span_names
from standfast_chassis.tracing import Tracing, set_error

_OPEN_MAX = 256


class ToolSpans:
    """Of one activation. `close` ends what is still open."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing
        self._open: OrderedDict[str, Span] = OrderedDict()

    def observe(self, body: Fact | Normalised) -> None:
        """Takes one event of the driver."""
        match body:
            case ToolCall(call_id, tool, _, _):
                self._begin(call_id, tool)
            case ToolResult(call_id, _, is_error, _):
                span = self._open.pop(call_id, None)
                if span is not None:
                    if is_error:
                        set_error(span, "TOOL_FAILED")
                    span.end()
            case _:
                pass

    def close(self) -> None:
        """May be called again."""
        while self._open:
            self._open.popitem()[1].end()

    def _begin(self, call_id: str, tool: str) -> None:
        if call_id in self._open:
            return
        if len(self._open) >= _OPEN_MAX:
            self._open.popitem(last=False)[1].end()
        self._open[call_id] = self._tracing.start_span(
            span_names.tool_span(tool),
            {
                span_names.GEN_AI_OPERATION_NAME: span_names.OPERATION_TOOL,
                span_names.GEN_AI_TOOL_NAME: tool,
                span_names.GEN_AI_TOOL_CALL_ID: call_id,
            },
        )
