"""All turns of this runner: which run, which are over, and who may begin another.

A turn's task lives as long as the turn, whoever watches. One conversation has at most one unresolved turn.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import structlog

from runner.adapters.event_store import EventStore
from runner.adapters.turn_store import StoredTurn
from runner.adapters.wire import outcome_from_wire, turn_conversation
from runner.conductor.feed import TurnFeed, stored_resume, stored_view
from runner.conductor.parts import Parts, TurnRequest
from runner.conductor.requested import turn_request
from runner.conductor.turn_task import TurnTask
from runner.conductor.waiting import Waiting, WaitingTurn
from runner.core.answers import Answer
from runner.core.errors import (
    ConversationBusyError,
    MessageChangedError,
    ReasonedError,
    TurnUnknownError,
    cause_of,
)
from runner.core.ledger import Ledger, Resume
from runner.core.message_queue import (
    Begin,
    Cancelled,
    Effect,
    Hold,
    PutBack,
    Queued,
    Released,
    TakenUp,
    TurnBegan,
    TurnNotQueuedError,
    TurnOver,
    hold_after,
)
from runner.core.message_queue import Event as QueueEvent
from runner.core.pending_requests import NativeRequestUnknownError
from runner.core.values import Cause, ConversationKey, Outcome, TurnKey
from runner.drivers.registry import find_agent
from standfast.runner.v1 import runner_pb2
from standfast.types.v1 import types_pb2
from standfast_chassis.errors import StandfastError
from standfast_chassis.task_pool import TaskPool

_log = structlog.get_logger("standfast.runner.conductor")

_STOPPING = Cause(
    "TASKS_CLOSED",
    "This runner is stopping. The turn is on record: ask again with the same turn_id when it is back.",
)
# After the message was handed over "try again blindly" is no longer true: what became of it must be looked at.
_STOPPING_IN_TURN = Cause(
    "ATTACH_LOST",
    "This runner is stopping while the turn runs. The turn is on record and is resolved at the next start: watch it then.",
)
_CANCELLED = Cause("CANCELLED_BY_CLIENT", "CancelTurn ended the turn.")
_CRASHED = Cause(
    "INTERNAL", "The turn's task ended on a fault of ours. The turn is resolved at the runner's next start."
)


class RunnerStoppingError(ReasonedError):
    """The runner takes no turns any more."""

    def __init__(self) -> None:
        super().__init__(_STOPPING.reason, _STOPPING.message)


@dataclass(frozen=True, slots=True)
class TurnView:
    """A turn to look at: live (`feed`) or over (`stored`)."""

    key: TurnKey
    feed: TurnFeed | None
    stored: StoredTurn | None
    store: EventStore

    async def resume(self, after_sequence: int) -> Resume:
        """Whether the replay after that number is whole."""
        if self.feed is not None:
            return await self.feed.resume(after_sequence)
        assert self.stored is not None
        return await stored_resume(self.store, self.stored, after_sequence)

    async def events(self, after_sequence: int, *, include_raw: bool) -> AsyncGenerator[runner_pb2.TurnEvent, None]:
        """The events to the turn's end; then raises the status of a turn that was refused or forgotten."""
        if self.feed is not None:
            async for event in self.feed.view(after_sequence, include_raw=include_raw):
                yield event
            refusal = self.feed.refusal
        else:
            assert self.stored is not None
            async for event in stored_view(self.store, self.stored, after_sequence):
                yield event
            refusal = self.stored.refusal
        if refusal is not None:
            raise ReasonedError.of(refusal)


