"""One turn of the agent. Pure: events in, effects out.

    NEW ──Begin──▶ RECORDING ──Recorded──▶ ASKING ──Answered──▶ STORING ──Recorded──┬─ calls that may run ─▶ ACTING ──ToolsDone─┐
                                            ▲  ▲                                    ├─ calls that may not ─▶ RECORDING ─┐       │
                                            │  └──────────── Recorded ◀── RECORDING ◀── steered meanwhile ──┘           │       │
                                            └───────────────────────────────────────────────────────────────────────────┴───────┘
                                                                                    └─ no calls, not steered ─▶ ENDING ──Recorded──▶ ENDED

    ASKING ──RoundFailed──▶ ENDING          any of RECORDING, STORING, ACTING ──RecordFailed──▶ ENDED (nothing more can be stored)
    Cancel: the round or the tools that run are told at once; whatever they still bring, nothing new is begun, and the turn ends CANCELLED

The answer is stored before its calls run; every result is stored before the model is asked again; the end is stored before it is said.
A cancelled round that still brings a complete answer is not stored: nobody accepted it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from direct_agent.transcript import (
    TRUNCATED_OUTPUT,
    AssistantMessage,
    Message,
    RunState,
    ToolCall,
    ToolResult,
    UserMessage,
    may_run_calls,
)

ROUNDS_MAX = 500


class TurnState(StrEnum):
    NEW = "NEW"
    RECORDING = "RECORDING"
    ASKING = "ASKING"
    STORING = "STORING"
    ACTING = "ACTING"
    ENDING = "ENDING"
    ENDED = "ENDED"


class Outcome(StrEnum):
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class End:
    """How the turn is over. `reason` is a stable word, None for a completed one; `status` the provider's, if it said one."""

    outcome: Outcome
    reason: str | None = None
    error: str | None = None
    status: int | None = None


# --- events --------------------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Begin:
    """The message, with what is to be stored before it (results for calls that an interruption left open), and with it (facts)."""

    message_id: str
    text: str
    before: tuple[Message, ...] = ()
    facts: str | None = None


@dataclass(frozen=True, slots=True)
class Recorded:
    """What was last asked to be recorded is durable."""


@dataclass(frozen=True, slots=True)
class RecordFailed:
    """It could not be made durable. `cause` is STORAGE_FULL or STORE_UNWRITABLE."""

    cause: str
    error: str


@dataclass(frozen=True, slots=True)
class Answered:
    """The round's accepted answer."""

    message: AssistantMessage


@dataclass(frozen=True, slots=True)
class RoundFailed:
    """The round ended without one. `reason` is the attempt loop's class."""

    reason: str
    error: str
    status: int | None = None


@dataclass(frozen=True, slots=True)
class ToolsDone:
    """Every call has its one stored result."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """The person ends the turn."""


@dataclass(frozen=True, slots=True)
class Steer:
    """A further text of the person for this turn."""

    message_id: str
    text: str


Event = Begin | Recorded | RecordFailed | Answered | RoundFailed | ToolsDone | Cancel | Steer


# --- effects -------------------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Entry:
    """One message to store. `id` None: it gets one. `steers` is the turn it came into. `facts` are told right before it."""

    message: Message
    id: str | None = None
    steers: str | None = None
    facts: str | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """Store these together, then say Recorded or RecordFailed."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Ask:
    """Begin a round, then say Answered or RoundFailed."""


@dataclass(frozen=True, slots=True)
class RunTools:
    """Run these calls, storing each result, then say ToolsDone or RecordFailed."""

    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class StopWork:
    """Tell the round or the tools that run to stop. They still say how they ended."""


@dataclass(frozen=True, slots=True)
class RecordEnd:
    """Store how the turn ended, then say Recorded or RecordFailed."""

    message_id: str
    end: End


@dataclass(frozen=True, slots=True)
class SayEnd:
    """The turn is over."""

    message_id: str
    end: End


Effect = Record | Ask | RunTools | StopWork | RecordEnd | SayEnd


class IllegalEventError(Exception):
    """An event that cannot happen in this state. Nothing was changed."""


