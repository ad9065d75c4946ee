"""A model that works through a list of calls, and looks only at the transcript: what it did not see done, it asks for again."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from direct_agent.loop.ports import Accepted, NotAnswered, Past, RoundOutcome
from direct_agent.ports import Cancellation
from direct_agent.transcript import (
    AssistantMessage,
    Finish,
    ReasoningState,
    RunState,
    ToolCall,
    ToolResult,
    Transcript,
    Usage,
)

REFUSALS_BORNE = 1


@dataclass(frozen=True)
class Goal:
    """One call the model wants to see done."""

    tool: str
    arguments: str

    @classmethod
    def of(cls, tool: str, **arguments: object) -> Goal:
        return cls(tool, json.dumps(arguments))


def results_of(transcript: Transcript, goal: Goal) -> list[ToolResult]:
    """All results of calls like this, in order."""
    wanted = {
        (at, call.call_id)
        for at, message in enumerate(transcript)
        if isinstance(message, AssistantMessage)
        for call in message.tool_calls
        if (call.name, call.arguments) == (goal.tool, goal.arguments)
    }
    ids = {call_id for _, call_id in wanted}
    return [message for message in transcript if isinstance(message, ToolResult) and message.call_id in ids]


def is_settled(transcript: Transcript, goal: Goal) -> bool:
    """Done, or refused as a repetition: then it leaves it alone."""
    results = results_of(transcript, goal)
    done = any(each.state is RunState.COMPLETED for each in results)
    return done or any(each.output.startswith("Refused: this very call") for each in results)


@dataclass
class ScriptedModel:
    """Implements Rounds. `groups`: calls of one group are asked for together."""

    groups: Sequence[Sequence[Goal]]
    asked: list[Transcript] = field(default_factory=list)
    instructions: list[str] = field(default_factory=list)
    pasts: list[Past] = field(default_factory=list)
    before_answer: Callable[[], None] = lambda: None

    async def ask(self, transcript: Transcript, instructions: str, cancel: Cancellation, past: Past) -> RoundOutcome:
        self.asked.append(transcript)
        self.instructions.append(instructions)
        self.pasts.append(past)
        self.before_answer()
        if cancel.is_set():
            return NotAnswered("cancelled", "cancelled", Usage(request_count=1, is_unknown=True))
        return Accepted(self._answer(transcript), Usage(request_count=1, prompt=10, completion=2, total=12))

    def begin_turn(self) -> None:
        pass

    def taken_summary(self) -> str | None:
        return None

    async def ask_aside(self, transcript: Transcript, instructions: str, cancel: Cancellation) -> RoundOutcome:
        self.asked.append(transcript)
        return Accepted(AssistantMessage("what was done so far"), Usage(request_count=1, prompt=5, completion=5))

    def _answer(self, transcript: Transcript) -> AssistantMessage:
        number = sum(len(each.tool_calls) for each in transcript if isinstance(each, AssistantMessage))
        for group in self.groups:
            calls = [goal for goal in group if not is_settled(transcript, goal)]
            if calls:
                return AssistantMessage(
                    "going on",
                    reasoning_state=ReasoningState.EMPTY,
                    tool_calls=tuple(
                        ToolCall(f"c{number + at}", goal.tool, goal.arguments) for at, goal in enumerate(calls)
                    ),
                    finish=Finish.TOOL_CALLS,
                )
        return AssistantMessage("all done")
