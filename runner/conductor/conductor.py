"""All turns of this runner: which run, which are over, and who may begin another.

A turn's task lives as long as the turn, whoever watches. One conversation has at most one unresolved turn.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import structlog

from runner.adapters.event_store import EventStore
from runner.adapters.turn_store import StoredTurn
from runner.adapters.wire import turn_conversation
from runner.conductor.feed import TurnFeed, stored_resume, stored_view
from runner.conductor.parts import Parts, TurnRequest
from runner.conductor.turn_task import TurnTask
from runner.core.errors import (
    ConversationBusyError,
    MessageChangedError,
    ReasonedError,
    TurnUnknownError,
)
from runner.core.ledger import Ledger, Resume
from runner.core.values import Cause, ConversationKey, Outcome, TurnKey
from runner.drivers.registry import find_agent
from standfast.runner.v1 import runner_pb2
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

    async def __aenter__(self) -> Conductor:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the tasks. Native turns that run are interrupted by their host agents; the next start settles them."""
        self._is_stopping = True
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
        if stored is not None:
            _require_same(key, stored.message_digest, request)
            return await self._view_of(stored)
        return TurnView(key, await self._begin(key, request), None, self._parts.events)

    async def _begin(self, key: TurnKey, request: TurnRequest) -> TurnFeed:
        if self._is_stopping:
            raise RunnerStoppingError
        holder = self._busy.get(key.conversation)
        if holder is not None:
            raise ConversationBusyError(
                f"Turn {holder.turn_id} of conversation {key.conversation_id} is not over. Wait for its end, or cancel it.",
                {"turn_id": holder.turn_id, "state": self._state_of(holder)},
            )
        accepted_at_ns = time.time_ns()
        turn = runner_pb2.Turn(conversation=turn_conversation(key), turn_id=key.turn_id, agent=request.agent.name)
        turn.state = "ACCEPTED"
        turn.accepted_at.FromNanoseconds(accepted_at_ns)
        stored = StoredTurn(
            key=key,
            message_digest=request.message.digest,
            message_length=request.message.length,
            agent=request.agent.name,
            accepted_at_ms=accepted_at_ns // 1_000_000,
            is_over=False,
            snapshot=turn,
            refusal=None,
        )
        feed = TurnFeed(key, self._parts.store, self._parts.events, Ledger())
        task = TurnTask(self._parts, key, request.agent, feed, turn, request)
        # Held from here on, before anything is awaited: of two calls at once only one begins the turn.
        self._tasks[key] = task
        self._busy[key.conversation] = key
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
        """Takes up every turn that was not over when the runner stopped. Gives their number."""
        unresolved = await self._parts.store.unresolved()
        for stored in unresolved:
            if find_agent(stored.agent) is None:
                _log.error("a turn of an agent that this release does not know stays unresolved", turn=str(stored.key))
                continue
            await self._take_up(stored)
        return len(unresolved)

    async def _view_of(self, stored: StoredTurn) -> TurnView:
        """A turn that no task has: over, or left by a task that failed, which is taken up again."""
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
        self._tasks[stored.key] = task
        self._busy[stored.key.conversation] = stored.key
        self._run(task)
        return feed

    def _run(self, task: TurnTask) -> None:
        async def run() -> None:
            try:
                await task.run()
                if task.key.conversation in self._removed:
                    self._removed.discard(task.key.conversation)
                    await self._remove(task.key.conversation)
            finally:
                self._let_go(task, self._why_unfinished(task))

        self._pool.start(run, name=str(task.key))

    def _why_unfinished(self, task: TurnTask) -> Cause:
        """What a view learns when its turn's task ends before the turn. Nothing, if the turn is over."""
        if not self._is_stopping:
            return _CRASHED
        return _STOPPING_IN_TURN if task.was_handed_over else _STOPPING

    def _let_go(self, task: TurnTask, cause: Cause) -> None:
        """`cause` is what views of a turn learn that is not over."""
        if not task.feed.is_closed:
            task.feed.abandon(cause)
        self._tasks.pop(task.key, None)
        if self._busy.get(task.key.conversation) == task.key:
            del self._busy[task.key.conversation]

    async def watch(self, key: TurnKey) -> TurnView:
        """The turn to look at. Raises TURN_UNKNOWN."""
        running = self._tasks.get(key)
        if running is not None:
            return TurnView(key, running.feed, None, self._parts.events)
        return await self._view_of(await self._find(key))

    async def cancel(self, key: TurnKey) -> runner_pb2.Turn:
        """Asks a running turn to end; one that is over stays as it is. Raises TURN_UNKNOWN."""
        running = self._tasks.get(key)
        if running is None:
            return (await self._find(key)).snapshot
        running.request_stop(Outcome.CANCELLED, Cause("CANCELLED_BY_CLIENT", "CancelTurn ended the turn."))
        return running.snapshot()

    async def turn(self, key: TurnKey) -> runner_pb2.Turn:
        """The turn as it stands. Raises TURN_UNKNOWN."""
        running = self._tasks.get(key)
        return running.snapshot() if running is not None else (await self._find(key)).snapshot

    async def turns(self, key: ConversationKey, *, offset: int, limit: int) -> list[runner_pb2.Turn]:
        """The conversation's turns, oldest first."""
        found = []
        for stored in await self._parts.store.list_turns(key, offset=offset, limit=limit):
            running = self._tasks.get(stored.key)
            found.append(running.snapshot() if running is not None else stored.snapshot)
        return found

    async def forget_conversation(self, key: ConversationKey) -> None:
        """The conversation was removed: what is over of it goes; a turn that still ends takes its record with it."""
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


def _require_same(key: TurnKey, digest: str, request: TurnRequest) -> None:
    if digest != request.message.digest:
        raise MessageChangedError(
            f"Turn {key.turn_id} was begun with another message. Give the new message a turn_id of its own.",
            {"turn_id": key.turn_id, "expected": digest, "found": request.message.digest},
        )


def _cause_of_begin(error: Exception) -> Cause:
    reason = getattr(error, "reason", "INTERNAL")
    return Cause(str(reason), str(error))
