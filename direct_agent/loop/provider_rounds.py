"""Asks a real endpoint: the attempt loop as the turn's Rounds, its events as events of the agent, its repairs in the session."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from direct_agent.conductors import auxiliary
from direct_agent.conductors.round import RoundEnd, Surroundings
from direct_agent.conductors.round import Rounds as AttemptRounds
from direct_agent.core.endpoint import Endpoint
from direct_agent.core.request_settings import RequestSettings, ToolDeclaration
from direct_agent.loop.ports import Accepted, Audience, NotAnswered, Past, RoundOutcome
from direct_agent.ports import Cancellation, Clock, NotPersistedError, Transport
from direct_agent.recovery.fault import Fault
from direct_agent.recovery.memory import RepairMemory
from direct_agent.recovery.policy import Policy, RoundRole
from direct_agent.session.compaction import summary_request, tail_start
from direct_agent.session.errors import SessionWriteError
from direct_agent.session.history import SUMMARY_OPENING
from direct_agent.session.session import Session
from direct_agent.transcript import Transcript, Usage, UserMessage


class SessionRepairs:
    """Implements RepairLog on a session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def persist(self, record: bytes) -> None:
        try:
            await self._session.append(("repair", {"record": record.decode("utf-8", "surrogatepass")}, None))
        except SessionWriteError as error:
            raise NotPersistedError(error.cause) from error


@dataclass(slots=True)
class TurnBudget:
    """Implements Budget: the turn's own time limit, off unless set."""

    limit_s: float | None = None
    now: Callable[[], float] = time.monotonic
    began_at: float = 0.0

    def begin(self) -> None:
        self.began_at = self.now()

    def spent(self, usage: Usage) -> str | None:
        left_s = self.remaining_s()
        return "time" if left_s is not None and left_s <= 0 else None

    def remaining_s(self) -> float | None:
        return None if self.limit_s is None else self.began_at + self.limit_s - self.now()


class AttemptEvents:
    """Implements Events: what the attempt loop says, as the agent says it."""

    def __init__(self, audience: Audience) -> None:
        self._audience = audience
        self.is_silent = False  # while an auxiliary call runs, whose text is nobody's answer

    def emit(self, event: Mapping[str, object]) -> None:
        match event["event"]:
            case "delta" if not self.is_silent and event["kind"] in ("text", "reasoning"):
                self._audience.say({"type": f"{event['kind']}_delta", "text": event["text"]})
            case "attempt_discard" if not self.is_silent:
                self._say("discarded", event, "attempt", "reason")
            case "retrying":
                status = event["status"]
                fields = ("attempt", "limit", "reason", "delay_s", "next_at", "waited_s", "waiting")
                number = int(status) if isinstance(status, str) and status.isdigit() else None
                self._audience.say({"type": "retrying", **{name: event[name] for name in fields}, "status": number})
            case "countdown":
                self._say("countdown", event, "remaining_s", "waiting")
            case _:
                pass

    def _say(self, kind: str, event: Mapping[str, object], *names: str) -> None:
        self._audience.say({"type": kind, **{name: event[name] for name in names}})


class ProviderRounds:
    """Implements loop.ports.Rounds. One conversation with one endpoint."""

    def __init__(
        self,
        endpoint: Endpoint,
        session: Session,
        transport: Transport,
        clock: Clock,
        audience: Audience,
        tools: Callable[[], Sequence[ToolDeclaration]],
        *,
        policy: Policy | None = None,
        budget: TurnBudget | None = None,
    ) -> None:
        history = session.history
        records = [raw.encode("utf-8", "surrogatepass") for raw in history.repairs]
        self._endpoint = endpoint
        self._tools = tools
        self._policy = policy or Policy()
        self._budget = budget or TurnBudget()
        self._events = AttemptEvents(audience)
        self._around = Surroundings(transport, clock, SessionRepairs(session), self._events, compactor=self)
        memory = RepairMemory.restored(endpoint, records, history.transcript)
        self._rounds = AttemptRounds(endpoint, memory, self._around, self._policy)
        self._instructions = ""
        self._cancel: Cancellation | None = None
        self._summary: str | None = None
        self._aside_usage = Usage()

    def begin_turn(self) -> None:
        self._budget.begin()

    async def ask(self, transcript: Transcript, instructions: str, cancel: Cancellation, past: Past) -> RoundOutcome:
        self._instructions, self._cancel, self._summary, self._aside_usage = instructions, cancel, None, Usage()
        outcome = await self._rounds.run(
            transcript,
            RequestSettings(system=instructions, tools=self._tools()),
            cancel,
            self._budget,
            RoundRole(has_pending_unknown=past.has_unknown),
            lambda call: past.findings.get(call.call_id, ()),
        )
        usage = outcome.usage + self._aside_usage
        if outcome.end is RoundEnd.COMMITTED and outcome.message is not None:
            return Accepted(outcome.message, usage)
        return _not_answered(outcome.end, outcome.fault, outcome.limit, usage)

    def taken_summary(self) -> str | None:
        summary, self._summary = self._summary, None
        return summary

    async def ask_aside(self, transcript: Transcript, instructions: str, cancel: Cancellation) -> RoundOutcome:
        self._events.is_silent = True
        try:
            outcome = await auxiliary.ask(
                self._endpoint,
                transcript,
                RequestSettings(system=instructions),
                self._around,
                cancel,
                self._budget,
                self._policy,
            )
        finally:
            self._events.is_silent = False
        if outcome.end is RoundEnd.COMMITTED and outcome.message is not None:
            return Accepted(outcome.message, outcome.usage)
        return _not_answered(outcome.end, outcome.fault, outcome.limit, outcome.usage)

    async def compact(self, view: Transcript) -> Transcript | None:
        """Implements Compactor: all before the person's last message becomes a summary, once a round."""
        start = tail_start(view, turns_kept=1)
        if start is None or self._summary is not None or self._cancel is None:
            return None
        outcome = await self.ask_aside(summary_request(view[:start]), self._instructions, self._cancel)
        self._aside_usage += outcome.usage
        if not isinstance(outcome, Accepted) or not outcome.message.text.strip():
            return None
        self._summary = outcome.message.text
        return (UserMessage(SUMMARY_OPENING + self._summary, is_host=True), *view[start:])


def _not_answered(end: RoundEnd, fault: Fault | None, limit: str | None, usage: Usage) -> NotAnswered:
    match end:
        case RoundEnd.CANCELLED:
            return NotAnswered("cancelled", "cancelled", usage)
        case RoundEnd.STOPPED:
            text = f"the turn's own limit ({limit}) is spent; what was done stays done"
            return NotAnswered(f"budget_{limit}", text, usage)
        case _ if fault is not None:
            return NotAnswered(fault.fault_class.value, fault.message, usage, fault.status)
        case _:
            return NotAnswered("unknown", "the round ended without an answer and without a reason", usage)
