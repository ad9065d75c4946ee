"""What went wrong with one attempt, as a value: its class, its reason, and what may follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from direct_agent.recovery.limits import Limit


class FaultClass(StrEnum):
    """The classes of the classification table. TRUNCATED_TOOL_CALL: a finished answer with cut arguments."""

    QUOTA = "quota"
    AUTH = "auth"
    LIMIT = "limit"
    PROTOCOL = "protocol"
    HEADERS = "headers"
    STREAM = "stream"
    TRUNCATED_TOOL_CALL = "truncated_tool_call"
    MALFORMED_EVENT = "malformed_event"
    EMPTY = "empty"
    CONNECT = "connect"
    UNKNOWN = "unknown"
    REASONING = "reasoning"
    PERSIST = "persist"
    UNREACHABLE = "unreachable"


class Reason(StrEnum):
    """Why an attempt was discarded: the closed list that events may carry."""

    HEADERS = "headers"
    CONNECT = "connect"
    EMPTY = "empty"
    PREMATURE_EOF = "premature_eof"
    CONNECTION_RESET = "connection_reset"
    IDLE_TIMEOUT = "idle_timeout"
    REASONING_REPLAY = "reasoning_replay"
    REASONING_REPLAY_400 = "reasoning_replay_400"
    OUTPUT_LIMIT = "output_limit"
    CONTEXT_LIMIT = "context_limit"


@dataclass(frozen=True, slots=True)
class Fault:
    """One failed attempt.

    `reason` is what events say; None where the list has no word for it. `message` is for a person: it never holds a
    body, an address or a key. `had_body`: whether any byte of a response body was read. `was_sent`: whether an HTTP
    request was made at all. `code`: `error.code`, or `error.type`, of a quota refusal.
    """

    fault_class: FaultClass
    message: str
    reason: Reason | None = None
    status: int | None = None
    is_retryable: bool = False
    may_wait: bool = False
    retry_after_s: float = 0.0
    code: str | None = None
    limit: Limit | None = None
    had_body: bool = False
    was_sent: bool = True
