"""Spans of a process: parents, errors without texts, real export to a receiver, and a dead backend delays nobody."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from standfast_chassis import span_names
from standfast_chassis.errors import StandfastError
from standfast_chassis.trace_context import context_from_traceparent, current_trace_id, current_traceparent
from standfast_chassis.tracing import Tracing, configure_tracing
from tests.otlp_receiver import OtlpReceiver

REPOSITORY = Path(__file__).parents[3]


class RefusedError(StandfastError):
    reason = "TEST_REFUSED"


@pytest.fixture
async def made() -> AsyncIterator[tuple[Tracing, InMemorySpanExporter]]:
    exporter = InMemorySpanExporter()
    tracing = configure_tracing("test", exporter=exporter)
    yield tracing, exporter
    await tracing.shutdown()


async def test_spans_nest_and_unknown_attributes_are_left_out(made: tuple[Tracing, InMemorySpanExporter]) -> None:
    tracing, exporter = made
    assert current_traceparent() is None
    assert current_trace_id() is None
    with (
        tracing.span(span_names.turn_span("codex"), {span_names.GEN_AI_AGENT_NAME: "codex"}) as outer,
        tracing.span(span_names.SETTLE, {span_names.GEN_AI_USAGE_INPUT_TOKENS: None}),
    ):
        assert current_trace_id() == f"{outer.get_span_context().trace_id:032x}"
    inner_span, outer_span = exporter.get_finished_spans()
    assert (inner_span.name, outer_span.name) == ("settle", "invoke_agent codex")
    assert inner_span.parent == outer_span.context
    assert inner_span.attributes == {}


@pytest.mark.parametrize(
    ("error", "expected"), [(RefusedError("sk-secret"), "TEST_REFUSED"), (LookupError("sk-secret"), "LookupError")]
)
async def test_an_exception_sets_error_and_its_type_but_never_its_text(
    made: tuple[Tracing, InMemorySpanExporter], error: Exception, expected: str
) -> None:
    tracing, exporter = made
    with pytest.raises(type(error)), tracing.span("prepare"):
        raise error
    (span,) = exporter.get_finished_spans()
    assert (span.status.status_code.name, span.attributes) == ("ERROR", {"error.type": expected})
    assert "sk-secret" not in span.to_json()


async def test_a_traceparent_joins_what_is_on_the_other_side(made: tuple[Tracing, InMemorySpanExporter]) -> None:
    tracing, exporter = made
    with tracing.span("turn"):
        traceparent = current_traceparent()
    with tracing.span_from_traceparent(span_names.model_span("m"), traceparent):
        pass
    turn, model = exporter.get_finished_spans()
    assert model.parent is not None
    assert turn.context is not None
    assert (model.parent.trace_id, model.parent.span_id) == (turn.context.trace_id, turn.context.span_id)
    assert model.name == "chat m"


@pytest.mark.parametrize("traceparent", [None, "", "rubbish", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
async def test_a_missing_or_malformed_traceparent_starts_a_trace(
    made: tuple[Tracing, InMemorySpanExporter], traceparent: str | None
) -> None:
    tracing, exporter = made
    with tracing.span("around"), tracing.span_from_traceparent("inner", traceparent):
        pass
    inner, around = exporter.get_finished_spans()
    assert inner.parent is None
    assert inner.context is not None
    assert around.context is not None
    assert inner.context.trace_id != around.context.trace_id
    assert not context_from_traceparent(traceparent)


async def test_spans_arrive_at_a_real_receiver_with_the_process_that_made_them() -> None:
    async with OtlpReceiver() as receiver:
        tracing = configure_tracing(
            "runner", receiver.endpoint, service_version="1", release_sha="abc", resource_attributes={"host.id": "h"}
        )
        with tracing.span("turn"), tracing.span("prepare", {"standfast.slot": 3}):
            pass
        await tracing.shutdown()
        prepare = await receiver.wait_for_span("prepare")
        turn = await receiver.wait_for_span("turn")
    assert (prepare.parent_id, prepare.trace_id) == (turn.span_id, turn.trace_id)
    assert prepare.attributes == {"standfast.slot": 3}
    assert prepare.end_ns >= prepare.start_ns
    assert {
        "service.name": "runner",
        "service.version": "1",
        "host.id": "h",
        "standfast.release.sha": "abc",
    }.items() <= prepare.resource.items()


async def test_two_tracings_in_one_process_stay_apart() -> None:
    async with OtlpReceiver() as receiver:
        runner, manager = (
            configure_tracing("runner", receiver.endpoint),
            configure_tracing("manager", receiver.endpoint),
        )
        with runner.span("turn"), manager.span("verify manager"):
            pass
        await asyncio.gather(runner.shutdown(), manager.shutdown())
        turn = await receiver.wait_for_span("turn")
        verify = await receiver.wait_for_span("verify manager")
    assert (turn.resource["service.name"], verify.resource["service.name"]) == ("runner", "manager")
    assert verify.parent_id == turn.span_id


@pytest.mark.parametrize("is_listening", [False, True], ids=["nobody there", "never answers"])
async def test_a_dead_backend_delays_neither_spans_nor_the_end(is_listening: bool) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if is_listening:
            silent.listen()
        tracing = configure_tracing("runner", f"127.0.0.1:{silent.getsockname()[1]}")
        began = time.monotonic()
        for _ in range(1000):
            with tracing.span("turn"):
                pass
        spans_took_s = time.monotonic() - began
        loop_lag_s = 0.0

        async def watch() -> None:
            nonlocal loop_lag_s
            while True:
                before = time.monotonic()
                await asyncio.sleep(0.01)
                loop_lag_s = max(loop_lag_s, time.monotonic() - before - 0.01)

        watcher = asyncio.create_task(watch())
        began = time.monotonic()
        await tracing.shutdown(timeout_s=1.5)
        shutdown_took_s = time.monotonic() - began
        watcher.cancel()
        # Not part of the claim: its threads go on for a moment, and would write into the log of the next test.
        for thread in threading.enumerate():
            if thread.name.startswith(("OtelBatch", "trace-flush")):
                await asyncio.to_thread(thread.join, 30)
    assert spans_took_s < 2
    assert shutdown_took_s < 3
    assert loop_lag_s < 1


def test_without_an_endpoint_the_exporter_is_not_even_imported() -> None:
    script = (
        "import sys\n"
        "from standfast_chassis.tracing import configure_tracing, current_trace_id\n"
        "tracing = configure_tracing('runner')\n"
        "with tracing.span('turn'):\n"
        "    assert len(current_trace_id()) == 32\n"
        "print([name for name in sys.modules if 'exporter.otlp' in name or name.startswith('opentelemetry.proto')])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=REPOSITORY, check=True)
    assert done.stdout.strip() == "[]"


async def test_shutdown_may_be_called_again(made: tuple[Tracing, InMemorySpanExporter]) -> None:
    tracing, _ = made
    await tracing.shutdown()
    await tracing.shutdown()
