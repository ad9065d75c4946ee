"""One user turn the way an agent drives it: rounds and a harmless counting tool, against a scripted server.

Small on purpose. It keeps the rules that belong to a loop: only a committed message enters the transcript, a message
that hit its limit runs none of its calls, each call ends with exactly one stored result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from direct_agent.adapters.http_transport import Credential, HttpTransport, Timeouts
from direct_agent.conductors.attempt import ReadLimits
from direct_agent.conductors.round import RoundEnd, RoundOutcome, Rounds, Surroundings
from direct_agent.core.endpoint import Endpoint
from direct_agent.core.request_settings import RequestSettings
from direct_agent.ports import Compactor, NotPersistedError
from direct_agent.recovery.memory import RepairMemory
from direct_agent.recovery.policy import Policy, RoundRole
from direct_agent.transcript import (
    TRUNCATED_OUTPUT,
    AssistantMessage,
    Message,
    RunState,
    ToolResult,
    Transcript,
    Usage,
    UserMessage,
    may_run_calls,
)
from standfast_lab.recovery.hand_clock import HandClock

LAB_KEY = "lab-key-0123456789"
ROUNDS_MAX = 12


@dataclass(frozen=True)
class EchoTool:
    name: str = "echo"
    description: str = "Says the text again."
    parameters: Mapping[str, Any] = field(
        default_factory=lambda: {
            "type": "object",
            "properties": {"text": {"type": "string"}},
            "required": ["text"],
        }
    )


class Log:
    """A repair log in memory. `fails`: nothing can be saved."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.fails = False

    async def persist(self, record: bytes) -> None:
        if self.fails:
            raise NotPersistedError("no space")
        self.records.append(record)


class Recorder:
    """Keeps events; `heard` may act on one."""

    def __init__(self) -> None:
        self.events: list[Mapping[str, object]] = []
        self.heard: Callable[[Mapping[str, object]], None] | None = None

    def emit(self, event: Mapping[str, object]) -> None:
        self.events.append(event)
        if self.heard is not None:
            self.heard(event)

    def named(self, name: str) -> list[Mapping[str, object]]:
        return [event for event in self.events if event["event"] == name]


@dataclass
class NoBudget:
    """No limit, unless a test sets one."""

    limit: str | None = None
    ends_at_s: float | None = None
    clock: HandClock | None = None

    def spent(self, usage: Usage) -> str | None:
        if self.limit is not None:
            return self.limit
        left = self.remaining_s()
        return "time" if left is not None and left <= 0 else None

    def remaining_s(self) -> float | None:
        if self.ends_at_s is None or self.clock is None:
            return None
        return self.ends_at_s - self.clock.monotonic()


@dataclass
class Conversation:
    """A conversation with one endpoint. `transcript` is the canonical one; `executions` counts real tool runs."""

    endpoint: Endpoint
    policy: Policy = field(default_factory=Policy)
    role: RoundRole = field(default_factory=RoundRole)
    jitter_s: float = 3.0
    clock: HandClock = field(default_factory=HandClock)
    log: Log = field(default_factory=Log)
    events: Recorder = field(default_factory=Recorder)
    budget: NoBudget = field(default_factory=NoBudget)
    limits: ReadLimits = field(default_factory=ReadLimits)
    timeouts: Timeouts = field(default_factory=lambda: Timeouts(connect_s=5.0, idle_s=5.0))
    settings: RequestSettings = field(default_factory=lambda: RequestSettings("You are terse.", (EchoTool(),)))
    transcript: list[Message] = field(default_factory=list)
    executions: int = 0
    cancel: asyncio.Event = field(default_factory=asyncio.Event)
    usage: Usage = field(default_factory=Usage)
    output: Callable[[str], str] = lambda said: f"echoed: {said}"
    on_executed: Callable[[], None] | None = None
    memory: RepairMemory | None = None
    compactor: Compactor | None = None

    async def turn(self, user_text: str) -> RoundOutcome:
        """One message of the user, and what follows from it."""
        self.transcript.append(UserMessage(user_text))
        return await self.go_on()

    async def go_on(self) -> RoundOutcome:
        """Runs rounds until the model answers without calls, or a round does not commit."""
        memory = self.memory = self.memory or RepairMemory(self.endpoint)
        credential = Credential(lambda: LAB_KEY)
        async with HttpTransport(credential, self.timeouts) as transport:
            around = Surroundings(
                transport, self.clock, self.log, self.events, self.compactor, jitter_s=lambda: self.jitter_s
            )
            rounds = Rounds(self.endpoint, memory, around, self.policy, self.limits)
            for _ in range(ROUNDS_MAX):
                outcome = await rounds.run(self.history(), self.settings, self.cancel, self.budget, self.role)
                self.usage += outcome.usage
                if outcome.end is not RoundEnd.COMMITTED or outcome.message is None:
                    return outcome
                self.transcript.append(outcome.message)
                if not outcome.message.tool_calls:
                    return outcome
                self.transcript.extend(self._results(outcome.message))
        raise RuntimeError(f"the conversation did not end in {ROUNDS_MAX} rounds")

    def history(self) -> Transcript:
        return tuple(self.transcript)

    def _results(self, message: AssistantMessage) -> Sequence[ToolResult]:
        results = []
        for call in message.tool_calls:
            if not may_run_calls(message):
                results.append(ToolResult(call.call_id, call.name, TRUNCATED_OUTPUT, RunState.NOT_STARTED, True))
                continue
            self.executions += 1
            results.append(ToolResult(call.call_id, call.name, self.output("hi"), RunState.COMPLETED))
            if self.on_executed is not None:
                self.on_executed()
        return results
