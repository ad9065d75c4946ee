"""The native requests of one turn: who may answer them, when, and how each came to its end. Pure; knows no time.

                         ┌─ Answered (the same again: already so) ──▶ ANSWERED
    Asked ──▶ OPEN ──────┼─ Expired ─────────────────────────────────▶ EXPIRED
      │                  ├─ Withdrawn (the CLI took it back) ────────▶ WITHDRAWN
      │                  └─ TurnStopping ────────────────────────────▶ CANCELLED
      ├──▶ BY_MODE       a permission in the mode `auto` (allowed) or `deny` (refused): nobody is asked
      ├──▶ REFUSED       of a kind that nobody here can answer, or one too many: refused natively, never left in silence
      └──▶ CANCELLED     the turn is ending: nobody can answer it any more

Exactly one answer goes to the CLI for one request. What ends a request never opens it again, and an id that was used is not
used for another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from runner.core.answers import Answer, PermissionAnswer, QuestionAnswer, RejectAnswer, check_answer
from runner.core.errors import RunnerError
from runner.core.events import NativeRequest

OPEN_MAX = 64
EXPIRED_MESSAGE = "Nobody answered in time."
DENIED_MESSAGE = "This conversation's permission mode denies what it would have to ask for."


class RequestState(Enum):
    """Where a native request is. All but OPEN are ends."""

    OPEN = "OPEN"
    ANSWERED = "ANSWERED"
    BY_MODE = "BY_MODE"
    EXPIRED = "EXPIRED"
    WITHDRAWN = "WITHDRAWN"
    CANCELLED = "CANCELLED"
    REFUSED = "REFUSED"


class NativeRequestUnknownError(RunnerError):
    """The conversation's running turn has no native request of that id."""

    reason = "NATIVE_REQUEST_UNKNOWN"


class NativeRequestClosedError(RunnerError):
    """The native request is no longer open. `metadata["end"]` says how it ended."""

    reason = "NATIVE_REQUEST_CLOSED"


# --- events ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Asked:
    """The CLI asks."""

    request: NativeRequest


@dataclass(frozen=True, slots=True)
class Answered:
    """A client answers."""

    request_id: str
    answer: Answer


@dataclass(frozen=True, slots=True)
class Expired:
    """The wait for an answer is over."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The CLI took the request back."""

    request_id: str


@dataclass(frozen=True, slots=True)
class TurnStopping:
    """The turn ended, or was told to end."""


Event = Asked | Answered | Expired | Withdrawn | TurnStopping


# --- effects --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ShowRequest:
    """Tell the client of it. `waits`: its expiry is to be timed."""

    request: NativeRequest
    waits: bool


@dataclass(frozen=True, slots=True)
class SendAnswer:
    """Write the native answer. Happens at most once for one request."""

    request_id: str
    answer: Answer


@dataclass(frozen=True, slots=True)
class RefuseNatively:
    """Write the protocol's own error for a request that cannot be answered."""

    request_id: str


@dataclass(frozen=True, slots=True)
class StopUnanswered:
    """End the turn: the question expired and this CLI has no native way to reject it."""

    request_id: str


@dataclass(frozen=True, slots=True)
class ShowEnd:
    """Tell the client how the request ended, and stop its timer. `answer` is what the CLI was told, if it was."""

    request_id: str
    state: RequestState
    answer: Answer | None


Effect = ShowRequest | SendAnswer | RefuseNatively | StopUnanswered | ShowEnd


@dataclass(slots=True)
class _Entry:
    request: NativeRequest
    state: RequestState
    answer: Answer | None = None


