"""One trace a turn: the runner's spans hang together, and its neighbours are called inside them."""

from __future__ import annotations

from pathlib import Path

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from standfast_chassis import span_names
from standfast_chassis.tracing import configure_tracing
from tests.wire.runner_house import Cli, house_in


def by_name(spans: tuple[ReadableSpan, ...], name: str) -> ReadableSpan:
    found = [span for span in spans if span.name == name]
    assert len(found) == 1, f"{name}: {len(found)} of {sorted(span.name for span in spans)}"
    return found[0]


async def test_the_spans_of_a_turn_form_one_trace_under_the_turn(tmp_path: Path) -> None:
    exporter = InMemorySpanExporter()
    tracing = configure_tracing("runner", exporter=exporter)
    seen: list[str] = []

    async def watching(cli: Cli) -> None:
        seen.extend(str(value) for key, value in cli.context.invocation_metadata() or () if key == "traceparent")
        await cli.activate()
        await cli.take_message()
        await cli.answer()

    async with house_in(tmp_path / "state", tracing=tracing) as house:
        house.host.scripts = [watching]
        told = await house.turn("t1")
        assert told.outcome == "COMPLETED"
        await house.stop_runner()  # the spans of calls end in tasks of their own
    spans = exporter.get_finished_spans()
    turn = by_name(spans, "invoke_agent claude-code")
    assert turn.context is not None
    trace_id = f"{turn.context.trace_id:032x}"
    assert told.turn.trace_id == trace_id
    for name in (
        span_names.PREPARE,
        span_names.ACTIVATE,
        span_names.ADMIT,
        span_names.NATIVE_TURN,
        span_names.QUIESCE,
        span_names.VERIFY_RUNNER,
        span_names.SETTLE,
        "standfast.host.v1.HostAgentService/Attach",
    ):
        span = by_name(spans, name)
        assert span.parent is not None
        assert span.parent.span_id == turn.context.span_id, name
    settle_call = by_name(spans, "standfast.sandbox.v1.SandboxManagerService/SettleTurn")
    settle = by_name(spans, span_names.SETTLE)
    assert settle_call.parent is not None
    assert settle.context is not None
    assert settle_call.parent.span_id == settle.context.span_id
    assert [value.split("-")[1] for value in seen] == [trace_id]
    assert turn.attributes is not None
    assert turn.attributes[span_names.STANDFAST_TURN_OUTCOME] == "COMPLETED"
    assert turn.attributes[span_names.STANDFAST_CONTEXT_STATE] == "NEW"
    assert turn.attributes[span_names.GEN_AI_CONVERSATION_ID] == "c1"
