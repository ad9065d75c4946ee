"""Reads an activation's bytes again from the host agent's journal, and judges them as if they had just come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from runner.conductor.parts import Parts
from runner.conductor.retries import ask
from runner.core.errors import ReasonedError
from runner.core.events import (
    AssistantMessage,
    NativeRequest,
    NativeTurnEnded,
    Normalised,
    ProviderRetry,
    TextDelta,
    ToolCall,
    ToolResult,
    Usage,
    Warned,
)
from runner.core.identity import IdentityJudge
from runner.core.values import NativeLocator
from runner.drivers.port import Opening
from runner.drivers.registry import AgentEntry

_log = structlog.get_logger("standfast.runner.replay")

NORMALISED = (
    TextDelta,
    AssistantMessage,
    ToolCall,
    ToolResult,
    Usage,
    ProviderRetry,
    Warned,
    NativeRequest,
)


@dataclass(frozen=True, slots=True)
class Activation:
    """Where an activation's bytes lie and what they must name."""

    activation_id: str
    host_address: str
    message_id: str
    locator: NativeLocator


@dataclass(frozen=True, slots=True)
class Replayed:
    """What the bytes came to."""

    judge: IdentityJudge
    native_end: NativeTurnEnded | None


async def replay(
    parts: Parts,
    agent: AgentEntry,
    activation: Activation,
    *,
    publish: Callable[[Normalised], None],
    for_s: float | None,
) -> Replayed:
    """Reads the tap from the activation's own first byte. `publish` gets what a client may see, in order.

    A journal that has no bytes of it any more gives an empty reading, which confirms nothing. Raises
    HostUnavailableError when the host agent stays away for `for_s` (None: asks as long as the task lives).
    """
    limits = parts.limits
    pieces = await ask(
        lambda: _read(parts, activation),
        what="the journalled output",
        first_s=limits.retry_first_s,
        max_s=limits.retry_max_s,
        for_s=for_s,
    )
    locator = activation.locator
    judge = IdentityJudge(locator.native_session_id, naming=agent.naming_frames, checks=parts.policy.check_identity)
    start = pieces[0][0] if pieces else 0
    # Nothing is written now, so the settings do not matter.
    opening = Opening(start, locator.native_session_id, locator.store, resumes=True, workspace=locator.cwd)
    driver = agent.make_driver(opening)
    driver.expect(process_is_new=start == 0, message_id=activation.message_id)
    native_end: NativeTurnEnded | None = None
    expected_offset = start
    events = []
    for offset, data in pieces:
        if offset != expected_offset:
            judge.observe_gap()
        expected_offset = offset + len(data)
        events += driver.feed(data)
    for event in [*events, *driver.end_of_stream()]:
        judge.observe(event.body)
        if isinstance(event.body, NativeTurnEnded):
            native_end = event.body
        elif isinstance(event.body, NORMALISED) and judge.contradiction is None:
            publish(event.body)
    return Replayed(judge, native_end)


async def _read(parts: Parts, activation: Activation) -> list[tuple[int, bytes]]:
    # Whole before it is used: a reading that breaks off and begins anew must not be judged twice. The host agent
    # keeps at most 64 MiB of an activation.
    try:
        return [
            piece
            async for piece in parts.hosts.read_tap(
                activation.host_address, activation.activation_id, timeout_s=parts.limits.replay_timeout_s
            )
        ]
    except ReasonedError as error:
        if error.reason != "ACTIVATION_UNKNOWN":
            raise
        _log.warning("the journal has no bytes of this activation", activation_id=activation.activation_id)
        return []
