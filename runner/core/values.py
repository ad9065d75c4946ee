"""The value types that the runner's decisions share. Frozen data; unknown is None."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Outcome(Enum):
    """How a turn ended."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    INTERRUPTED = "INTERRUPTED"
    TIMED_OUT = "TIMED_OUT"
    UNANSWERED_QUESTION = "UNANSWERED_QUESTION"
    NOT_SENT = "NOT_SENT"
    REFUSED = "REFUSED"


@dataclass(frozen=True, slots=True)
class NativeLocator:
    """What a native resume needs. `store` names the native store relative to the member's home.

    In the grant of a session that begins, `native_session_id` or `store` is empty where the CLI itself is to name it in
    its handshake; from the admission on a locator is whole.
    """

    agent: str
    native_session_id: str
    cwd: str
    store: str

    @property
    def is_whole(self) -> bool:
        """Whether nothing of it is left for the CLI to name."""
        return bool(self.native_session_id and self.store)


@dataclass(frozen=True, slots=True)
class TurnKey:
    """One turn. The three parts come from the client and are checked before a key is made."""

    tenant: str
    conversation_id: str
    turn_id: str

    @property
    def conversation(self) -> ConversationKey:
        return ConversationKey(self.tenant, self.conversation_id)

    def __str__(self) -> str:
        return f"{self.tenant}/{self.conversation_id}/{self.turn_id}"


@dataclass(frozen=True, slots=True)
class ConversationKey:
    """One conversation of a tenant."""

    tenant: str
    conversation_id: str

    def __str__(self) -> str:
        return f"{self.tenant}/{self.conversation_id}"


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a turn did not end well. `reason` is a name of ErrorReason; `message` is for a person, without a secret."""

    reason: str
    message: str
    metadata: tuple[tuple[str, str], ...] = ()
    provider_status: int | None = None
