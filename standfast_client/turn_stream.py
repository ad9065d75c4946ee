"""A view of one turn: its events in order, without gaps or repeats, over as many calls as it takes.

    start ──first event──▶ FOLLOWING ──settled──▶ over
      │                     │    ▲
      └─error─▶ raised      └cut─┘ watch again after the last number, until the patience is over

A cut before the first event is raised as it is: the caller decides whether to try again (with the same turn_id, which never runs
twice).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator

import grpc

from standfast.runner.v1 import runner_pb2 as pb
from standfast.runner.v1 import runner_pb2_grpc as rpc
from standfast.types.v1 import types_pb2 as types
from standfast_chassis.grpc_channel import cancelled_on_exit
from standfast_chassis.rpc_status import RemoteError, remote_errors
from standfast_client.errors import FaultError, client_error

RECONNECT_PAUSE_S = 0.2
# What a server that goes down, or a connection that breaks, leaves of a stream.
_CUTS = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})


class TurnStream:
    """Iterate it once. `result` is the turn as it ended, after the last event; `resume` what the last replay said."""

    def __init__(
        self,
        stub: rpc.RunnerServiceAsyncStub,
        conversation: types.ConversationKey,
        turn_id: str,
        *,
        start: pb.StartTurnRequest | None = None,
        after_sequence: int = 0,
        include_raw: bool = False,
        patience_s: float,
    ) -> None:
        self._stub = stub
        self._conversation = conversation
        self._start = start
        self._include_raw = start.include_raw if start is not None else include_raw
        self._patience_s = patience_s
        self.turn_id = turn_id
        self.last_sequence = after_sequence
        self.resume: pb.Resume.ValueType | None = None
        self._result: pb.Turn | None = None
        # A raw frame has no number of its own: it carries that of the event before it, and a new view replays all that are kept.
        self._raw_from = after_sequence
        self._raw_told: Counter[int] = Counter()

    @property
    def result(self) -> pb.Turn:
        """The turn as its last event gave it. Raises FaultError when the stream has not come that far."""
        if self._result is None:
            raise FaultError(f"turn {self.turn_id} has not given its last event")
        return self._result

    async def __aiter__(self) -> AsyncIterator[pb.TurnEvent]:
        cut_since: float | None = None
        is_following = False
        while True:
            raw_here: Counter[int] = Counter()
            try:
                with remote_errors():
                    async for event in self._events(self._start if not is_following else None):
                        is_following, cut_since = True, None
                        if event.HasField("raw_frame"):
                            if self._is_new_raw(event.sequence, raw_here):
                                yield event
                            continue
                        # After a gap the end may have a lower number than what was seen before: it is told once, in any case.
                        is_the_end = event.HasField("settled") and self._result is None
                        if event.sequence <= self.last_sequence and not is_the_end:
                            continue
                        self.last_sequence = event.sequence
                        if event.HasField("settled"):
                            self._result = event.settled.turn
                        yield event
                if self._result is not None:
                    return
                # The stream ended in order but without the last event: the view is taken up like a cut one.
                broken: RemoteError | None = None
            except RemoteError as error:
                is_cut = error.code in _CUTS and not error.has_error_info
                if not (is_cut and is_following):
                    raise client_error(error) from error
                broken = error
            cut_since = cut_since if cut_since is not None else time.monotonic()
            if time.monotonic() - cut_since >= self._patience_s:
                if broken is None:
                    raise FaultError(f"turn {self.turn_id}: its stream ends again and again without its last event")
                raise client_error(broken)
            await asyncio.sleep(RECONNECT_PAUSE_S)

    def _is_new_raw(self, sequence: int, raw_here: Counter[int]) -> bool:
        """Whether this raw frame of a view was not told by the view before it."""
        raw_here[sequence] += 1
        if sequence < self._raw_from or raw_here[sequence] <= self._raw_told[sequence]:
            return False
        self._raw_told[sequence] += 1
        return True

    async def _events(self, start: pb.StartTurnRequest | None) -> AsyncIterator[pb.TurnEvent]:
        if start is not None:
            with cancelled_on_exit(self._stub.StartTurn(start)) as call:
                async for answer in call:
                    yield answer.event
            return
        request = pb.WatchTurnRequest(
            conversation=self._conversation,
            turn_id=self.turn_id,
            after_sequence=self.last_sequence,
            include_raw=self._include_raw,
        )
        with cancelled_on_exit(self._stub.WatchTurn(request)) as watching:
            async for said in watching:
                if said.resume != pb.RESUME_UNSPECIFIED:
                    self.resume = said.resume
                if said.HasField("event"):
                    yield said.event
