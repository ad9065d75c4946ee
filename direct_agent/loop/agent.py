"""One process's agent on one open session: takes messages one at a time, each id once; cancel, steer, answers, compaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from direct_agent.intents.observe import DiskWitness
from direct_agent.loop.conductor import Delivery, Instructions, SessionCalls, TurnConductor
from direct_agent.loop.ports import Accepted, Audience, Rounds
from direct_agent.loop.requests import PermissionAnswer, Question, QuestionAnswer, Requests
from direct_agent.loop.resumption import CallKinds, Resumption, pending_of, resume
from direct_agent.loop.tool_runs import ToolRuns
from direct_agent.loop.turn import ROUNDS_MAX, End
from direct_agent.session.compaction import summary_request, tail_start
from direct_agent.session.records import compaction_data
from direct_agent.session.session import Session
from direct_agent.tools.ask import Ask
from direct_agent.tools.disk import Disk
from direct_agent.tools.permissions import Permissions
from direct_agent.tools.toolbox import Toolbox


class BusyError(Exception):
    """A turn or a compaction is running; one at a time."""


@dataclass(frozen=True, slots=True)
class Known:
    """This message id was delivered before. `outcome` is None while its turn runs, or when it was interrupted."""

    outcome: str | None


class Agent:
    """`agreements` gives the agreements' text as it is now, None where there are none."""

    def __init__(
        self,
        session: Session,
        rounds: Rounds,
        toolbox: Toolbox,
        disk: Disk,
        permissions: Permissions,
        audience: Audience,
        instructions: Instructions,
        *,
        agreements: Callable[[], str | None] | None = None,
        witness: DiskWitness | None = None,
        asks_person: bool = True,
        rounds_max: int = ROUNDS_MAX,
    ) -> None:
        self.session = session
        self._rounds = rounds
        self._disk = disk
        self._permissions = permissions
        self._audience = audience
        self._instructions = instructions
        self._agreements = agreements
        self._witness = witness or DiskWitness(disk)
        self._rounds_max = rounds_max
        self._request_count = 0
        self._requests = Requests(audience, self._new_request_id)
        plain = dict(toolbox.plain)
        if asks_person:
            plain["ask"] = Ask(self._ask_person)
        self.toolbox = Toolbox(plain, toolbox.changes)
        self._turn: TurnConductor | None = None
        self._message_id = ""
        self._is_compacting = False

    @property
    def is_busy(self) -> bool:
        return self._turn is not None or self._is_compacting

    def known(self, message_id: str) -> Known | None:
        """Whether a message with that id was delivered to this session, and how its turn ended."""
        history = self.session.history
        turn = history.turns.get(history.steered.get(message_id, message_id))
        return Known(turn.outcome) if turn is not None else None

    async def deliver(self, message_id: str, text: str) -> End | Known:
        """One message and its whole turn. A known id runs nothing. Raises BusyError."""
        if (known := self.known(message_id)) is not None:
            return known
        if self.is_busy:
            raise BusyError
        self._message_id = message_id
        self._rounds.begin_turn()
        resumption = await self._begun()
        try:
            assert self._turn is not None
            delivery = Delivery(message_id, text, resumption.placeholders, resumption.facts, resumption.past)
            return await self._turn.run(delivery)
        finally:
            self._turn = None

    async def _begun(self) -> Resumption:
        """Makes the turn, so that it can be cancelled from here on, and looks at what the one before left."""
        tools = ToolRuns(
            self.toolbox,
            self._disk,
            self._witness,
            self._permissions,
            self._requests,
            SessionCalls(self.session),
            self._audience,
        )
        self._turn = TurnConductor(
            self.session,
            self._rounds,
            tools,
            self._audience,
            self._instructions,
            rounds_max=self._rounds_max,
            agreements=self._current_agreements,
        )
        history = self.session.history
        kinds = CallKinds([spec.name for spec in self.toolbox.specs if spec.is_read_only], list(self.toolbox.changes))
        try:
            found = await asyncio.to_thread(resume, history.unsettled, kinds, history.has_started, self._witness.look)
        except BaseException:
            self._turn = None
            raise
        tools.pending = pending_of(found)
        return found

    def cancel(self) -> bool:
        """False when no turn runs."""
        if self._turn is None:
            return False
        self._turn.cancel()
        return True

    def steer(self, message_id: str, text: str) -> bool:
        """False when there is no turn that still takes it."""
        return self._turn is not None and self._turn.steer(message_id, text)

    def answer(self, request_id: str, answer: PermissionAnswer | QuestionAnswer) -> None:
        """Raises RequestNotOpenError."""
        self._requests.answer(request_id, answer)

    async def compact(self, cancel: asyncio.Event) -> str | None:
        """Shortens what the model is sent: summary and tail. None when nothing can be left out. Raises BusyError, CompactionError,
        SessionWriteError."""
        if self.is_busy:
            raise BusyError
        self._is_compacting = True
        try:
            return await self._compact(cancel)
        finally:
            self._is_compacting = False

    async def _compact(self, cancel: asyncio.Event) -> str | None:
        history = self.session.history
        start = tail_start(history.transcript)
        if start is None:
            return None
        request = summary_request(history.transcript[:start])
        outcome = await self._rounds.ask_aside(request, self._instructions(), cancel)
        if not isinstance(outcome, Accepted):
            raise CompactionError(outcome.reason, outcome.error)
        if not outcome.message.text.strip():
            raise CompactionError("empty", "the model gave no summary; nothing was changed")
        data = compaction_data(outcome.message.text, history.record_id_at(start), self._current_agreements())
        (record_id,) = await self.session.append(("compaction", data, None))
        return record_id

    def _current_agreements(self) -> str | None:
        """As they are now; where they cannot be read any more, as the last compaction kept them."""
        found = self._agreements() if self._agreements is not None else None
        return found if found is not None else self.session.history.agreements

    def _new_request_id(self) -> str:
        self._request_count += 1
        return f"{self._message_id}-r{self._request_count}"

    async def _ask_person(
        self, questions: Sequence[Mapping[str, Any]]
    ) -> tuple[tuple[tuple[str, ...], ...], str | None]:
        asked = [
            Question(
                header=question.get("header", ""),
                text=question["text"],
                options=tuple(question.get("options", ())),
                multiple=question.get("multiple", False),
                free_text=True,
            )
            for question in questions
        ]
        answer = await self._requests.question(asked)
        return answer.answers, answer.refused


class CompactionError(Exception):
    """No summary came. `reason` is the attempt loop's word; nothing was changed."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason
