"""The lossless conversion for native Claude: a whole, unsigned, tool-free answer is sent back as plain text.

Only the view changes. A message that carries any proof (a signature, redacted data), a tool call or an opaque item is
never converted.
"""

from __future__ import annotations

from dataclasses import replace

from direct_agent.transcript import AssistantMessage, Message, ReasoningKind, ReasoningState


def converts_to_text(message: AssistantMessage) -> bool:
    """Whether the conversion exists for this message."""
    return (
        bool(message.reasoning)
        and not message.tool_calls
        and not message.opaque
        and message.reasoning_state not in (ReasoningState.INCOMPLETE, ReasoningState.TRUNCATED)
        and all(
            each.kind in (ReasoningKind.THINKING, ReasoningKind.TEXT)
            and each.is_complete
            and not each.signature
            and not each.data
            for each in message.reasoning
        )
    )


def as_text(message: AssistantMessage) -> AssistantMessage:
    """The thinking texts and then the answer, joined by blank lines, and no thinking."""
    pieces = [each.text for each in message.reasoning] + [message.text]
    return replace(
        message,
        text="\n\n".join(piece for piece in pieces if piece.strip()),
        reasoning=(),
        reasoning_state=ReasoningState.EMPTY,
    )


def with_unsigned_as_text(view: tuple[Message, ...]) -> tuple[Message, ...]:
    """The view with every message that has the conversion converted; the same object when none has."""
    if not any(isinstance(each, AssistantMessage) and converts_to_text(each) for each in view):
        return view
    return tuple(
        as_text(each) if isinstance(each, AssistantMessage) and converts_to_text(each) else each for each in view
    )