class Conductor:
    """The turns of one runner. Use it as `async with`; `recover` once, before clients come."""

    def __init__(self, parts: Parts, *, turns_max: int) -> None:
        self._parts = parts
        self._pool = TaskPool("turns", tasks_max=turns_max)
        self._tasks: dict[TurnKey, TurnTask] = {}
        self._busy: dict[ConversationKey, TurnKey] = {}
        self._removed: set[ConversationKey] = set()
        self._is_stopping = False
        self._waiting = Waiting(parts)
        self._cancelled_early: set[TurnKey] = set()
        self._begun: dict[TurnKey, WaitingTurn] = {}  # out of the queue, and perhaps back into it

    async def __aenter__(self) -> Conductor:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the tasks. Native turns that run are interrupted by their host agents; the next start settles them."""
        self._is_stopping = True
        self._waiting.abandon(None, _STOPPING)
        await self._pool.close()

    # --- turns --------------------------------------------------------------------------------------------------------
    async def start(self, key: TurnKey, request: TurnRequest) -> TurnView:
        """Begins the turn, or re-attaches to it. Raises MESSAGE_CHANGED, CONVERSATION_BUSY, or that nothing begins."""
        running = self._tasks.get(key)
        if running is not None:
            _require_same(key, running.message_digest, request)
            return TurnView(key, running.feed, None, self._parts.events)
        stored = await self._parts.store.find(key)
        running = self._tasks.get(key)  # another call may have begun it meanwhile
        if running is not None:
            _require_same(key, running.message_digest, request)
            return TurnView(key, running.feed, None, self._parts.events)
        if stored is not None or self._waiting.find(key) is not None:
            waiting = self._waiting.find(key)
            stored = waiting.stored if waiting is not None else stored
            assert stored is not None
            _require_same(key, stored.message_digest, request)
            return await self._view_of(stored)
        return TurnView(key, await self._begin_or_queue(key, request), None, self._parts.events)

    async def _begin_or_queue(self, key: TurnKey, request: TurnRequest) -> TurnFeed:
        if self._is_stopping:
            raise RunnerStoppingError
        holder = self._busy.get(key.conversation)
        waits = self._waiting.has_queue(key.conversation)
        if request.when_busy == "QUEUE" and (holder is not None or waits):
            return await self._queue(key, request)
        if holder is not None:
            raise ConversationBusyError(
                f"Turn {holder.turn_id} of conversation {key.conversation_id} is not over. Wait for its end, cancel it, or "
                "queue the message.",
                {"turn_id": holder.turn_id, "state": self._state_of(holder)},
            )
        return await self._begin(key, request)

    async def _begin(self, key: TurnKey, request: TurnRequest) -> TurnFeed:
        stored = _accepted(key, request, "ACCEPTED")
        turn = stored.snapshot
        feed = TurnFeed(key, self._parts.store, self._parts.events, Ledger())
        task = TurnTask(self._parts, key, request.agent, feed, turn, request)
        # Held from here on, before anything is awaited: of two calls at once only one begins the turn.
        self._hold_place(task)
        try:
            # Durable before the claim: a turn that the manager knows is never one that this runner denies.
            await self._parts.store.accept(stored)
            feed.publish(runner_pb2.TurnEvent(accepted=runner_pb2.TurnAccepted(turn_id=key.turn_id)))
            await self._run_or_forget(task)
        except BaseException as error:
            self._let_go(task, _CRASHED if not isinstance(error, Exception) else _cause_of_begin(error))
            raise
        return feed

    async def _run_or_forget(self, task: TurnTask) -> None:
        try:
            self._run(task)
        except StandfastError:
            # There is no room for it. Nothing was claimed, so the same turn_id may try again.
            await self._parts.store.forget(task.key)
            raise

    async def recover(self) -> int:
        """Takes up every turn that was not over when the runner stopped, and the queues. Gives the number of those turns."""
        unresolved = await self._parts.store.unresolved()
        await self._restore_queues()
        for stored in unresolved:
            if find_agent(stored.agent) is None:
                _log.error("a turn of an agent that this release does not know stays unresolved", turn=str(stored.key))
                continue
            await self._take_up(stored)
        for conversation in self._waiting.conversations():
            await self._go_on(conversation, self._step_queue(conversation, TakenUp()))
        return len(unresolved)

    async def _restore_queues(self) -> None:
        holds = await self._parts.store.holds()
        found: dict[ConversationKey, list[WaitingTurn]] = {}
        for stored, raw in await self._parts.store.queued():
            try:
                request = turn_request(runner_pb2.StartTurnRequest.FromString(raw))
            except StandfastError as error:
                _log.error(
                    "a queued message that this release cannot send stays", turn=str(stored.key), reason=error.reason
                )
                continue
            recorded: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            recorded.set_result(True)
            waiting = WaitingTurn(stored, request, await self._waiting.feed_of(stored.key), recorded)
            found.setdefault(stored.key.conversation, []).append(waiting)
        for conversation, turns in found.items():
            self._waiting.restore(conversation, turns, holds.get(conversation))

    async def _view_of(self, stored: StoredTurn) -> TurnView:
        """A turn that no task has: over, or left by a task that failed, which is taken up again."""
        waiting = self._waiting.find(stored.key)
        if waiting is not None:
            return TurnView(stored.key, waiting.feed, None, self._parts.events)
        if stored.is_over:
            return TurnView(stored.key, None, stored, self._parts.events)
        if self._is_stopping or stored.key.conversation in self._busy or find_agent(stored.agent) is None:
            raise ReasonedError.of(_STOPPING if self._is_stopping else _CRASHED)
        return TurnView(stored.key, await self._take_up(stored), None, self._parts.events)

    async def _take_up(self, stored: StoredTurn) -> TurnFeed:
        """Goes on with a turn of which only the record is left. Neither its message nor anything else is sent again."""
        agent = find_agent(stored.agent)
        assert agent is not None
        kept = await self._parts.events.kept(stored.key)
        ledger = Ledger(kept.last, kept.from_driver) if kept is not None else Ledger()
        feed = TurnFeed(stored.key, self._parts.store, self._parts.events, ledger)
        digest = stored.message_digest
        task = TurnTask(self._parts, stored.key, agent, feed, stored.snapshot, None, message_digest=digest)
        self._hold_place(task)
        self._run(task)
        return feed

    def _hold_place(self, task: TurnTask) -> None:
        """From here on this is the conversation's running turn."""
        conversation = task.key.conversation
        self._tasks[task.key] = task
        self._busy[conversation] = task.key
        if self._waiting.has_queue(conversation):
            self._waiting.step(conversation, TurnBegan(task.key.turn_id))

    def _run(self, task: TurnTask) -> None:
        async def run() -> None:
            effects: list[Effect] = []
            try:
                await task.run()
                if task.key.conversation in self._removed:
                    self._removed.discard(task.key.conversation)
                    await self._remove(task.key.conversation)
            finally:
                effects = self._let_go(task, self._why_unfinished(task))
            await self._go_on(task.key.conversation, effects)

        self._pool.start(run, name=str(task.key))

    def _why_unfinished(self, task: TurnTask) -> Cause:
        """What a view learns when its turn's task ends before the turn. Nothing, if the turn is over."""
        if not self._is_stopping:
            return _CRASHED
        return _STOPPING_IN_TURN if task.was_handed_over else _STOPPING

    def _let_go(self, task: TurnTask, cause: Cause) -> list[Effect]:
        """`cause` is what views of a turn learn that is not over. Gives what the conversation's queue asks for now."""
        if not task.feed.is_closed:
            task.feed.abandon(cause)
        conversation = task.key.conversation
        self._tasks.pop(task.key, None)
        if not task.goes_back:
            self._begun.pop(task.key, None)
        if self._busy.get(conversation) != task.key:
            return []
        del self._busy[conversation]
        if self._is_stopping or not self._waiting.has_queue(conversation):
            return []
        if task.goes_back:
            self._wait_again(task.key)
        return self._step_queue(conversation, self._how_it_ended(task, cause))

    def _how_it_ended(self, task: TurnTask, cause: Cause) -> TurnOver | PutBack:
        turn, turn_id = task.snapshot(), task.key.turn_id
        if task.goes_back:
            refusal = task.feed.refusal or cause
            return PutBack(turn_id, Hold(turn_id, None, refusal.reason))
        outcome = outcome_from_wire(turn.outcome)
        if outcome is None:
            return TurnOver(turn_id, Hold(turn_id, None, (task.feed.refusal or cause).reason))
        return TurnOver(
            turn_id, hold_after(turn_id, outcome, is_settled=turn.locator_saved, reason=turn.failure.reason)
        )

    # --- the queue ----------------------------------------------------------------------------------------------------
    def _step_queue(self, key: ConversationKey, event: QueueEvent, *, running: str | None = None) -> list[Effect]:
        """One step. A turn that is to begin has the conversation from here on: no other message gets in between."""
        effects = self._waiting.step(key, event, running=running)
        for effect in effects:
            if isinstance(effect, Begin):
                self._busy[key] = TurnKey(key.tenant, key.conversation_id, effect.turn_id)
        return effects

    async def _queue(self, key: TurnKey, request: TurnRequest) -> TurnFeed:
        """Accepts a message that waits: durable, in its place, and said so."""
        conversation = key.conversation
        running = self._busy.get(conversation)
        waiting = WaitingTurn(
            _accepted(key, request, "QUEUED"),
            request,
            TurnFeed(key, self._parts.store, self._parts.events, Ledger()),
            asyncio.get_running_loop().create_future(),
        )
        effects = self._step_queue(
            conversation, Queued(key.turn_id), running=running.turn_id if running is not None else None
        )
        self._waiting.add(waiting)
        try:
            await self._parts.store.accept(waiting.stored, queued=request.source.SerializeToString())
        except BaseException as error:
            waiting.is_recorded.set_result(False)
            if self._waiting.find(key) is not None:
                self._waiting.drop(key)
                await self._go_on(conversation, self._step_queue(conversation, Cancelled(key.turn_id)))
            waiting.feed.abandon(_CRASHED if not isinstance(error, Exception) else _cause_of_begin(error))
            raise
        waiting.is_recorded.set_result(True)
        waiting.feed.publish(runner_pb2.TurnEvent(accepted=runner_pb2.TurnAccepted(turn_id=key.turn_id)))
        await self._go_on(conversation, effects)
        return waiting.feed

    async def _go_on(self, conversation: ConversationKey, effects: list[Effect]) -> None:
        """Performs what a queue asks for, and begins the turn that is due."""
        for key in await self._waiting.perform(conversation, effects):
            await self._begin_waiting(key)

    async def _begin_waiting(self, key: TurnKey) -> None:
        """The next message's turn. It stays in the queue's record until it may be sent."""
        waiting = self._waiting.find(key)
        if waiting is None:
            # Its conversation was removed meanwhile.
            if self._busy.get(key.conversation) == key:
                del self._busy[key.conversation]
            return
        is_recorded = await waiting.is_recorded
        self._waiting.drop(key)
        if not is_recorded:
            # It was refused to its client: there is no such turn, and the next one is due.
            del self._busy[key.conversation]
            await self._go_on(key.conversation, self._step_queue(key.conversation, TurnOver(key.turn_id, None)))
            return
        waiting.turn.state = "ACCEPTED"
        waiting.feed.publish(runner_pb2.TurnEvent(dequeued=runner_pb2.TurnDequeued()))
        task = TurnTask(
            self._parts, key, waiting.request.agent, waiting.feed, waiting.turn, waiting.request, was_queued=True
        )
        self._tasks[key] = task
        self._begun[key] = waiting
        if key in self._cancelled_early:
            self._cancelled_early.discard(key)
            task.request_stop(Outcome.CANCELLED, _CANCELLED)
        try:
            self._run(task)
        except StandfastError as error:
            # No room for a task, or the runner stops: the message keeps its place.
            waiting.feed.abandon(cause_of(error))
            del self._tasks[key], self._busy[key.conversation]
            if not self._is_stopping:
                self._wait_again(key)
                put_back = PutBack(key.turn_id, Hold(key.turn_id, None, error.reason))
                await self._go_on(key.conversation, self._step_queue(key.conversation, put_back))

    def _wait_again(self, key: TurnKey) -> None:
        """A message whose turn could not be begun is back at the front of its queue, with viewers of its own."""
        begun = self._begun.pop(key)
        feed = TurnFeed(key, self._parts.store, self._parts.events, Ledger(begun.feed.recorded_sequence))
        self._waiting.add(WaitingTurn(begun.stored, begun.request, feed, begun.is_recorded))

    async def cancel_queued(self, key: TurnKey) -> runner_pb2.Turn:
        """Takes a waiting message out; one that was taken out before is given as it ended.

        Raises TURN_NOT_QUEUED, TURN_UNKNOWN.
        """
        if self._waiting.find(key) is not None:
            return await self._waiting.cancel(key)
        turn = await self.turn(key)
        if turn.outcome == types_pb2.OUTCOME_CANCELLED and not turn.activation_id:
            return turn  # already so
        raise TurnNotQueuedError(
            f"Turn {key.turn_id} does not wait in the queue: its state is {turn.state}. CancelTurn ends a running turn.",
            {"turn_id": key.turn_id, "state": turn.state},
        )

    async def release_queue(self, key: ConversationKey) -> runner_pb2.Queue:
        """Lets a held queue go on."""
        if self._is_stopping:
            raise RunnerStoppingError
        if self._waiting.has_queue(key):
            await self._go_on(key, self._step_queue(key, Released()))
        return self.queue(key)

    def queue(self, key: ConversationKey) -> runner_pb2.Queue:
        """The conversation's queue as it stands."""
        shown = self._waiting.queue(key)
        running = self._busy.get(key)
        shown.running_turn = running.turn_id if running is not None else ""
        return shown

    # --- native requests ----------------------------------------------------------------------------------------------
    def pending(self, key: ConversationKey) -> list[runner_pb2.PendingRequest]:
        """What the conversation's running turn asks and nobody has answered."""
        task = self._running_task(key)
        return task.pending() if task is not None else []

    async def answer(self, key: ConversationKey, request_id: str, answer: Answer) -> TurnKey:
        """Answers a native request of the running turn. Raises ANSWER_INVALID, NATIVE_REQUEST_UNKNOWN, NATIVE_REQUEST_CLOSED."""
        task = self._running_task(key)
        if task is None:
            raise NativeRequestUnknownError(
                f"No turn of conversation {key.conversation_id} runs here, so there is no native request to answer.",
                {"conversation_id": key.conversation_id, "request_id": request_id[:200]},
            )
        await task.answer(request_id, answer)
        return task.key

    def _running_task(self, key: ConversationKey) -> TurnTask | None:
        running = self._busy.get(key)
        return self._tasks.get(running) if running is not None else None

    async def watch(self, key: TurnKey) -> TurnView:
        """The turn to look at. Raises TURN_UNKNOWN."""
        running = self._tasks.get(key)
        if running is not None:
            return TurnView(key, running.feed, None, self._parts.events)
        return await self._view_of(await self._find(key))

    async def cancel(self, key: TurnKey) -> runner_pb2.Turn:
        """Asks a running turn to end; one that is over stays as it is. Raises TURN_UNKNOWN."""
        running = self._tasks.get(key)
        waiting = self._waiting.find(key)
        if waiting is not None:
            try:
                return await self._waiting.cancel(key)
            except TurnNotQueuedError:
                # It is being begun just now: it has no task yet that could be told.
                self._cancelled_early.add(key)
                return waiting.snapshot()
        if running is None:
            return (await self._find(key)).snapshot
        running.request_stop(Outcome.CANCELLED, _CANCELLED)
        return running.snapshot()

    async def turn(self, key: TurnKey) -> runner_pb2.Turn:
        """The turn as it stands. Raises TURN_UNKNOWN."""
        running = self._tasks.get(key) or self._waiting.find(key)
        return running.snapshot() if running is not None else (await self._find(key)).snapshot

    async def turns(self, key: ConversationKey, *, offset: int, limit: int) -> list[runner_pb2.Turn]:
        """The conversation's turns, oldest first."""
        found = []
        for stored in await self._parts.store.list_turns(key, offset=offset, limit=limit):
            running = self._tasks.get(stored.key) or self._waiting.find(stored.key)
            found.append(running.snapshot() if running is not None else stored.snapshot)
        return found

    async def forget_conversation(self, key: ConversationKey) -> None:
        """The conversation was removed: what is over of it goes; a turn that still ends takes its record with it."""
        removed = "The conversation was removed; its id is not used again."
        self._waiting.abandon(key, Cause("CONVERSATION_REMOVED", removed))
        if key not in self._busy:
            await self._remove(key)
        else:
            self._removed.add(key)

    async def _remove(self, key: ConversationKey) -> None:
        await self._parts.store.remove_conversation(key)
        await self._parts.events.remove_conversation(key)

    def running_turn(self, key: ConversationKey) -> TurnKey | None:
        """The turn of this conversation that is not over here."""
        return self._busy.get(key)

    async def _find(self, key: TurnKey) -> StoredTurn:
        stored = await self._parts.store.find(key)
        if stored is None:
            raise TurnUnknownError(
                f"This runner knows no turn {key.turn_id} of conversation {key.conversation_id}.",
                {"turn_id": key.turn_id, "conversation_id": key.conversation_id},
            )
        return stored

    def _state_of(self, key: TurnKey) -> str:
        task = self._tasks.get(key)
        return task.snapshot().state if task is not None else ""


def _accepted(key: TurnKey, request: TurnRequest, state: str) -> StoredTurn:
    """A new turn's record."""
    accepted_at_ns = time.time_ns()
    turn = runner_pb2.Turn(conversation=turn_conversation(key), turn_id=key.turn_id, agent=request.agent.name)
    turn.state = state
    turn.accepted_at.FromNanoseconds(accepted_at_ns)
    return StoredTurn(
        key=key,
        message_digest=request.message.digest,
        message_length=request.message.length,
        agent=request.agent.name,
        accepted_at_ms=accepted_at_ns // 1_000_000,
        is_over=False,
        snapshot=turn,
        refusal=None,
    )


def _require_same(key: TurnKey, digest: str, request: TurnRequest) -> None:
    if digest != request.message.digest:
        raise MessageChangedError(
            f"Turn {key.turn_id} was begun with another message. Give the new message a turn_id of its own.",
            {"turn_id": key.turn_id, "expected": digest, "found": request.message.digest},
        )


def _cause_of_begin(error: Exception) -> Cause:
    reason = getattr(error, "reason", "INTERNAL")
    return Cause(str(reason), str(error))