class PendingRequests:
    """One turn's. `mode` is the conversation's permission mode; `rejects_questions`: the CLI has a native reject of one."""

    def __init__(self, mode: str, *, rejects_questions: bool) -> None:
        self._mode = mode
        self._rejects_questions = rejects_questions
        self._entries: dict[str, _Entry] = {}
        self._is_stopping = False

    @property
    def open(self) -> tuple[NativeRequest, ...]:
        """Those that wait for an answer, in the order in which they came."""
        return tuple(entry.request for entry in self._entries.values() if entry.state is RequestState.OPEN)

    def step(self, event: Event) -> list[Effect]:
        """Takes one event. Raises, and changes nothing, for an answer that cannot be given:

        AnswerShapeError, NativeRequestUnknownError, NativeRequestClosedError.
        """
        match event:
            case Asked(request):
                return self._asked(request)
            case Answered(request_id, answer):
                return self._answered(request_id, answer)
            case Expired(request_id):
                return self._expired(request_id)
            case Withdrawn(request_id):
                return self._end(request_id, RequestState.WITHDRAWN) if self.is_open(request_id) else []
            case TurnStopping():
                self._is_stopping = True
                return [
                    effect for request in self.open for effect in self._end(request.request_id, RequestState.CANCELLED)
                ]

    def would_wait(self, request: NativeRequest) -> bool:
        """Whether a person is to answer it, as far as that is known before it is asked."""
        return request.kind == "question" or (request.kind == "permission" and self._by_mode(request) is None)

    def is_open(self, request_id: str) -> bool:
        """Whether it waits for an answer."""
        entry = self._entries.get(request_id)
        return entry is not None and entry.state is RequestState.OPEN

    def _asked(self, request: NativeRequest) -> list[Effect]:
        request_id = request.request_id
        if request_id in self._entries:
            return []  # a CLI that says it twice asks once
        show = ShowRequest(request, waits=False)
        if self._is_stopping:
            self._entries[request_id] = _Entry(request, RequestState.CANCELLED)
            return [show, ShowEnd(request_id, RequestState.CANCELLED, None)]
        if request.kind not in ("permission", "question") or len(self.open) >= OPEN_MAX:
            self._entries[request_id] = _Entry(request, RequestState.REFUSED)
            return [show, RefuseNatively(request_id), ShowEnd(request_id, RequestState.REFUSED, None)]
        by_mode = self._by_mode(request)
        if by_mode is not None:
            self._entries[request_id] = _Entry(request, RequestState.BY_MODE, by_mode)
            return [show, SendAnswer(request_id, by_mode), ShowEnd(request_id, RequestState.BY_MODE, by_mode)]
        self._entries[request_id] = _Entry(request, RequestState.OPEN)
        return [ShowRequest(request, waits=True)]

    def _by_mode(self, request: NativeRequest) -> Answer | None:
        """The answer that needs nobody. A question is never answered for anybody; `deny` rejects it where that can be."""
        if request.kind == "permission" and self._mode == "auto":
            return PermissionAnswer(allow=True)
        if request.kind == "permission" and self._mode == "deny":
            return PermissionAnswer(allow=False, message=DENIED_MESSAGE)
        return None

    def _answered(self, request_id: str, answer: Answer) -> list[Effect]:
        entry = self._entries.get(request_id)
        if entry is None:
            raise NativeRequestUnknownError(
                f"The running turn has no native request {request_id[:80]}. List them: they carry the ids to answer with.",
                {"request_id": request_id[:200]},
            )
        if entry.state is RequestState.ANSWERED and entry.answer == answer:
            return []  # already so
        if entry.state is not RequestState.OPEN:
            raise NativeRequestClosedError(
                f"Native request {request_id[:80]} is no longer open ({entry.state.value}); one answer goes to one request, "
                "and nothing was told to the CLI now.",
                {"request_id": request_id[:200], "end": entry.state.value},
            )
        check_answer(entry.request, answer)
        entry.answer = answer
        return [SendAnswer(request_id, answer), *self._end(request_id, RequestState.ANSWERED)]

    def _expired(self, request_id: str) -> list[Effect]:
        if not self.is_open(request_id):
            return []  # the answer came while the wait was running out
        entry = self._entries[request_id]
        if entry.request.kind == "question" and not self._rejects_questions:
            return [*self._end(request_id, RequestState.EXPIRED), StopUnanswered(request_id)]
        permission = entry.request.kind == "permission"
        entry.answer = (
            PermissionAnswer(allow=False, message=EXPIRED_MESSAGE) if permission else RejectAnswer(EXPIRED_MESSAGE)
        )
        return [SendAnswer(request_id, entry.answer), *self._end(request_id, RequestState.EXPIRED)]

    def _end(self, request_id: str, state: RequestState) -> list[Effect]:
        entry = self._entries[request_id]
        entry.state = state
        return [ShowEnd(request_id, state, entry.answer)]


def answer_word(answer: Answer | None) -> str:
    """What the CLI was told, as a stable word; empty for nothing."""
    match answer:
        case PermissionAnswer(allow=True):
            return "ALLOW"
        case QuestionAnswer():
            return "ANSWER"
        case None:
            return ""
        case _:
            return "DENY"
