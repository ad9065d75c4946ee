"""What the server asks during a turn: permissions, questions, and Kilo's network and suggestion. Pure.

    (early) HELD --reported--> decided          decided by the mode: allowed, denied, or OPEN with the client
              |                                           | the client's answer
              +--2 s, still a stranger--> REPLYING <------+
                                             |  --taken--> CLOSED
                                             +--failed, first time--> REPLYING once more
                                             +--failed again--> CLOSED, and the turn is to be aborted: nothing may hang

Decided for the root and for reported children, by the family. A request of any other session is rejected natively, never allowed. An
allowing reply that somebody else sent (a tool that found the server) makes the turn worthless: it is aborted and says so.
"""

from dataclasses import dataclass
from enum import Enum

from .effects import AnswerCame, Effect, Post, PostDone, Say, SetTimer
from .family import Family
from .shapes import Fields, flag, items, text

HOLD_S = 2.0
_HELD_MAX = 64
_DENIED = "The permission mode of this conversation denies this."
_STRANGER = "This session is not part of the running turn."


class RequestState(Enum):
    HELD = "HELD"
    OPEN = "OPEN"
    REPLYING = "REPLYING"
    CLOSED = "CLOSED"


@dataclass
class Request:
    """One request. `how` is what closing it will be called."""

    id: str
    kind: str  # permission, question
    session: str
    properties: Fields
    state: RequestState = RequestState.HELD
    reply: Post | None = None
    how: str = ""
    is_second_try: bool = False
    was_replied: bool = False  # the server said so itself


