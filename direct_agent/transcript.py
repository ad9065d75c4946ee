"""What a conversation holds, as plain values: messages, reasoning, tool calls and results, a model's answer, its usage.

The canonical transcript is a tuple of messages in the order they came to be. It is only ever added to. What a provider
is sent (the provider view) is made from it and never stored in its place. An assistant message is kept by kind
(reasoning, opaque items, text, tool calls), which is also the order in which it is sent back.

Nothing here knows a protocol, a clock or a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ReasoningKind(StrEnum):
    """TEXT: chat's one reasoning text. THINKING, REDACTED: blocks of Messages. ITEM: a raw item of Responses."""

    TEXT = "text"
    THINKING = "thinking"
    REDACTED = "redacted"
    ITEM = "item"


class ReasoningState(StrEnum):
    """UNSET: an old session that did not say. TRUNCATED: cut by our own size limit."""

    UNSET = "unset"
    EMPTY = "empty"
    COMPLETE = "complete"
    INCOMPLETE = "incomplete"
    TRUNCATED = "truncated"


class RunState(StrEnum):
    """What is known of a tool call. UNKNOWN is not "did not run"."""

    COMPLETED = "completed"
    NOT_STARTED = "not_started"
    UNKNOWN = "unknown"


class Finish(StrEnum):
    """Why the model stopped. OTHER: a reason we do not know; the raw word is lost to nobody who needs it."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    INCOMPLETE = "incomplete"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Reasoning:
    """One piece of reasoning as received. `signature` and `data` are None when none was received, never "".

    `raw_json` (ITEM only) is the provider's item, unchanged, as one JSON text.
    """

    kind: ReasoningKind
    text: str = ""
    signature: str | None = None
    data: str | None = None
    raw_json: str | None = None
    is_complete: bool = True


@dataclass(frozen=True, slots=True)
class Opaque:
    """An item of an answer that we do not interpret but send back as it came (a server-side search, say)."""

    kind: str
    raw_json: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call the model asks for. `arguments` is the JSON text as it was sent.

    `intents`: write intents, each one raw JSON text, in order; stored only, never sent to a provider.
    """

    call_id: str
    name: str
    arguments: str
    intents: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UserMessage:
    """A message of the user role. `is_host`: the host wrote it, not the person."""

    text: str
    is_host: bool = False


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """One accepted answer of the model."""

    text: str = ""
    reasoning: tuple[Reasoning, ...] = ()
    reasoning_state: ReasoningState = ReasoningState.UNSET
    tool_calls: tuple[ToolCall, ...] = ()
    opaque: tuple[Opaque, ...] = ()
    finish: Finish = Finish.STOP


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The one stored result of a call. `state` None: an old session that did not say (see `run_state`).

    `output` is the bounded text that the model sees, never a raw local copy.
    """

    call_id: str
    name: str
    output: str
    state: RunState | None = None
    is_error: bool = False


Message = UserMessage | AssistantMessage | ToolResult
Transcript = tuple[Message, ...]

INTERRUPTED_OUTPUT = "No result was recorded: the turn was interrupted. The outcome of this call is unknown."
CANCELLED_BEFORE_OUTPUT = "cancelled before execution"
TRUNCATED_OUTPUT = (
    "Not executed: the answer hit its output limit and the arguments may be cut. "
    "Send the call again with complete arguments."
)


def run_state(result: ToolResult) -> RunState:
    """The state of a result; for an old session without one, read from its text."""
    if result.state is not None:
        return result.state
    text = result.output.lower()
    if result.output == INTERRUPTED_OUTPUT or "outcome unknown" in text:
        return RunState.UNKNOWN
    if text.startswith("cancelled") or "cancelled before" in text:
        return RunState.NOT_STARTED if "before execution" in text else RunState.UNKNOWN
    return RunState.COMPLETED


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and requests of one attempt, or of several together. A number is None until a provider reported it.

    `is_unknown`: at least one attempt gave no full usage. It never goes back to False; adding and estimating keep it.
    `estimate_tokens`: what an interrupted attempt without usage may have cost; kept apart from exact numbers, never
    part of them.
    """

    request_count: int = 0
    prompt: int | None = None
    completion: int | None = None
    reasoning: int | None = None
    cache_hit: int | None = None
    cache_miss: int | None = None
    total: int | None = None
    is_unknown: bool = False
    is_estimated: bool = False
    estimate_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            request_count=self.request_count + other.request_count,
            prompt=_sum(self.prompt, other.prompt),
            completion=_sum(self.completion, other.completion),
            reasoning=_sum(self.reasoning, other.reasoning),
            cache_hit=_sum(self.cache_hit, other.cache_hit),
            cache_miss=_sum(self.cache_miss, other.cache_miss),
            total=_sum(self.total, other.total),
            is_unknown=self.is_unknown or other.is_unknown,
            is_estimated=self.is_estimated or other.is_estimated,
            estimate_tokens=self.estimate_tokens + other.estimate_tokens,
        )


def _sum(left: int | None, right: int | None) -> int | None:
    return left if right is None else right if left is None else left + right


@dataclass(frozen=True, slots=True)
class Candidate:
    """A complete answer that arrived and is not accepted yet. Nothing of it may run or be stored before it is.

    `is_whole`: the provider said the answer is finished, not stopped by it half way (Responses' `incomplete`).
    `response_id`, `model`: as the provider named them; None when it did not.
    """

    message: AssistantMessage
    usage: Usage
    is_whole: bool = True
    response_id: str | None = None
    model: str | None = None


def may_run_calls(message: AssistantMessage) -> bool:
    """Whether an accepted message's tool calls may run: never when the answer hit its output limit, even if the
    arguments parse.
    """
    return bool(message.tool_calls) and message.finish not in (Finish.LENGTH, Finish.INCOMPLETE, Finish.CONTENT_FILTER)
