"""Lets a test hold a process of a fleet at a named step, as a whole: its event loop stops there until the test lets it go, or kills it.

The steps are the spans of the product, at their start or at their end. A test makes `FOLDER/KIND.SPAN.start.hold` (or `.end.hold`);
the process that comes there writes `... .reached` and waits until the hold is gone. So a kill matrix waits for a state, not for a time.
"""

from __future__ import annotations

import time
from pathlib import Path

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider

_POLL_S = 0.005
# A hold that nobody takes away is a fault of the test; the process goes on and the test fails by its own deadline.
_HOLD_MAX_S = 60.0


class Pauses(SpanProcessor):
    """Added to a process's tracer; `kind` as the fleet names it."""

    def __init__(self, folder: Path, kind: str) -> None:
        self._folder = folder
        self._kind = kind

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self._pass(span.name, "start")

    def on_end(self, span: ReadableSpan) -> None:
        self._pass(span.name, "end")

    def _pass(self, span: str, side: str) -> None:
        hold = self._folder / f"{pause_name(self._kind, span, side)}.hold"
        if not hold.exists():
            return
        hold.with_suffix(".reached").touch()
        deadline = time.monotonic() + _HOLD_MAX_S
        while hold.exists() and time.monotonic() < deadline:
            time.sleep(_POLL_S)


def pause_name(kind: str, span: str, side: str) -> str:
    """`manager.verify-manager.start`: the beginning of the files' names."""
    return f"{kind}.{span.replace(' ', '-')}.{side}"


def install(folder: Path, kind: str) -> None:
    """Makes every tracer provider of this process hold there. Called before the process's own modules are imported."""
    make = TracerProvider.__init__

    def made(self: TracerProvider, *args: object, **kwargs: object) -> None:
        make(self, *args, **kwargs)  # type: ignore[arg-type]  # whatever the process gives goes through
        self.add_span_processor(Pauses(folder, kind))

    TracerProvider.__init__ = made  # type: ignore[method-assign]  # the lab's own process only
