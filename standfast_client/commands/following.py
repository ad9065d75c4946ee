"""Follows a turn to its end on the screen, and what Ctrl-C does meanwhile.

first Ctrl-C    the view ends; for 2 s a second one cancels the turn (it is then followed to its end)
with --cancel-on-interrupt: the first one cancels the turn, a second one ends the view
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from standfast.runner.v1 import runner_pb2 as pb
from standfast_client.exit_codes import Exit, exit_of_turn
from standfast_client.screen.turn_views import TurnView
from standfast_client.sdk import StandfastClient
from standfast_client.turn_stream import TurnStream

SECOND_PRESS_S = 2.0
# A cancelled turn is followed this long; the runner's own bound is shorter.
CANCELLED_END_S = 60.0


class Answering(Protocol):
    """Somebody who answers what the agent asks."""

    def event(self, event: pb.TurnEvent) -> None:
        """An event came. Must not wait."""


INTERRUPT_HELP = (
    "Ctrl-C ends the view, not the turn; pressed again within 2 s it cancels the turn. With --cancel-on-interrupt the first "
    "press cancels."
)


async def follow(
    client: StandfastClient,
    conversation_id: str,
    stream: TurnStream,
    view: TurnView,
    *,
    cancel_on_interrupt: bool,
    answering: Answering | None = None,
) -> int:
    """Shows the turn until its last event; returns the exit code. Raises ClientError. `answering` is told what is asked."""
    with _presses() as presses:
        showing = asyncio.create_task(_show(stream, view, answering))
        try:
            if await _shown_before_press(showing, presses):
                return showing.result()
            if not cancel_on_interrupt:
                view.left(conversation_id, stream.turn_id)
                if not await _pressed_within(presses, SECOND_PRESS_S):
                    return Exit.LEFT
            await client.cancel_turn(conversation_id, stream.turn_id)
            async with asyncio.timeout(CANCELLED_END_S):
                if await _shown_before_press(showing, presses):
                    return showing.result()
            view.left(conversation_id, stream.turn_id)
            return Exit.LEFT
        except TimeoutError:
            view.left(conversation_id, stream.turn_id)
            return Exit.LEFT
        finally:
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)


async def _show(stream: TurnStream, view: TurnView, answering: Answering | None) -> int:
    is_gap_told = False
    async for event in stream:
        if stream.resume == pb.RESUME_GAP and not is_gap_told:
            is_gap_told = True
            view.gap()
        view.event(event)
        if answering is not None:
            answering.event(event)
    return exit_of_turn(stream.result)


async def _shown_before_press(showing: asyncio.Task[int], presses: asyncio.Semaphore) -> bool:
    press = asyncio.create_task(presses.acquire())
    try:
        await asyncio.wait({showing, press}, return_when=asyncio.FIRST_COMPLETED)
        return showing.done()
    finally:
        press.cancel()


async def _pressed_within(presses: asyncio.Semaphore, time_s: float) -> bool:
    try:
        async with asyncio.timeout(time_s):
            await presses.acquire()
        return True
    except TimeoutError:
        return False


@contextmanager
def _presses() -> Iterator[asyncio.Semaphore]:
    """Counts Ctrl-C while the block runs."""
    loop = asyncio.get_running_loop()
    presses = asyncio.Semaphore(0)
    loop.add_signal_handler(signal.SIGINT, presses.release)
    try:
        yield presses
    finally:
        loop.remove_signal_handler(signal.SIGINT)
