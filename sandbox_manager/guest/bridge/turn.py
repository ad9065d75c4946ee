"""One turn of the root session: from the client's prompt to a native end that is proved, or to the word that there will be none. Pure.

    NEW --begun--> SUBSCRIBING --subscribed--> PROMPTING --taken--> RUNNING --idle, then quiet--> CHECKING --judged--> SETTLED
                        |                          |                  ^  |                           |
                        |                          |                  |  +------- busy again --------+
                        |                          |                  +--- a stale idle, not begun --+
                        |                          |                  |
                        +--- not opened -----------+--- not taken ----+--- subscription lost, server gone --> BROKEN

Every turn hangs on one live event stream, opened before the prompt and never replayed: when it is lost the native turn is aborted and the
turn is BROKEN, whatever the server does with it. Idle is only a hint: there are two after an error (and the error is written between
them), one more of an abort may hit the next turn, and children have their own. So after an idle of the root it must be quiet for a while,
the server's list of busy sessions must not name the root, and then its messages are judged (`ending.py`).

An abort does not change the state: what the server makes of it is judged like any end. It is asked for by the client, or by a guard: a
stream cut again and again, endless answers without a tool, too many retries, a prompt that is not ours, a reply that cannot be given.
"""

from enum import Enum

from .effects import (
    AbortAsked,
    AbortDone,
    AnswerCame,
    Begun,
    Effect,
    EndRead,
    EndReadFailed,
    Event,
    Finish,
    IllegalEventError,
    PostAbort,
    PostDone,
    PostPrompt,
    PromptFailed,
    PromptTaken,
    ReadEnd,
    Say,
    ServerEvent,
    SetTimer,
    Subscribe,
    Subscribed,
    SubscriptionLost,
    TimerFired,
)
from .ending import Ended, Known, NotYet, judge, unfinished
from .family import Family
from .flavours import Flavour
from .message_ids import NATIVE_ID, time_of
from .requests import Requests
from .shapes import Fields, fields, number, text
from .texts import Texts

QUIET_S = 0.3
CLOSE_WAIT_S = 1.0  # Kilo says turn.close after its last idle; it is not waited for longer than this
SECOND_LOOK_S = 1.0
ABORT_LOOK_S = 2.0
ABORT_LOOKS_MAX = 3
ANSWERS_WITHOUT_TOOL_MAX = 12
IDLE_HEARTBEATS_MAX = 3


class TurnState(Enum):
    NEW = "NEW"
    SUBSCRIBING = "SUBSCRIBING"
    PROMPTING = "PROMPTING"
    RUNNING = "RUNNING"
    CHECKING = "CHECKING"
    SETTLED = "SETTLED"
    BROKEN = "BROKEN"


