"""A running turn's events on their way to the record and to the clients that watch.

    publish ──▶ waiting ──▶ one write of all that waits ──▶ tail (newest, in memory) ──▶ views
                                        └──────────────▶ record ──────────────────────▶ views that are behind

An event reaches a client only when it is in the record. Views go at their own pace: one that falls behind the tail reads the
record. The waiting part is bounded by `room`, on which the reader of the CLI's output waits.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import AsyncGenerator

import structlog

from runner.adapters.event_store import EventStore, NumberedEvent
from runner.adapters.turn_store import StoredTurn, TurnStore
from runner.core.ledger import Ledger, Resume, resume_of
from runner.core.values import Cause, NativeLocator, TurnKey
from standfast.runner.v1 import runner_pb2
from standfast_chassis.errors import StoreError

_log = structlog.get_logger("standfast.runner.feed")

WAITING_MAX = 2000  # events
TAIL_MAX_BYTES = 256 * 1024
RAW_MAX_BYTES = 512 * 1024
PAGE = 200  # events a view reads from the record at once
_RETRY_S = 1.0


class TurnFeed:
    """One turn's events. `run` writes them until `close`; make it a task of the turn's group."""

    def __init__(self, key: TurnKey, store: TurnStore, events: EventStore, ledger: Ledger) -> None:
        self.key = key
        self.ledger = ledger
        self.recorded_sequence = ledger.last_sequence
        self.refusal: Cause | None = None
        self.is_closed = False
        self._store = store
        self._events = events
        self._waiting: list[tuple[runner_pb2.TurnEvent, int]] = []  # with the count of driver events so far
        self._tail: deque[tuple[runner_pb2.TurnEvent, int]] = deque()  # with its size
        self._tail_bytes = 0
        self._raw: deque[tuple[int, int, bytes]] = deque()  # number of the frame, the sequence it follows, its bytes
        self._raw_bytes = 0
        self._raw_count = 0
        self._write_lock = asyncio.Lock()
        self._has_waiting = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._changed = asyncio.Event()

    # --- in -----------------------------------------------------------------------------------------------------------
    def publish(self, event: runner_pb2.TurnEvent, *, from_driver: bool = False) -> None:
        """Numbers the event and puts it on its way."""
        event.sequence = self.ledger.number(from_driver=from_driver)
        event.time.FromNanoseconds(time.time_ns())
        self._waiting.append((event, self.ledger.from_driver))
        self._has_waiting.set()
        if len(self._waiting) >= WAITING_MAX:
            self._has_room.clear()

    def add_raw(self, frame: bytes) -> None:
        """A raw frame, for views that ask for it: kept in memory while the turn runs, the newest first to stay."""
        self._raw.append((self._raw_count, self.ledger.last_sequence, frame))
        self._raw_count += 1
        self._raw_bytes += len(frame)
        while self._raw_bytes > RAW_MAX_BYTES and len(self._raw) > 1:
            self._raw_bytes -= len(self._raw.popleft()[2])

    async def room(self) -> None:
        """Waits while too much waits to be recorded."""
        await self._has_room.wait()

    async def run(self) -> None:
        """Records what is published, as long as it is not cancelled. A store that fails is tried again."""
        while True:
            await self._has_waiting.wait()
            async with self._write_lock:
                batch = self._take()
                while batch:
                    try:
                        await self._events.append(self.key, _numbered(batch))
                        break
                    except StoreError as error:
                        _log.error("events cannot be recorded", turn=str(self.key), reason=error.reason)
                        await asyncio.sleep(_RETRY_S)
                    except asyncio.CancelledError:
                        self._put_back(batch)  # the write may or may not have begun; the same numbers may go twice
                        raise
                self._show(batch)

    async def flush(self) -> None:
        """Records what waits, when the turn's task ends before the turn."""
        async with self._write_lock:
            batch = self._take()
            await self._events.append(self.key, _numbered(batch))
            self._show(batch)

    async def close(
        self,
        snapshot: runner_pb2.Turn,
        *,
        refusal: Cause | None = None,
        save: NativeLocator | None = None,
    ) -> None:
        """Records what waits and the turn's end, then ends all views: with TurnSettled, or a refused turn with its status.

        The end is one synced transaction of the turn and its locator. Raises what the stores raise, and changes nothing
        then.
        """
        async with self._write_lock:
            batch = self._take()
            last_sequence = self.ledger.last_sequence + (1 if refusal is None else 0)
            snapshot.last_sequence = last_sequence
            try:
                await self._events.append(self.key, _numbered(batch))
                await self._store.finish(self.key, snapshot=snapshot, refusal=refusal, save=save)
            except BaseException:
                self._put_back(batch)
                raise
            if refusal is None:
                batch.append((settled_event(snapshot), self.ledger.from_driver))
            self.ledger.last_sequence = last_sequence
            self.refusal = refusal
            self.is_closed = True
            self._show(batch)

    def abandon(self, cause: Cause) -> None:
        """The turn is forgotten: views end with this cause."""
        self.refusal = cause
        self.is_closed = True
        self._notify()

    def _take(self) -> list[tuple[runner_pb2.TurnEvent, int]]:
        batch, self._waiting = self._waiting, []
        self._has_waiting.clear()
        self._has_room.set()
        return batch

    def _put_back(self, batch: list[tuple[runner_pb2.TurnEvent, int]]) -> None:
        self._waiting[:0] = batch
        self._has_waiting.set()

    def _show(self, batch: list[tuple[runner_pb2.TurnEvent, int]]) -> None:
        for event, _ in batch:
            size = event.ByteSize()
            self._tail.append((event, size))
            self._tail_bytes += size
            self.recorded_sequence = event.sequence
        while self._tail_bytes > TAIL_MAX_BYTES and len(self._tail) > 1:
            self._tail_bytes -= self._tail.popleft()[1]
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    # --- out ----------------------------------------------------------------------------------------------------------
    async def resume(self, after_sequence: int) -> Resume:
        """Whether the replay after that number is whole."""
        last = self.recorded_sequence
        kept = await self._events.kept(self.key)
        first = kept.first if kept is not None else last + 1
        return resume_of(after_sequence=after_sequence, first_kept=first, last_kept=last, last_sequence=last)

    async def view(self, after_sequence: int, *, include_raw: bool) -> AsyncGenerator[runner_pb2.TurnEvent, None]:
        """Every recorded event with a greater sequence, then the new ones, to the turn's end."""
        # A number that was never given here (a power loss took its events) holds nothing back: the view goes on from now.
        next_sequence = max(min(after_sequence, self.recorded_sequence) + 1, 1)
        next_raw = 0
        while True:
            changed = self._changed
            batch = self._from_tail(next_sequence)
            if not batch and next_sequence <= self.recorded_sequence:
                batch = await self._from_record(next_sequence)
            for event in batch:
                if include_raw:
                    for raw in self._raw_between(next_raw, event.sequence):
                        next_raw = raw[0] + 1
                        yield _raw_event(raw)
                yield event
                next_sequence = event.sequence + 1
            if batch:
                continue
            if include_raw:
                for raw in self._raw_between(next_raw, self.recorded_sequence + 1):
                    next_raw = raw[0] + 1
                    yield _raw_event(raw)
            if self.is_closed:
                return
            await changed.wait()

    def _from_tail(self, next_sequence: int) -> list[runner_pb2.TurnEvent]:
        if not self._tail or self._tail[0][0].sequence > next_sequence:
            return []
        # From the newest back: a view that keeps up takes one event of thousands.
        behind = itertools.takewhile(
            lambda event: event.sequence >= next_sequence, (e for e, _ in reversed(self._tail))
        )
        return list(behind)[::-1]

    async def _from_record(self, next_sequence: int) -> list[runner_pb2.TurnEvent]:
        kept = await self._events.events(self.key, after_sequence=next_sequence - 1, limit=PAGE)
        return [runner_pb2.TurnEvent.FromString(event.event) for event in kept]

    def _raw_between(self, first: int, before_sequence: int) -> list[tuple[int, int, bytes]]:
        return [raw for raw in self._raw if raw[0] >= first and raw[1] < before_sequence]


