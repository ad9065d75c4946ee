"""The native requests of one running turn: shown to clients, answered once, expired. It performs what the machine decides.

`PendingRequests` decides; this file writes frames, publishes events and times expiries. The turn's own task calls it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress

from runner.adapters.wire import request_end_to_wire, request_to_wire
from runner.conductor.attached import AttachedReader
from runner.conductor.desk import Desk
from runner.conductor.timers import Timers
from runner.core.answers import Answer
from runner.core.events import NativeRequest, RequestWithdrawn
from runner.core.pending_requests import (
    Answered,
    Asked,
    Effect,
    Event,
    Expired,
    PendingRequests,
    RefuseNatively,
    SendAnswer,
    ShowEnd,
    ShowRequest,
    StopUnanswered,
    TurnStopping,
    Withdrawn,
)
from runner.core.turn import StopRequested
from runner.core.values import Cause, Outcome
from standfast.runner.v1 import runner_pb2
from standfast_chassis.errors import StandfastError


class Asking:
    """One turn's native requests, from its grant on."""

    def __init__(self, desk: Desk, timers: Timers, *, mode: str, expiry_s: float) -> None:
        self._desk = desk
        self._timers = timers
        self._expiry_s = expiry_s
        self._pending = PendingRequests(mode, rejects_questions=desk.agent.rejects_questions)
        self._expires_at_ns: dict[str, int] = {}

    @property
    def waits(self) -> bool:
        """Whether the CLI waits for a person: its silence then says nothing."""
        return bool(self._pending.open)

    def expiry_of(self, request: NativeRequest) -> float | None:
        """Seconds that a person has to answer it; None for one that nobody is waited for."""
        return self._expiry_s if self._pending.would_wait(request) else None

    def pending(self) -> list[runner_pb2.PendingRequest]:
        """Those that wait, in the order in which they came."""
        found = []
        for request in self._pending.open:
            shown = request_to_wire(request)
            shown.expires_at.FromNanoseconds(self._expires_at_ns[request.request_id])
            found.append(
                runner_pb2.PendingRequest(
                    turn_id=self._desk.key.turn_id, request=shown, parent_id=request.parent_id or ""
                )
            )
        return found

    async def take(self, came: Sequence[NativeRequest | RequestWithdrawn]) -> StopRequested | None:
        """What the CLI asked or took back. Gives a stop of the turn, where one follows."""
        stop: StopRequested | None = None
        for one in came:
            event: Event = Asked(one) if isinstance(one, NativeRequest) else Withdrawn(one.request_id)
            stop = await self._perform(self._pending.step(event), {}) or stop
        return stop

    async def answer(self, request_id: str, answer: Answer) -> None:
        """A client's answer; it was written when this returns. Raises what PendingRequests and the driver raise."""
        frames: dict[str, list[bytes]] = {}
        reader = self._desk.reader
        if reader is not None and self._pending.is_open(request_id):
            # Before it counts as answered: a driver may know better what shape its CLI wants.
            frames[request_id] = reader.answer_frames(request_id, answer)
        await self._perform(self._pending.step(Answered(request_id, answer)), frames)

    async def expire(self, event: Expired) -> StopRequested | None:
        """A wait is over. Gives a stop of the turn, where one follows."""
        return await self._perform(self._pending.step(event), {})

    def stop(self) -> None:
        """The turn ends, or was told to: what is open is cancelled. The native interrupt tells the CLI."""
        for effect in self._pending.step(TurnStopping()):
            self._show_end(effect)

    async def _perform(self, effects: list[Effect], frames: dict[str, list[bytes]]) -> StopRequested | None:
        stop: StopRequested | None = None
        reader = self._desk.reader
        assert reader is not None
        for effect in effects:
            match effect:
                case ShowRequest(request, waits):
                    if waits:
                        self._expires_at_ns[request.request_id] = time.time_ns() + int(self._expiry_s * 1e9)
                        self._timers.arm(_timer(request.request_id), self._expiry_s, Expired(request.request_id))
                case SendAnswer(request_id, answer):
                    await self._send(reader, request_id, answer, frames)
                case RefuseNatively(request_id):
                    self._desk.warn(
                        "NATIVE_REQUEST_REFUSED",
                        "The CLI asked for something that nobody here can answer; it was refused.",
                    )
                    with suppress(StandfastError):  # how the stream ended, its reader learns
                        await reader.refuse_request(request_id)
                case StopUnanswered(request_id):
                    cause = Cause(
                        "UNANSWERED_QUESTION",
                        f"The CLI asked and nobody answered within {self._expiry_s:g} s.",
                        (("request_id", request_id),),
                    )
                    stop = StopRequested(Outcome.UNANSWERED_QUESTION, cause)
                case ShowEnd():
                    self._show_end(effect)
        return stop

    async def _send(
        self, reader: AttachedReader, request_id: str, answer: Answer, frames: dict[str, list[bytes]]
    ) -> None:
        made = frames.get(request_id)
        if made is None:
            made = reader.answer_frames(request_id, answer)
        with suppress(StandfastError):  # as above
            await reader.send_frames(made)
        # From now on it is the CLI's silence again, and not a person's.
        reader.last_output_at = asyncio.get_running_loop().time()

    def _show_end(self, effect: Effect) -> None:
        if isinstance(effect, ShowEnd):
            self._timers.disarm(_timer(effect.request_id))
            self._expires_at_ns.pop(effect.request_id, None)
            self._desk.feed.publish(request_end_to_wire(effect.request_id, effect.state, effect.answer))


def _timer(request_id: str) -> str:
    return f"request {request_id}"