class Requests:
    """One turn's requests. `failure`: why the turn must be aborted, once it must."""

    def __init__(self, family: Family, mode: str) -> None:
        self._family = family
        self._mode = mode
        self._known: dict[str, Request] = {}
        self.failure: tuple[str, str] | None = None
        self.was_rejected = False

    @property
    def is_waiting(self) -> bool:
        """Whether somebody has to answer before the turn goes on."""
        return any(one.state is not RequestState.CLOSED for one in self._known.values())

    def note(self, kind: str, properties: Fields) -> list[Effect]:
        """Takes one event of the server."""
        match kind:
            case "permission.asked" | "question.asked":
                return self._asked(kind.partition(".")[0], properties)
            case "permission.replied" | "question.replied" | "question.rejected":
                return self._replied(kind, properties)
            case "session.network.asked" if self._family.holds(text(properties, "sessionID")):
                warning = {"ev": "warning", "code": "PROVIDER_UNREACHABLE", "detail": text(properties, "message") or ""}
                return [Post(None, f"/network/{text(properties, 'id')}/reject", {}), Say(warning)]
            case "suggestion.shown" if self._family.holds(text(properties, "sessionID")):
                return [Post(None, f"/suggestion/{text(properties, 'id')}/dismiss", {})]
            case _:
                return []

    def reported(self) -> list[Effect]:
        """A session was reported: what was held for it is decided."""
        return [
            effect
            for one in self._known.values()
            if one.state is RequestState.HELD and self._family.holds(one.session)
            for effect in self._decide(one)
        ]

    def hold_over(self, request_id: str) -> list[Effect]:
        """Two seconds are over. A request that is still a stranger's is rejected."""
        one = self._known.get(request_id)
        if one is None or one.state is not RequestState.HELD:
            return []
        warning = {"ev": "warning", "code": "STRANGER_REJECTED", "detail": f"a {one.kind} of session {one.session}"}
        return [Say(warning), *self._reject(one, _STRANGER, "rejected")]

    def answer(self, came: AnswerCame) -> list[Effect]:
        """The client's answer. One of the wrong shape changes nothing: the request stays open."""
        one = self._known.get(came.request)
        if one is None or one.state is not RequestState.OPEN or one.kind != came.kind:
            return [_refused(came.request, "REQUEST_NOT_OPEN", f"expected an open {came.kind} of that id")]
        if came.kind == "permission":
            if came.allow:
                return self._send(one, {"reply": "once"}, "allowed")
            return self._reject(one, came.message or _DENIED, "denied")
        if came.answers is None:
            return self._reject(one, came.message, "rejected")
        wrong = _wrong_answers(items(one.properties, "questions"), came.answers)
        if wrong is not None:
            return [_refused(came.request, "ANSWER_SHAPE", wrong)]
        return self._send(one, {"answers": [list(texts) for texts in came.answers]}, "answered")

    def done(self, event: PostDone) -> list[Effect]:
        """How a reply went. It is sent once more, and then the turn is aborted."""
        one = self._known.get(event.name)
        if one is None or one.state is not RequestState.REPLYING or one.reply is None:
            return []
        if event.status == 200 or one.was_replied:
            return self._close(one)
        if not one.is_second_try:
            one.is_second_try = True
            return [one.reply]
        self.failure = ("REPLY_FAILED", f"the server took no reply to its {one.kind} (HTTP {event.status})")
        return self._close(one, "gone")

    def leave(self) -> list[Effect]:
        """The turn is over or aborted: the server keeps open requests for ever, so what is left is rejected."""
        effects: list[Effect] = []
        for one in self._known.values():
            if one.state is RequestState.CLOSED:
                continue
            body: Fields = {"reply": "reject"} if one.kind == "permission" else {}
            effects.append(Post(None, _path(one, rejects=True), body))
            effects += self._close(one, "gone")
        return effects

    # --- private ------------------------------------------------------------------------------------------------------------------------
    def _asked(self, kind: str, properties: Fields) -> list[Effect]:
        request_id, session = text(properties, "id"), text(properties, "sessionID")
        if request_id is None or session is None or request_id in self._known:
            return []
        one = self._known[request_id] = Request(request_id, kind, session, properties)
        if self._family.holds(session):
            return self._decide(one)
        if sum(other.state is RequestState.HELD for other in self._known.values()) > _HELD_MAX:
            return self._reject(one, _STRANGER, "rejected")
        return [SetTimer(f"hold:{request_id}", HOLD_S)]

    def _decide(self, one: Request) -> list[Effect]:
        if one.kind == "question":
            return self._open(one)
        match self._mode:
            case "auto":
                return self._send(one, {"reply": "once"}, "allowed")
            case "ask":
                return self._open(one)
            case _:
                return self._reject(one, _DENIED, "denied")

    def _open(self, one: Request) -> list[Effect]:
        one.state = RequestState.OPEN
        ask = {
            "ev": "ask",
            "session": one.session,
            "parent": self._family.call_of(one.session),
            "id": one.id,
            "kind": one.kind,
            "tool": text(one.properties, "permission"),
            "questions": [_question(found) for found in items(one.properties, "questions")],
            "payload": one.properties,
        }
        return [Say(ask)]

    def _send(self, one: Request, body: Fields, how: str, *, rejects: bool = False) -> list[Effect]:
        one.state, one.how = RequestState.REPLYING, how
        one.reply = Post(one.id, _path(one, rejects=rejects), body)
        return [one.reply]

    def _reject(self, one: Request, message: str, how: str) -> list[Effect]:
        if self._family.holds(one.session):
            self.was_rejected = True
        body: Fields = {"reply": "reject", "message": message} if one.kind == "permission" else {}
        return self._send(one, body, how, rejects=True)

    def _replied(self, kind: str, properties: Fields) -> list[Effect]:
        one = self._known.get(text(properties, "requestID") or "")
        if one is None:
            return []
        one.was_replied = True
        if one.state is RequestState.REPLYING:
            return []  # our own; how its reply went says the rest
        allows = kind == "question.replied" or text(properties, "reply") in ("once", "always")
        if allows and one.state is not RequestState.CLOSED:
            self.failure = ("ANSWERED_BY_ANOTHER", f"a {one.kind} was answered, and not by this bridge")
        # A rejection closes the session's other requests with it, so that is nobody's doing.
        return [] if one.state is RequestState.CLOSED else self._close(one, "gone")

    def _close(self, one: Request, how: str | None = None) -> list[Effect]:
        one.state = RequestState.CLOSED
        return [Say({"ev": "asked", "session": one.session, "id": one.id, "how": how or one.how})]


def _path(one: Request, *, rejects: bool) -> str:
    if one.kind == "permission":
        return f"/permission/{one.id}/reply"
    return f"/question/{one.id}/{'reject' if rejects else 'reply'}"


def _question(found: Fields) -> Fields:
    return {
        "header": text(found, "header") or "",
        "text": text(found, "question") or "",
        "options": [
            {"label": text(one, "label") or "", "description": text(one, "description") or ""}
            for one in items(found, "options")
        ],
        "multiple": flag(found, "multiple"),
        # Free text is taken unless the question says that it is not.
        "free_text": found.get("custom") is not False,
    }


def _wrong_answers(questions: list[Fields], answers: tuple[tuple[str, ...], ...]) -> str | None:
    """The server takes too few answers and shows the model "Unanswered", so the number is checked here."""
    if len(answers) != len(questions):
        return f"expected {len(questions)} answers, found {len(answers)}"
    for number, (question, texts) in enumerate(zip(questions, answers, strict=True), start=1):
        most = len(texts) if flag(question, "multiple") else 1
        if not texts or len(texts) > most or not all(texts):
            return f"expected {'one or more' if most != 1 else 'one'} non-empty text for question {number}, found {len(texts)}"
    return None


def _refused(request_id: str, cause: str, detail: str) -> Say:
    return Say({"ev": "refused", "id": request_id, "cause": cause, "detail": detail})
