"""What a driver says about its CLI's output: raw facts for the runner's verdict, and normalised events for the client.

Pure values. A driver gives them in the order of the bytes. Facts are read from the raw frame before anything is
normalised, and from root frames only: a sub-agent's frame carries an id too, and after normalising nobody can tell it
from the root's.
"""

from __future__ import annotations

from dataclasses import dataclass


# --- facts for the verdict --------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class HandshakeAnswered:
    """The CLI answered its native start or resume. `session_id` is None where it does not say it (Claude Code), `store`
    (the absolute path of the native store) likewise.
    """

    session_id: str | None
    store: str | None = None


@dataclass(frozen=True, slots=True)
class HandshakeRefused:
    """The CLI would not start or resume. `cause` is NO_SUCH_SESSION, SESSION_IN_USE or OTHER; `detail` its own
    words.
    """

    cause: str
    detail: str


@dataclass(frozen=True, slots=True)
class FramesDue:
    """The driver asks that these frames are written now: the next step of a handshake, or a fence that only reads."""

    frames: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class SessionSeen:
    """A root frame named the native session. `source` is the frame's kind, e.g. "system/init".

    `opens_turn`: it answers a fence that was written right before our message, so it names the turn that follows too.
    """

    session_id: str
    source: str
    opens_turn: bool = False


@dataclass(frozen=True, slots=True)
class SessionReset:
    """The CLI itself announced that it left the session."""

    new_session_id: str | None


@dataclass(frozen=True, slots=True)
class ContentBeforeIdentity:
    """Content of our message came before the frame that must name the session. It is held back. `source` is the frame's
    kind.
    """

    source: str


@dataclass(frozen=True, slots=True)
class MessageAccepted:
    """The CLI took our message (queued)."""


@dataclass(frozen=True, slots=True)
class MessageStarted:
    """The CLI began to work on our message."""


@dataclass(frozen=True, slots=True)
class MessageClosed:
    """The CLI closed our message: `state` is "completed" or "cancelled"."""

    state: str


@dataclass(frozen=True, slots=True)
class AlreadyDelivered:
    """The CLI dropped our message because it had it before: no turn of its own will follow."""


@dataclass(frozen=True, slots=True)
class NativeTurnEnded:
    """The agent's own end evidence for this turn (design chapter 5).

    `failed` is read from the field that the design names. `error` is the CLI's own explanation, `status` the provider's
    status if the CLI says one, `reason` the CLI's word (e.g. "api_error"), `cancelled` whether it is the end of an
    interrupted turn.
    """

    failed: bool
    cancelled: bool
    reason: str | None
    error: str | None
    status: int | None


@dataclass(frozen=True, slots=True)
class ProcessMustRetire:
    """By a rule of this CLI the process may not serve another turn. `reason` is a stable word, e.g. API_RETRY_SEEN."""

    reason: str


@dataclass(frozen=True, slots=True)
class FrameRead:
    """One whole frame was read; what it says follows. `kind` is its kind, e.g. "system/init"."""

    kind: str


@dataclass(frozen=True, slots=True)
class NoiseLine:
    """A line of stdout that is no frame: counted and kept in the raw tap, never joined to a neighbour."""

    length: int


# --- normalised events for the client ---------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of assistant text while it streams. The whole `AssistantMessage` that follows is the truth."""

    text: str
    parent_id: str | None  # the sub-agent's tool call id, None for the root


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """One whole assistant text block."""

    message_id: str
    text: str
    parent_id: str | None
    native_uuid: str | None
    aborted: bool = False


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call. `input_json` is the tool's input as JSON text."""

    call_id: str
    tool: str
    input_json: str
    parent_id: str | None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A tool's result, as text."""

    call_id: str
    text: str
    is_error: bool
    parent_id: str | None


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of the turn. Unknown is None, never 0."""

    input_tokens: int | None
    output_tokens: int | None
    cache_read_tokens: int | None
    cache_write_tokens: int | None


@dataclass(frozen=True, slots=True)
class ProviderRetry:
    """The CLI retries its model call. `status` None: no connection."""

    attempt: int
    attempts_max: int | None
    delay_ms: int | None
    status: int | None
    parent_id: str | None


@dataclass(frozen=True, slots=True)
class Warned:
    """Something a person should know that does not end the turn. `code` is a stable word."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class NativeRequest:
    """The CLI asks for something (permission, question, unknown). Answered or refused one to one."""

    request_id: str
    kind: str  # PERMISSION, QUESTION, UNKNOWN
    payload_json: str


Fact = (
    HandshakeAnswered
    | HandshakeRefused
    | FramesDue
    | SessionSeen
    | SessionReset
    | ContentBeforeIdentity
    | MessageAccepted
    | MessageStarted
    | MessageClosed
    | AlreadyDelivered
    | NativeTurnEnded
    | ProcessMustRetire
    | FrameRead
    | NoiseLine
)
Normalised = TextDelta | AssistantMessage | ToolCall | ToolResult | Usage | ProviderRetry | Warned | NativeRequest


@dataclass(frozen=True, slots=True)
class DriverEvent:
    """One fact or event with the place of its raw frame in the tap. `raw` is the frame's bytes without its line end."""

    body: Fact | Normalised
    tap_offset: int  # just after the frame
    raw: bytes
