"""The messages that wait for their turn, of all conversations: what is durable of them, and what their viewers see.

`MessageQueue` decides the order; the conductor begins the turns. A turn that waits has its record, its feed and its viewers like
one that runs: only its task is missing.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog

from runner.adapters.turn_store import StoredTurn
from runner.adapters.wire import failure_to_wire, hold_to_wire
from runner.conductor.feed import TurnFeed
from runner.conductor.parts import Parts, TurnRequest
from runner.core.ledger import Ledger
from runner.core.message_queue import (
    Begin,
    Cancelled,
    Effect,
    Event,
    Hold,
    MessageQueue,
    RecordHold,
    TellHeld,
    TellQueued,
    TurnBegan,
    TurnNotQueuedError,
)
from runner.core.values import Cause, ConversationKey, TurnKey
from standfast.runner.v1 import runner_pb2
from standfast.types.v1 import types_pb2
from standfast_chassis.errors import StoreError

_log = structlog.get_logger("standfast.runner.waiting")

_CANCELLED = Cause("CANCELLED_BY_CLIENT", "The message was taken out of the queue; nothing of it was sent.")


@dataclass(frozen=True, slots=True)
class WaitingTurn:
    """A turn in a queue. `turn` is its record as it stands, `stored` what was accepted."""

    stored: StoredTurn
    request: TurnRequest
    feed: TurnFeed
    is_recorded: asyncio.Future[bool]  # False: it could not be accepted, and never was

    @property
    def key(self) -> TurnKey:
        return self.stored.key

    @property
    def turn(self) -> runner_pb2.Turn:
        return self.stored.snapshot

    def snapshot(self) -> runner_pb2.Turn:
        """A copy."""
        turn = runner_pb2.Turn()
        turn.CopyFrom(self.stored.snapshot)
        turn.last_sequence = self.feed.recorded_sequence
        return turn


class Waiting:
    """All queues. Machines step at once, within one call; what they ask for is performed by `perform`, in order."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._queues: dict[ConversationKey, MessageQueue] = {}
        self._turns: dict[TurnKey, WaitingTurn] = {}
        self._ending: dict[TurnKey, asyncio.Task[runner_pb2.Turn]] = {}

    # --- to look at -----------------------------------------------------------------------------------------------------
    def find(self, key: TurnKey) -> WaitingTurn | None:
        """The turn, while it waits."""
        return self._turns.get(key)

    def has_queue(self, key: ConversationKey) -> bool:
        return key in self._queues

    def conversations(self) -> tuple[ConversationKey, ...]:
        """Those that have a queue."""
        return tuple(self._queues)

    def queue(self, key: ConversationKey) -> runner_pb2.Queue:
        """The conversation's queue as it stands."""
        machine = self._queues.get(key)
        shown = runner_pb2.Queue(messages_max=self._parts.limits.queue_max)
        if machine is None:
            return shown
        shown.running_turn = machine.running or ""
        held = hold_to_wire(machine.hold)
        if held is not None:
            shown.held.CopyFrom(held)
        for turn_id in machine.waiting:
            waiting = self._turns.get(TurnKey(key.tenant, key.conversation_id, turn_id))
            if waiting is None:
                continue
            shown.messages.append(
                runner_pb2.QueuedMessage(
                    turn_id=turn_id, message=waiting.request.message.text, accepted_at=waiting.turn.accepted_at
                )
            )
        return shown

    # --- steps ----------------------------------------------------------------------------------------------------------
    def step(self, key: ConversationKey, event: Event, *, running: str | None = None) -> list[Effect]:
        """One step of the conversation's queue. `running`: the turn that runs, for a queue that is made by this."""
        machine = self._queues.get(key)
        if machine is None:
            machine = MessageQueue(self._parts.limits.queue_max)
            if running is not None:
                machine.step(TurnBegan(running))
        effects = machine.step(event)
        if machine.is_idle:
            self._queues.pop(key, None)
        else:
            self._queues[key] = machine
        return effects

    def add(self, waiting: WaitingTurn) -> None:
        """A turn that is to wait, or waits again."""
        self._turns[waiting.key] = waiting

    def drop(self, key: TurnKey) -> None:
        """The turn begins, or never was: it waits no more."""
        self._turns.pop(key, None)

    async def perform(self, key: ConversationKey, effects: list[Effect]) -> list[TurnKey]:
        """Performs what can be done here. Gives the turns that are to be begun, for the conductor."""
        begin: list[TurnKey] = []
        for effect in effects:
            match effect:
                case RecordHold(hold):
                    await self._record_hold(key, hold)
                case TellQueued(turn_id, ahead):
                    machine = self._queues.get(key)
                    queued = runner_pb2.TurnQueued(
                        ahead=ahead, running_turn=(machine.running or "") if machine is not None else ""
                    )
                    await self._tell(key, turn_id, runner_pb2.TurnEvent(queued=queued), "QUEUED")
                case TellHeld(turn_id, hold):
                    held = runner_pb2.TurnEvent(held=hold_to_wire(hold))
                    await self._tell(key, turn_id, held, "HELD")
                case Begin(turn_id):
                    begin.append(TurnKey(key.tenant, key.conversation_id, turn_id))
        return begin

    async def _record_hold(self, key: ConversationKey, hold: Hold | None) -> None:
        try:
            await self._parts.store.record_hold(key, hold)
        except StoreError as error:
            # In memory it holds all the same; after a restart the queue may go on.
            _log.error("a hold could not be recorded", conversation=str(key), reason=error.reason)
        if hold is None:
            for waiting in self._turns.values():
                if waiting.key.conversation == key and waiting.turn.state == "HELD":
                    waiting.turn.state = "QUEUED"

    async def _tell(self, key: ConversationKey, turn_id: str, event: runner_pb2.TurnEvent, state: str) -> None:
        waiting = self._turns.get(TurnKey(key.tenant, key.conversation_id, turn_id))
        if waiting is None:
            return
        waiting.turn.state = state
        waiting.feed.publish(event)
        try:
            await waiting.feed.flush()
            await self._parts.store.save_snapshot(waiting.key, waiting.turn)
        except StoreError as error:
            _log.error("a waiting turn could not be recorded", turn=str(waiting.key), reason=error.reason)

    # --- ends -----------------------------------------------------------------------------------------------------------
    async def cancel(self, key: TurnKey) -> runner_pb2.Turn:
        """Takes a message out. Raises TurnNotQueuedError."""
        waiting = self._turns.get(key)
        if waiting is None:
            raise TurnNotQueuedError(f"Turn {key.turn_id} does not wait in the queue.", {"turn_id": key.turn_id})
        ending = self._ending.get(key)
        if ending is None:
            effects = self.step(key.conversation, Cancelled(key.turn_id))
            # A task of its own: whoever asked may leave, and the turn's end is recorded all the same.
            ending = asyncio.get_running_loop().create_task(self._end(waiting, effects))
            self._ending[key] = ending
        return await asyncio.shield(ending)

    async def _end(self, waiting: WaitingTurn, effects: list[Effect]) -> runner_pb2.Turn:
        """The turn can be found here until its end is recorded, so that nobody takes it for one that was left behind."""
        key = waiting.key
        try:
            await waiting.is_recorded
            await self.perform(key.conversation, effects)
            return await self._close(waiting)
        finally:
            self._turns.pop(key, None)
            self._ending.pop(key, None)

    async def _close(self, waiting: WaitingTurn) -> runner_pb2.Turn:
        turn = waiting.turn
        turn.state = "ENDED"
        turn.outcome = types_pb2.OUTCOME_CANCELLED
        failure = failure_to_wire(_CANCELLED)
        assert failure is not None
        turn.failure.CopyFrom(failure)
        turn.ended_at.GetCurrentTime()
        await waiting.feed.close(turn)
        return turn

    def abandon(self, key: ConversationKey | None, cause: Cause) -> None:
        """The views of waiting turns end with this cause; of one conversation, or of all. Their record is another matter."""
        for turn_key, waiting in list(self._turns.items()):
            if key is None or turn_key.conversation == key:
                waiting.feed.abandon(cause)
                del self._turns[turn_key]
        if key is not None:
            self._queues.pop(key, None)

    # --- after a restart ------------------------------------------------------------------------------------------------
    def restore(self, key: ConversationKey, waiting: list[WaitingTurn], hold: Hold | None) -> None:
        """The queue as it was recorded."""
        turn_ids = tuple(one.key.turn_id for one in waiting)
        self._queues[key] = MessageQueue(self._parts.limits.queue_max, waiting=turn_ids, hold=hold)
        for one in waiting:
            one.turn.state = "HELD" if hold is not None else "QUEUED"
            self._turns[one.key] = one

    async def feed_of(self, key: TurnKey) -> TurnFeed:
        """A feed that goes on after what is recorded of the turn."""
        kept = await self._parts.events.kept(key)
        ledger = Ledger(kept.last, kept.from_driver) if kept is not None else Ledger()
        return TurnFeed(key, self._parts.store, self._parts.events, ledger)
