"""The spans of one activation. What is still open at its end is ended with it."""

from __future__ import annotations

from opentelemetry.trace import Span

from sandbox_manager.host.core.grant import Grant
from standfast_chassis import span_names
from standfast_chassis.tracing import Tracing, set_error


class ActivationSpans:
    """Begins and ends the host agent's spans of a turn, by their names."""

    def __init__(self, tracing: Tracing, grant: Grant, slot: int) -> None:
        self._tracing = tracing
        self._attributes: dict[str, str | int] = {
            span_names.STANDFAST_TURN_ID: grant.turn_id,
            span_names.STANDFAST_GROUP_ID: grant.group_id,
            span_names.STANDFAST_SLOT: slot,
        }
        self._open: dict[str, Span] = {}

    def begin(self, name: str) -> None:
        """Begins one."""
        self._open[name] = self._tracing.start_span(name, dict(self._attributes))

    def end(self, name: str) -> None:
        """Ends it, if it is open."""
        span = self._open.pop(name, None)
        if span is not None:
            span.end()

    def fail(self, reason: str) -> None:
        """Marks what is open as failed."""
        for span in self._open.values():
            set_error(span, reason)

    def close(self) -> None:
        """Ends all of them."""
        for name in list(self._open):
            self.end(name)