class Turn:
    """One turn. `own_id` is the client's id of the message, `native_id` the one that the server gets."""

    def __init__(
        self,
        flavour: Flavour,
        session: str,
        own_id: str,
        native_id: str,
        content: str,
        *,
        mode: str,
        retries_max: int,
    ) -> None:
        self.state = TurnState.NEW
        self.own_id = own_id
        self.native_id = native_id
        self.newest: str | None = None  # the last message of the turn, once it is settled
        self._flavour = flavour
        self._session = session
        self._content = content
        self._retries_max = retries_max
        self._family = Family(session)
        self._requests = Requests(self._family, mode)
        self._texts = Texts(self._family, native_id)
        self._aborted_for: str | None = None
        self._abort_failed = False
        self._abort_looks = 0
        self._is_idle = False  # an idle of the root came, and nothing of it since
        self._was_busy = False
        self._close_seen = False
        self._close_waited = False
        self._second_look = False
        self._read_failed = False
        self._is_started = False
        self._is_known = False  # the server announced our message
        self._idle_heartbeats = 0
        self._error: Fields | None = None
        self._retries = 0
        self._answers: set[str] = set()  # assistant messages of the root since the last tool
        self._retire: dict[str, None] = {}
        self._early: list[ServerEvent] = []  # before the prompt was known to be taken

    @property
    def is_over(self) -> bool:
        return self.state in (TurnState.SETTLED, TurnState.BROKEN)

    def step(self, event: Event) -> list[Effect]:
        """Takes one event. What comes after the end changes nothing; what cannot come raises IllegalEventError."""
        if self.is_over:
            return []
        match self.state, event:
            case TurnState.NEW, Begun():
                self.state = TurnState.SUBSCRIBING
                return [Subscribe()]
            case TurnState.SUBSCRIBING, Subscribed():
                if self._aborted_for is not None:
                    return self._break("ABORTED_BEFORE_PROMPT", "the turn was aborted before its prompt was sent")
                self.state = TurnState.PROMPTING
                return [PostPrompt(self.native_id, self._content)]
            case TurnState.PROMPTING, PromptTaken():
                self.state = TurnState.RUNNING
                effects: list[Effect] = [Say({"ev": "accepted", **self._named()})]
                if self._aborted_for is not None:
                    effects += self._post_abort()
                early, self._early = self._early, []
                return effects + [effect for one in early for effect in self._server(one.kind, one.properties)]
            case TurnState.PROMPTING, PromptFailed(status, detail):
                if status is not None:
                    return self._break("PROMPT_REFUSED", f"HTTP {status}: {detail}")
                # Whether it was taken is not known. It is never sent again; the server is told to stop, in case.
                return [PostAbort(), *self._break("PROMPT_UNCONFIRMED", detail)]
            case TurnState.NEW, _:
                raise IllegalEventError(f"{type(event).__name__} in {self.state.value}")
            case _, SubscriptionLost(why):
                return self._lost(why)
            case _, AbortAsked():
                return self._abort("client")
            case TurnState.PROMPTING, ServerEvent():
                # Nothing of the turn is told before the prompt is known to be taken.
                self._early.append(event)
                return []
            case ((TurnState.RUNNING | TurnState.CHECKING), ServerEvent(kind, properties)):
                return self._server(kind, properties)
            case TurnState.SUBSCRIBING, ServerEvent():
                return []
            case TurnState.CHECKING, EndRead(busy, messages):
                return self._read(busy, messages)
            case TurnState.CHECKING, EndReadFailed(why):
                return self._not_read(why)
            case _, (EndRead() | EndReadFailed()):
                return []  # the session went on meanwhile
            case _, TimerFired(name):
                return self._timer(name)
            case _, AnswerCame():
                return self._after_requests(self._requests.answer(event))
            case _, PostDone():
                return self._after_requests(self._requests.done(event))
            case _, AbortDone(is_taken):
                return self._abort_done(is_taken)
            case _:
                raise IllegalEventError(f"{type(event).__name__} in {self.state.value}")

    # --- events of the server -----------------------------------------------------------------------------------------------------------
    def _server(self, kind: str, properties: Fields) -> list[Effect]:
        effects: list[Effect] = []
        if self._family.note(kind, properties):
            effects += self._requests.reported()
        effects += self._requests.note(kind, properties)
        effects += [Say(line) for line in self._texts.note(kind, properties)]
        if kind == "server.heartbeat":
            effects += self._heartbeat()
        elif self._is_of_root(kind, properties):
            effects += self._of_root(kind, properties)
        return self._after_requests(effects)

    def _is_of_root(self, kind: str, properties: Fields) -> bool:
        session = text(properties, "sessionID") or text(properties, "info", "sessionID")
        return (session or text(properties, "part", "sessionID")) == self._session

    def _of_root(self, kind: str, properties: Fields) -> list[Effect]:
        effects: list[Effect] = []
        match kind:
            case "session.status":
                effects += self._status(fields(properties, "status"))
            case "session.idle":
                effects += self._idle()
            case "session.error":
                self._error = fields(properties, "error") or self._error
                effects += self._go_on(resets_idle=False)
            case "session.turn.close":
                self._close_seen = True
                effects += self._go_on(resets_idle=False)
            case "session.wakeup" if (number(properties, "pending") or 0) > 0:
                effects += self._must_retire("WAKEUP_PENDING")
            case "session.deleted":
                effects += self._break("SESSION_DELETED", "the native session was deleted in the middle of its turn")
            case "message.updated":
                effects += self._message(fields(properties, "info"))
                effects += self._go_on(resets_idle=False)
            case "message.part.updated":
                if text(properties, "part", "type") == "tool":
                    self._answers.clear()
                effects += self._go_on(resets_idle=False)
            case _:
                pass
        return effects

    def _status(self, status: Fields) -> list[Effect]:
        match text(status, "type"):
            case "idle":
                return self._idle()
            case "retry":
                self._retries += 1
                retry = {
                    "ev": "retry",
                    "session": self._session,
                    "attempt": number(status, "attempt") or self._retries,
                    "delay_ms": None,
                    "detail": text(status, "message") or "",
                }
                guard = self._abort("RETRIES_EXHAUSTED") if self._retries > self._retries_max else []
                return [Say(retry), *self._busy(), *guard]
            case "busy" | "offline":
                return self._busy()
            case _:
                return []

    def _busy(self) -> list[Effect]:
        self._was_busy = True
        self._idle_heartbeats = 0
        return [*self._go_on(resets_idle=True), *self._started()]

    def _go_on(self, *, resets_idle: bool) -> list[Effect]:
        """Something of the root came: a reading that is under way says nothing any more."""
        if self.state is TurnState.CHECKING:
            self.state = TurnState.RUNNING
        if resets_idle:
            self._is_idle = False
        return [SetTimer("quiet", QUIET_S)] if self._is_idle and self.state is TurnState.RUNNING else []

    def _idle(self) -> list[Effect]:
        self._is_idle = True
        return self._go_on(resets_idle=False)

    def _message(self, info: Fields) -> list[Effect]:
        message, role = text(info, "id"), text(info, "role")
        if message is None:
            return []
        if role == "user":
            if message == self.native_id:
                self._is_known = True
                return self._started()
            is_later = (
                NATIVE_ID.fullmatch(message) is not None
                and NATIVE_ID.fullmatch(self.native_id) is not None
                and time_of(message) > time_of(self.native_id)
            )
            return [*self._must_retire("FOREIGN_PROMPT"), *self._abort("FOREIGN_PROMPT")] if is_later else []
        if role != "assistant" or text(info, "parentID") != self.native_id:
            return []
        finish = text(info, "finish")
        if finish in ("unknown", "other") and not self._flavour.ends_cut_streams:
            return self._abort("STREAM_CUT")
        if finish is not None and finish != "tool-calls":
            self._answers.add(message)
            if len(self._answers) > ANSWERS_WITHOUT_TOOL_MAX:
                return self._abort("ANSWERS_WITHOUT_END")
        return []

    def _started(self) -> list[Effect]:
        if self._is_started or not self._is_known:
            return []
        self._is_started = True
        return [Say({"ev": "started", **self._named()})]

    def _heartbeat(self) -> list[Effect]:
        """An idle that was missed must not let the turn hang: on each sign of life of a session that seems to work it is looked at."""
        if self.state is not TurnState.RUNNING or self._is_idle or self._requests.is_waiting:
            return []
        self.state = TurnState.CHECKING
        return [ReadEnd()]

    # --- the end ------------------------------------------------------------------------------------------------------------------------
    def _timer(self, name: str) -> list[Effect]:
        if name.startswith("hold:"):
            return self._after_requests(self._requests.hold_over(name.removeprefix("hold:")))
        if name == "abort":
            return self._abort_over()
        if self.state is not TurnState.RUNNING or not self._is_idle:
            return []
        if self._flavour.closes_turns and not self._close_seen and not self._close_waited:
            self._close_waited = True
            return [SetTimer("quiet", CLOSE_WAIT_S)]
        self.state = TurnState.CHECKING
        return [ReadEnd()]

    def _read(self, busy: bool, messages: list[Fields]) -> list[Effect]:
        self._read_failed = False
        self.state = TurnState.RUNNING
        if busy:
            self._is_idle = False
            self._was_busy = True
            return []
        known = Known(self._was_busy, self._aborted_for, self._requests.was_rejected, self._error)
        ended = judge(messages, self.native_id, known)
        if isinstance(ended, Ended):
            return self._settle(ended, messages)
        return self._not_yet(ended, messages)

    def _not_yet(self, found: NotYet, messages: list[Fields]) -> list[Effect]:
        if found.has_begun:
            if self._second_look:
                return self._settle(unfinished(messages, self.native_id), messages)
            # A directory that is gone gives the error only after the idle.
            self._second_look = True
            self._is_idle = True
            return [SetTimer("quiet", SECOND_LOOK_S)]
        self._is_idle = False
        self._idle_heartbeats += 1
        if self._idle_heartbeats > IDLE_HEARTBEATS_MAX:
            return [PostAbort(), *self._break("PROMPT_NOT_BEGUN", "the server took the prompt and did not begin it")]
        return []

    def _not_read(self, why: str) -> list[Effect]:
        self.state = TurnState.RUNNING
        if self._read_failed:
            return [PostAbort(), *self._break("SERVER_UNREACHABLE", why)]
        self._read_failed = True
        self._is_idle = True
        return [SetTimer("quiet", QUIET_S)]

    def _settle(self, ended: Ended, messages: list[Fields]) -> list[Effect]:
        effects: list[Effect] = [Say(line) for line in self._texts.close(messages)]
        effects += self._requests.leave()
        ids = [one for message in messages if (one := text(message, "info", "id")) is not None]
        self.newest = max((one for one in ids if NATIVE_ID.fullmatch(one)), default=self.native_id)
        self.state = TurnState.SETTLED
        line = {
            "ev": "settled",
            **self._named(),
            "outcome": ended.outcome,
            "reason": ended.reason,
            "error": ended.error,
            "status": ended.status,
            "finish": ended.finish,
            "last_message": ended.last_message,
            "usage": ended.usage,
        }
        return [*effects, Say(line), Finish()]

    def _lost(self, why: str) -> list[Effect]:
        if self.state is TurnState.SUBSCRIBING:
            return self._break("SUBSCRIPTION_FAILED", why)
        return [PostAbort(), *self._break("SUBSCRIPTION_LOST", why)]

    def _break(self, cause: str, detail: str) -> list[Effect]:
        left = self._requests.leave()
        self.state = TurnState.BROKEN
        retire = self._must_retire(cause)
        line = {"ev": "broken", "id": self.own_id, "session": self._session, "cause": cause, "detail": detail}
        return [*left, *retire, Say(line), Finish()]

    # --- abort --------------------------------------------------------------------------------------------------------------------------
    def _abort(self, why: str) -> list[Effect]:
        """Once; the first reason stays. Before the prompt is taken it waits for that."""
        if self._aborted_for is not None:
            return []
        self._aborted_for = why
        if self.state in (TurnState.SUBSCRIBING, TurnState.PROMPTING):
            return []
        return self._post_abort()

    def _post_abort(self) -> list[Effect]:
        return [PostAbort(), SetTimer("abort", ABORT_LOOK_S)]

    def _abort_done(self, is_taken: bool) -> list[Effect]:
        if is_taken:
            # The server leaves what it asked open after an abort; nobody will answer that any more.
            return self._requests.leave()
        if self._abort_failed:
            return self._break("ABORT_FAILED", "the server did not take the abort")
        self._abort_failed = True
        return [PostAbort()]

    def _abort_over(self) -> list[Effect]:
        """No idle came of the abort. One in a retry's pause gives a single one, and none may be left to come."""
        self._abort_looks += 1
        if self._abort_looks > ABORT_LOOKS_MAX:
            return self._break("ABORT_UNANSWERED", "the server did not end the turn after the abort")
        again = SetTimer("abort", ABORT_LOOK_S)
        if self.state is TurnState.RUNNING:
            self.state = TurnState.CHECKING
            return [again, ReadEnd()]
        return [again]

    def _after_requests(self, effects: list[Effect]) -> list[Effect]:
        failure, self._requests.failure = self._requests.failure, None
        if failure is None or self.is_over:
            return effects
        cause, detail = failure
        warning = Say({"ev": "warning", "code": cause, "detail": detail})
        return [*effects, warning, *self._must_retire(cause), *self._abort(cause)]

    def _must_retire(self, reason: str) -> list[Effect]:
        if reason in self._retire:
            return []
        self._retire[reason] = None
        return [Say({"ev": "retire", "reason": reason})]

    def _named(self) -> Fields:
        return {"id": self.own_id, "session": self._session, "native_id": self.native_id}
