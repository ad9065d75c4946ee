"""Logs: one JSON object a line on stderr (coloured text on a terminal), masked at one point on the way out.

Everything takes that way: structlog's events, the standard library's loggers (grpc, docker, opentelemetry), warnings,
and exceptions with their traces. The mask is applied to the finished values just before they are rendered.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, TextIO

import structlog
from structlog.contextvars import bound_contextvars
from structlog.typing import Processor

from standfast_chassis.secret_mask import SecretMask
from standfast_chassis.trace_context import current_trace_id

_VALUE_MAX_CHARS = 16_384


def configure_logs(
    service: str,
    mask: SecretMask,
    *,
    level: str = "INFO",
    stream: TextIO | None = None,
    pretty: bool | None = None,
) -> None:
    """Sets up structlog and the standard library's root logger. `stream`: default stderr. `pretty`: default when
    the stream is a terminal. Called once, first thing in a process; again in tests.
    """
    out = stream if stream is not None else sys.stderr
    is_pretty = out.isatty() if pretty is None else pretty
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
        _service_and_trace(service),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    renderer: Processor = (
        structlog.dev.ConsoleRenderer(colors=True) if is_pretty else structlog.processors.JSONRenderer()
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *shared],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _masked(mask),
                renderer,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # One line per request at INFO, with the whole address in it.
    for chatty in ("httpx2", "httpcore2", "urllib3", "docker", "asyncio"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, root.level))
    logging.captureWarnings(capture=True)


@contextmanager
def log_context(
    *,
    tenant: str | None = None,
    conversation_id: str | None = None,
    turn_id: str | None = None,
    **more: str | int | None,
) -> Iterator[None]:
    """Adds these to every event inside the block, in this task and those it starts. None is left out."""
    values = {"tenant": tenant, "conversation_id": conversation_id, "turn_id": turn_id, **more}
    with bound_contextvars(**{key: value for key, value in values.items() if value is not None}):
        yield


def _service_and_trace(service: str) -> Processor:
    def add(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        event.setdefault("service", service)
        if (trace_id := current_trace_id()) is not None:
            event.setdefault("trace_id", trace_id)
        return event

    return add


def _masked(mask: SecretMask) -> Processor:
    def apply(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        masked: dict[str, Any] = mask.value(dict(event))
        return {key: _short(value) for key, value in masked.items()}

    return apply


def _short(value: Any) -> Any:
    # After masking: a cut before it could leave half a secret that no longer matches.
    if isinstance(value, str) and len(value) > _VALUE_MAX_CHARS:
        return f"{value[:_VALUE_MAX_CHARS]}... ({len(value)} characters)"
    return value
