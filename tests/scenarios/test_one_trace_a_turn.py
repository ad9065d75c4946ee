"""All spans of a turn, from three processes, are one trace; nothing of it goes to the provider."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from standfast_chassis import span_names
from standfast_client.sdk import Expect
from tests.otlp_receiver import OtlpReceiver, ReceivedSpan
from tests.scenarios.stage import Stage
from tests.stub_cli.tool_folder import ToolFolder

pytestmark = pytest.mark.engine("local")

# Who must show which span of a turn with one tool call.
WANTED = {
    "standfast-runner": {
        span_names.turn_span("claude-code"),
        span_names.PREPARE,
        span_names.ACTIVATE,
        span_names.ADMIT,
        span_names.NATIVE_TURN,
        span_names.QUIESCE,
        span_names.VERIFY_RUNNER,
        span_names.SETTLE,
    },
    "standfast-manager": {span_names.PREPARE, span_names.ADMIT, span_names.SETTLE, span_names.VERIFY_MANAGER},
    "standfast-host-agent": {span_names.ACTIVATE, span_names.NATIVE_TURN, span_names.QUIESCE},
}


async def test_the_spans_of_a_turn_form_one_trace_across_the_processes(
    short_folder: Callable[[], Path], stub_tools: ToolFolder
) -> None:
    tool = '{"command": "echo hi", "description": "say hi"}'
    async with OtlpReceiver() as receiver:
        async with Stage(short_folder(), stub_tools, otlp_endpoint=receiver.endpoint) as stage:
            told = await stage.ask("c", f"run [[lab:tool=Bash {tool}]]", expect=Expect.NEW)
            assert told.outcome == "COMPLETED"
            assert told.turn.trace_id
            rows = stage.requests()
            assert not any("traceparent" in name.lower() for row in rows for name in row["header_names"])

            def spans() -> list[ReceivedSpan]:
                return [span for span in receiver.spans if span.trace_id == told.turn.trace_id]

            def missing() -> set[tuple[str, str]]:
                seen = {(str(span.resource.get("service.name")), span.name) for span in spans()}
                wanted = {(service, name) for service, names in WANTED.items() for name in names}
                return wanted - seen

            await stage.until("all spans arrived", lambda: not missing(), 20.0)
            found = spans()
            chats = [span for span in found if span.name.startswith("chat")]
            assert len(chats) == len(rows) == 2
            tools = [span for span in found if span.name == span_names.tool_span("Bash")]
            assert len(tools) == 1
        # After the processes' orderly end everything has arrived: one root, and every parent is in the trace.
        found = spans()
        known = {span.span_id for span in found}
        roots = [span for span in found if span.parent_id not in known]
        assert len(roots) == 1, [(span.name, span.resource.get("service.name")) for span in roots]
