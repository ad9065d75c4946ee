"""One turn of the product as its client sees it, with the times at which things came."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from standfast.runner.v1 import runner_pb2 as pb
from standfast.types.v1 import types_pb2 as types
from standfast_client.sdk import Expect, StandfastClient

_TURN_TIMEOUT_S = 120.0


class UnfitTurnError(Exception):
    """A turn did not end as the measurement needs it: its times would be those of something else."""


@dataclass(frozen=True, slots=True)
class TimedTurn:
    """Milliseconds from the call. `first`: the first piece of text; `last`: the last whole text; `ended`: the native turn is over."""

    first_ms: float
    last_ms: float
    ended_ms: float
    settled_ms: float
    turn: pb.Turn

    @property
    def state(self) -> str:
        """NEW, LIVE, RESTORED."""
        return types.ContextState.Name(self.turn.context_state).removeprefix("CONTEXT_STATE_")


async def timed_turn(client: StandfastClient, conversation: str, message: str, expected_state: str) -> TimedTurn:
    """Runs one turn to its end. Raises UnfitTurnError unless it completed in the expected state."""
    expect = Expect.NEW if expected_state == "NEW" else Expect.CONTINUE
    first = last = ended = None
    begun = time.perf_counter()
    stream = client.start_turn(conversation, message, expect=expect)
    async with asyncio.timeout(_TURN_TIMEOUT_S):
        async for event in stream:
            now = (time.perf_counter() - begun) * 1000
            match event.WhichOneof("body"):
                case "text_delta":
                    first = first or now
                case "assistant_message":
                    last = now
                case "ended":
                    ended = now
                case _:
                    pass
    settled = (time.perf_counter() - begun) * 1000
    turn = stream.result
    outcome = types.Outcome.Name(turn.outcome).removeprefix("OUTCOME_")
    state = types.ContextState.Name(turn.context_state).removeprefix("CONTEXT_STATE_")
    if outcome != "COMPLETED" or state != expected_state or first is None or last is None or ended is None:
        raise UnfitTurnError(
            f"expected a COMPLETED {expected_state} turn with text, found {outcome} {state} "
            f"({turn.failure.reason or turn.context_reason}: {turn.failure.message})"
        )
    return TimedTurn(first, last, ended, settled, turn)
