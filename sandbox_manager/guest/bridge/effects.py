"""What the turn's machine wants done, and what it is told about it. Values only."""

from dataclasses import dataclass, field
from typing import Any


# --- effects --------------------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Subscribe:
    """Open the one event stream of this turn."""


@dataclass(frozen=True)
class PostPrompt:
    """Send the prompt under this native id. Never twice."""

    native_id: str
    text: str


@dataclass(frozen=True)
class PostAbort:
    """Tell the server to end the root's turn."""


@dataclass(frozen=True)
class Post:
    """An answer to something the server asked. `name` comes back in `PostDone`; None: nobody waits for how it went."""

    name: str | None
    path: str
    body: dict[str, Any]


@dataclass(frozen=True)
class ReadEnd:
    """Read which sessions are busy, and then the newest messages back to the prompt."""


@dataclass(frozen=True)
class SetTimer:
    """One timer of that name; a later one of the same name replaces it."""

    name: str
    seconds: float


@dataclass(frozen=True)
class Say:
    """One line to the client."""

    event: dict[str, Any]


@dataclass(frozen=True)
class Finish:
    """The turn is over: close the subscription, forget the timers."""


Effect = Subscribe | PostPrompt | PostAbort | Post | ReadEnd | SetTimer | Say | Finish


# --- events ---------------------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Begun:
    """The client's prompt."""


@dataclass(frozen=True)
class Subscribed:
    """The event stream is open; it said so itself."""


@dataclass(frozen=True)
class SubscriptionLost:
    """The event stream ended, broke, or could not be opened. It cannot be replayed."""

    why: str


@dataclass(frozen=True)
class PromptTaken:
    """The server took the prompt."""


@dataclass(frozen=True)
class PromptFailed:
    """It did not, or it is not known whether it did: `status` None."""

    status: int | None
    detail: str


@dataclass(frozen=True)
class ServerEvent:
    """One event of the subscription."""

    kind: str
    properties: dict[str, Any]


@dataclass(frozen=True)
class PostDone:
    """How an answer went; `status` None: no answer came."""

    name: str
    status: int | None


@dataclass(frozen=True)
class AbortDone:
    """How the abort went."""

    is_taken: bool


@dataclass(frozen=True)
class EndRead:
    """`busy`: whether the root is in the server's list of sessions that work. `messages`: oldest first, back to the prompt."""

    busy: bool
    messages: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class EndReadFailed:
    """The server did not tell."""

    why: str


@dataclass(frozen=True)
class TimerFired:
    """A timer ran out."""

    name: str


@dataclass(frozen=True)
class AbortAsked:
    """The client's abort."""


@dataclass(frozen=True)
class AnswerCame:
    """The client's answer to a request: allow or not, or one list of texts a question; None and no answers is a reject."""

    request: str
    kind: str
    allow: bool = False
    message: str = ""
    answers: tuple[tuple[str, ...], ...] | None = None


Event = (
    Begun
    | Subscribed
    | SubscriptionLost
    | PromptTaken
    | PromptFailed
    | ServerEvent
    | PostDone
    | AbortDone
    | EndRead
    | EndReadFailed
    | TimerFired
    | AbortAsked
    | AnswerCame
)


class IllegalEventError(RuntimeError):
    """This event cannot happen in this state; nothing was changed."""
