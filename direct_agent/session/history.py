"""What the records of a session come to: the transcript the model is sent, and the turns. Pure.

Folds records one by one, at load and while a session grows, so both ways give the same history.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from direct_agent.session.errors import SessionError
from direct_agent.session.records import Damage, Line, RawRecord, Record
from direct_agent.transcript import AssistantMessage, ToolCall, ToolResult, Transcript, UserMessage

COMPLETED = "completed"
SUMMARY_OPENING = "Summary of the conversation before this point, written when it was shortened:\n\n"


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of the person and what came of it. `outcome` is None while it runs, or when it was interrupted."""

    message_id: str
    outcome: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Header:
    """What a session file says of itself."""

    session_id: str
    cwd: str
    agent_version: str
    forked_from: str | None


class History:
    """Grows by `add`. `unread` counts the records that this version keeps and does not read."""

    def __init__(self) -> None:
        self.header: Header | None = None
        self.turns: dict[str, Turn] = {}
        self.steered: dict[str, str] = {}  # message id of a steering text -> the turn it came into
        self.repairs: list[str] = []
        self.unread = 0
        self.last_record_id: str | None = None
        self.agreements: str | None = None
        self._summary: UserMessage | None = None
        self._messages: list[tuple[str, UserMessage | AssistantMessage | ToolResult]] = []  # with their record ids
        self._started_calls: dict[str, set[str]] = {}  # record id of the answer -> call ids that began

    @classmethod
    def load(cls, lines: Iterable[Line], *, session_id: str) -> History:
        """Raises SessionError: SESSION_DAMAGED, SESSION_TOO_NEW, SESSION_MISMATCH."""
        history = cls()
        for line in lines:
            match line:
                case Damage(number):
                    raise SessionError("SESSION_DAMAGED", f"expected a record in line {number}, found something else")
                case RawRecord(is_of_history=True):
                    text = "the session holds messages of a newer version; open it with that one"
                    raise SessionError("SESSION_TOO_NEW", text)
                case RawRecord():
                    history.unread += 1
                case Record():
                    history.add(line)
        if history.header is None or history.header.session_id != session_id:
            found = history.header.session_id if history.header else "no header"
            raise SessionError("SESSION_MISMATCH", f"expected the session {session_id}, found {found}")
        return history

    @property
    def transcript(self) -> Transcript:
        """What the model is to be sent, before any repair."""
        summary = (self._summary,) if self._summary else ()
        return (*summary, *(message for _, message in self._messages))

    @property
    def last_turn(self) -> Turn | None:
        return next(reversed(self.turns.values()), None)

    def record_id_at(self, place: int) -> str:
        """The record of the message at that place of the transcript. The summary of a compaction has none: IndexError."""
        at = place - (1 if self._summary else 0)
        if at < 0:
            raise IndexError("the summary is no message of its own")
        return self._messages[at][0]

    @property
    def unsettled(self) -> Transcript:
        """The messages of all turns since the last completed one: what an interruption may have left open is in them."""
        at_end = 0
        for at, (id_, _) in enumerate(self._messages):
            if id_ in self.turns:
                at_end = at if at_end < 0 else at_end
                if self.turns[id_].outcome == COMPLETED:
                    at_end = -1
        return () if at_end < 0 else tuple(message for _, message in self._messages[at_end:])

    def has_started(self, call: ToolCall) -> bool:
        """Whether the newest call of that id was recorded as about to run."""
        answer = self._answer_with(call.call_id)
        return answer is not None and call.call_id in self._started_calls.get(self._messages[answer][0], set())

    def add(self, record: Record) -> None:
        """Takes one record. What belongs to nothing that is here (any more) changes nothing."""
        self.last_record_id = record.id
        match record.kind:
            case "session":
                self._add_header(record)
            case "message":
                self._add_message(record)
            case "started":
                self._add_started(str(record.text("call_id")))
            case "intent":
                self._add_intent(str(record.text("call_id")), str(record.text("intent")))
            case "repair":
                self.repairs.append(record.text("record") or "")
            case "compaction":
                self._compact(record)
            case "end":
                message_id = str(record.text("message_id"))
                self.turns[message_id] = Turn(message_id, record.text("outcome"), record.text("reason"))

    def _add_header(self, record: Record) -> None:
        # A copy of another session's records keeps only its own header: the first.
        if self.header is None:
            self.header = Header(
                session_id=str(record.text("session_id")),
                cwd=str(record.text("cwd")),
                agent_version=record.text("agent_version") or "",
                forked_from=record.text("forked_from"),
            )

    def _add_message(self, record: Record) -> None:
        message = record.message
        if isinstance(message, UserMessage) and not message.is_host:
            if (steers := record.text("steers")) is not None:
                self.steered[record.id] = steers
            else:
                self.turns[record.id] = Turn(record.id)
        if (facts := record.text("facts")) is not None:
            self._messages.append((record.id, UserMessage(facts, is_host=True)))
        self._messages.append((record.id, message))

    def _answer_with(self, call_id: str) -> int | None:
        for at in range(len(self._messages) - 1, -1, -1):
            message = self._messages[at][1]
            if isinstance(message, AssistantMessage) and any(call.call_id == call_id for call in message.tool_calls):
                return at
        return None

    def _add_started(self, call_id: str) -> None:
        answer = self._answer_with(call_id)
        if answer is not None:
            self._started_calls.setdefault(self._messages[answer][0], set()).add(call_id)

    def _add_intent(self, call_id: str, intent: str) -> None:
        answer = self._answer_with(call_id)
        if answer is None:
            return
        record_id, message = self._messages[answer]
        assert isinstance(message, AssistantMessage)
        calls = tuple(
            replace(call, intents=(*call.intents, intent)) if call.call_id == call_id else call
            for call in message.tool_calls
        )
        self._messages[answer] = (record_id, replace(message, tool_calls=calls))

    def _compact(self, record: Record) -> None:
        tail_from = record.text("tail_from")
        at = next((at for at, (id_, _) in enumerate(self._messages) if id_ == tail_from), len(self._messages))
        self._messages = self._messages[at:]
        self._summary = UserMessage(SUMMARY_OPENING + str(record.text("summary")), is_host=True)
        self.agreements = record.text("agreements")
