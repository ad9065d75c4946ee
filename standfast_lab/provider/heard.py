"""What a client asked, in words that no protocol owns.

Each protocol module turns its own request body into a `Heard`; the grammar, the script and the log read nothing else.
So a second protocol adds one module and no second brain.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Who inside the CLI sent the request."""

    ROOT = "root"
    SUBAGENT = "subagent"
    SIDE = "side"
    COUNT_TOKENS = "count_tokens"


class BlockKind(StrEnum):
    """What one content block of a message is."""

    TEXT = "text"
    REMINDER = "reminder"
    TOOL_USE = "tool_use"
    TOOL_RESULT = "tool_result"
    THINKING = "thinking"
    OTHER = "other"


@dataclass(frozen=True)
class Block:
    """One content block. `text` is the text, or the tool's name, or the tool result's text."""

    kind: BlockKind
    text: str
    tool_id: str | None = None


@dataclass(frozen=True)
class Message:
    """One message of the history as it was sent. `role` is user or assistant; a tool's result is the user's, in every protocol."""

    role: str
    blocks: tuple[Block, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts that are not reminders, in order."""
        return tuple(block.text for block in self.blocks if block.kind is BlockKind.TEXT)


@dataclass(frozen=True)
class Heard:
    """One request, decoded. `tools` are the names on offer; `session_id` is None when the client named none.

    Chat Completions: `wants_usage` asks for the usage at the end of a stream. Responses: `namespaces` are (tool, its namespace).
    """

    kind: Kind
    model: str
    stream: bool
    session_id: str | None
    messages: tuple[Message, ...]
    tools: tuple[str, ...]
    wants_usage: bool = False
    namespaces: tuple[tuple[str, str], ...] = ()

    @property
    def is_root(self) -> bool:
        """True for the conversation itself, false for sub-agents and side requests."""
        return self.kind is Kind.ROOT
