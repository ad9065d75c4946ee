"""Performs one turn: what the machine decides is done here, one effect at a time. Decides nothing itself.

Cancel and steer come from outside while an effect is being performed; the machine takes them at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from direct_agent.loop.ports import Audience, NotAnswered, Past, Rounds
from direct_agent.loop.tool_runs import ToolRuns
from direct_agent.loop.turn import (
    Answered,
    Ask,
    Begin,
    Cancel,
    Effect,
    End,
    Event,
    Record,
    Recorded,
    RecordEnd,
    RecordFailed,
    RoundFailed,
    RunTools,
    SayEnd,
    Steer,
    StopWork,
    ToolsDone,
    TurnMachine,
    TurnState,
)
from direct_agent.session.compaction import tail_start
from direct_agent.session.errors import SessionWriteError
from direct_agent.session.records import compaction_data, message_data
from direct_agent.session.session import Session
from direct_agent.transcript import AssistantMessage, Message, ToolCall, ToolResult, Usage

Instructions = Callable[[], str]
"""The system text, read anew before every round."""


class SessionCalls:
    """Implements CallRecords on a session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def started(self, call: ToolCall) -> None:
        await self._session.append(("started", {"call_id": call.call_id}, None))

    async def intents(self, call: ToolCall, intents: Sequence[str]) -> None:
        await self._session.append(
            *(("intent", {"call_id": call.call_id, "intent": intent}, None) for intent in intents)
        )

    async def results(self, results: Sequence[ToolResult]) -> None:
        await self._session.append(*(("message", message_data(result), None) for result in results))


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message of the person, with what goes before it and with it into the session."""

    message_id: str
    text: str
    before: tuple[Message, ...] = ()
    facts: str | None = None
    past: Past = field(default_factory=Past)


class TurnConductor:
    """One turn. `tools` carry what is pending from an interrupted one."""

    def __init__(
        self,
        session: Session,
        rounds: Rounds,
        tools: ToolRuns,
        audience: Audience,
        instructions: Instructions,
        *,
        rounds_max: int,
        agreements: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._session = session
        self._rounds = rounds
        self._tools = tools
        self._audience = audience
        self._instructions = instructions
        self._agreements = agreements
        self._machine = TurnMachine(rounds_max=rounds_max)
        self._cancel = asyncio.Event()
        self._usage = Usage()
        self._past = Past()
        self._is_cancelled_early = False

    def cancel(self) -> None:
        """Repeating it changes nothing; after the end neither."""
        if self._machine.state is TurnState.NEW:
            self._is_cancelled_early = True
        elif self._machine.may_be_steered:
            self._perform_at_once(self._machine.step(Cancel()))

    def steer(self, message_id: str, text: str) -> bool:
        """False when the turn is too far on: the text must come as a message of its own."""
        if not self._machine.may_be_steered:
            return False
        self._machine.step(Steer(message_id, text))
        return True

    async def run(self, delivery: Delivery) -> End:
        """The whole turn. Says `accepted` once the message is durable, and `turn_end` last."""
        self._past = delivery.past
        effects = self._machine.step(Begin(delivery.message_id, delivery.text, delivery.before, delivery.facts))
        if self._is_cancelled_early:
            self.cancel()
        is_accepted = False
        while True:
            (effect,) = effects
            if isinstance(effect, SayEnd):
                self._say_end(effect)
                return effect.end
            event = await self._perform(effect)
            if not is_accepted and isinstance(event, Recorded):
                is_accepted = True
                self._audience.say({"type": "accepted", "message_id": delivery.message_id})
            effects = self._machine.step(event)

    def _perform_at_once(self, effects: list[Effect]) -> None:
        for effect in effects:
            assert isinstance(effect, StopWork)
            self._cancel.set()

    async def _perform(self, effect: Effect) -> Event:
        match effect:
            case Record():
                return await self._record(effect)
            case Ask():
                return await self._ask()
            case RunTools(calls):
                return await self._run_tools(calls)
            case RecordEnd():
                return await self._record_end(effect)
            case _:
                raise AssertionError(f"{type(effect).__name__} is performed at once or ends the turn")

    async def _record(self, effect: Record) -> Event:
        entries = [
            ("message", message_data(each.message, steers=each.steers, facts=each.facts), each.id)
            for each in effect.entries
        ]
        try:
            ids = await self._session.append(*entries)
        except SessionWriteError as error:
            return RecordFailed(error.cause, str(error))
        for entry, record_id in zip(effect.entries, ids, strict=True):
            self._say_stored(entry.message, record_id, entry.steers)
        return Recorded()

    async def _ask(self) -> Event:
        transcript = self._session.history.transcript
        outcome = await self._rounds.ask(transcript, self._instructions(), self._cancel, self._past)
        self._usage += outcome.usage
        summary = self._rounds.taken_summary()
        if isinstance(outcome, NotAnswered):
            return RoundFailed(outcome.reason, outcome.error, outcome.status)
        if summary is not None:
            try:
                await self._shorten(summary)
            except SessionWriteError as error:
                return RoundFailed(error.cause, str(error))
        return Answered(outcome.message)

    async def _shorten(self, summary: str) -> None:
        """The answer was given to a shortened history: from now on that is the history."""
        history = self._session.history
        start = tail_start(history.transcript, turns_kept=1)
        if start is not None:
            data = compaction_data(summary, history.record_id_at(start), self._agreements())
            (record_id,) = await self._session.append(("compaction", data, None))
            self._audience.say({"type": "compacted", "id": None, "is_changed": True, "uuid": record_id})

    async def _run_tools(self, calls: tuple[ToolCall, ...]) -> Event:
        try:
            await self._tools.run(calls, self._cancel)
        except SessionWriteError as error:
            return RecordFailed(error.cause, str(error))
        return ToolsDone()

    async def _record_end(self, effect: RecordEnd) -> Event:
        data = {
            "message_id": effect.message_id,
            "outcome": effect.end.outcome.value,
            "reason": effect.end.reason,
            "error": effect.end.error,
            "usage": usage_json(self._usage),
        }
        try:
            await self._session.append(("end", data, None))
        except SessionWriteError as error:
            return RecordFailed(error.cause, str(error))
        return Recorded()

    def _say_stored(self, message: Message, record_id: str, steers: str | None) -> None:
        if isinstance(message, AssistantMessage):
            calls = [
                {"call_id": call.call_id, "tool": call.name, "arguments": call.arguments} for call in message.tool_calls
            ]
            event: dict[str, Any] = {"type": "assistant", "uuid": record_id, "text": message.text, "tool_calls": calls}
            self._audience.say({**event, "finish": message.finish.value})
        elif steers is not None:
            self._audience.say({"type": "steered", "message_id": record_id})

    def _say_end(self, effect: SayEnd) -> None:
        self._audience.say(
            {
                "type": "turn_end",
                "message_id": effect.message_id,
                "outcome": effect.end.outcome.value,
                "reason": effect.end.reason,
                "error": effect.end.error,
                "status": effect.end.status,
                "usage": usage_json(self._usage),
            }
        )


def usage_json(usage: Usage) -> dict[str, Any]:
    """Unknown numbers are null, never 0."""
    return {
        "requests": usage.request_count,
        "input_tokens": usage.prompt,
        "output_tokens": usage.completion,
        "reasoning_tokens": usage.reasoning,
        "cache_read_tokens": usage.cache_hit,
        "is_unknown": usage.is_unknown,
        "is_estimated": usage.is_estimated,
    }