class TurnMachine:
    """One turn. `rounds_max` bounds the answers of the model."""

    def __init__(self, *, rounds_max: int = ROUNDS_MAX) -> None:
        self.state = TurnState.NEW
        self.rounds = 0
        self._rounds_max = rounds_max
        self._message_id = ""
        self._is_cancelled = False
        self._answer: AssistantMessage | None = None
        self._steers: list[Steer] = []
        self._end: End | None = None

    @property
    def is_cancelled(self) -> bool:
        return self._is_cancelled

    @property
    def may_be_steered(self) -> bool:
        """Whether a text that comes now still reaches the model in this turn."""
        is_open = self.state not in (TurnState.NEW, TurnState.ENDING, TurnState.ENDED)
        return is_open and not self._is_cancelled

    def step(self, event: Event) -> list[Effect]:
        """Takes one event. Raises IllegalEventError and changes nothing where it cannot happen."""
        match self.state, event:
            case TurnState.NEW, Begin():
                return self._begin(event)
            case ((TurnState.NEW | TurnState.ENDED), _):
                raise IllegalEventError(f"{type(event).__name__} in {self.state}")
            case _, Cancel():
                return self._cancel()
            case _, Steer() if self.may_be_steered:
                self._steers.append(event)
                return []
            case TurnState.ENDING, (Recorded() | RecordFailed()):
                return self._ended(event)
            case TurnState.RECORDING, Recorded():
                return self._ask()
            case TurnState.STORING, Recorded():
                return self._stored()
            case TurnState.ASKING, Answered(message):
                return self._answered(message)
            case TurnState.ASKING, RoundFailed(reason, error, status):
                return self._finish(End(Outcome.FAILED, reason, error, status))
            case TurnState.ACTING, ToolsDone():
                return self._ask()
            case ((TurnState.RECORDING | TurnState.STORING | TurnState.ACTING), RecordFailed(cause, error)):
                return self._broken(cause, error)
            case _:
                raise IllegalEventError(f"{type(event).__name__} in {self.state}")

    def _begin(self, event: Begin) -> list[Effect]:
        self.state, self._message_id = TurnState.RECORDING, event.message_id
        entries = [Entry(message) for message in event.before]
        entries.append(Entry(UserMessage(event.text), event.message_id, facts=event.facts))
        return [Record(tuple(entries))]

    def _cancel(self) -> list[Effect]:
        if self._is_cancelled or self.state is TurnState.ENDING:
            return []
        self._is_cancelled = True
        return [StopWork()]

    def _ask(self) -> list[Effect]:
        """The next round, or what has to come before it."""
        if self._is_cancelled:
            return self._finish(End(Outcome.CANCELLED, "cancelled"))
        if self._steers:
            entries = tuple(
                Entry(UserMessage(steer.text), steer.message_id, steers=self._message_id) for steer in self._steers
            )
            self._steers.clear()
            self.state = TurnState.RECORDING
            return [Record(entries)]
        if self.rounds >= self._rounds_max:
            error = (
                f"the model was asked {self.rounds} times in this turn, which is the limit; go on with a new message"
            )
            return self._finish(End(Outcome.FAILED, "rounds_max", error))
        self.rounds += 1
        self.state = TurnState.ASKING
        return [Ask()]

    def _answered(self, message: AssistantMessage) -> list[Effect]:
        if self._is_cancelled:
            return self._finish(End(Outcome.CANCELLED, "cancelled"))
        self.state, self._answer = TurnState.STORING, message
        return [Record((Entry(message),))]

    def _stored(self) -> list[Effect]:
        answer = self._answer
        assert answer is not None
        self._answer = None
        if not answer.tool_calls:
            # A text that came while the last answer was on its way is the next thing the model hears, not lost.
            if self._steers and not self._is_cancelled:
                return self._ask()
            return self._finish(End(Outcome.COMPLETED))
        if may_run_calls(answer):
            self.state = TurnState.ACTING
            return [RunTools(answer.tool_calls)]
        self.state = TurnState.RECORDING
        return [Record(tuple(Entry(result) for result in _not_run(answer.tool_calls)))]

    def _finish(self, end: End) -> list[Effect]:
        if self._is_cancelled:
            end = End(Outcome.CANCELLED, "cancelled")
        self.state, self._end = TurnState.ENDING, end
        return [RecordEnd(self._message_id, end)]

    def _broken(self, cause: str, error: str) -> list[Effect]:
        self.state, self._end = TurnState.ENDED, End(Outcome.FAILED, cause, error)
        return [SayEnd(self._message_id, self._end)]

    def _ended(self, event: Recorded | RecordFailed) -> list[Effect]:
        self.state = TurnState.ENDED
        if isinstance(event, RecordFailed):
            self._end = End(Outcome.FAILED, event.cause, event.error)
        assert self._end is not None
        return [SayEnd(self._message_id, self._end)]


def _not_run(calls: Sequence[ToolCall]) -> list[ToolResult]:
    return [
        ToolResult(call.call_id, call.name, TRUNCATED_OUTPUT, RunState.NOT_STARTED, is_error=True) for call in calls
    ]