def _raw_event(raw: tuple[int, int, bytes]) -> runner_pb2.TurnEvent:
    # It carries the number of the event before it: the numbers of those who ask for none stay without gaps.
    return runner_pb2.TurnEvent(sequence=raw[1], raw_frame=runner_pb2.RawFrame(frame=raw[2]))


def _numbered(batch: list[tuple[runner_pb2.TurnEvent, int]]) -> list[NumberedEvent]:
    return [NumberedEvent(event.sequence, count, event.SerializeToString()) for event, count in batch]


def settled_event(turn: runner_pb2.Turn) -> runner_pb2.TurnEvent:
    """The last event of a turn that is over: the turn itself."""
    return runner_pb2.TurnEvent(
        sequence=turn.last_sequence, time=turn.ended_at, settled=runner_pb2.TurnSettled(turn=turn)
    )


async def stored_resume(events: EventStore, stored: StoredTurn, after_sequence: int) -> Resume:
    """Whether the replay of a turn that is over is whole."""
    last = stored.snapshot.last_sequence
    recorded = last if stored.refusal is not None else last - 1  # TurnSettled is the turn itself
    kept = await events.kept(stored.key)
    if after_sequence >= recorded or kept is None:
        is_whole = recorded <= after_sequence <= last
        return Resume.OK if is_whole else Resume.GAP
    return resume_of(after_sequence=after_sequence, first_kept=kept.first, last_kept=kept.last, last_sequence=recorded)


async def stored_view(
    events: EventStore, stored: StoredTurn, after_sequence: int
) -> AsyncGenerator[runner_pb2.TurnEvent, None]:
    """The events of a turn that is over."""
    next_after = after_sequence
    while kept := await events.events(stored.key, after_sequence=next_after, limit=PAGE):
        for event in kept:
            yield runner_pb2.TurnEvent.FromString(event.event)
        next_after = kept[-1].sequence
    # Also after a number that this turn does not have: how it ended is told in any case.
    if stored.refusal is None and after_sequence != stored.snapshot.last_sequence:
        yield settled_event(stored.snapshot)
