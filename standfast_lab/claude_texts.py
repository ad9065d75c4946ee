"""Texts that Claude Code 2.1.220 adds to a history by itself. Neither the user nor the model said them.

Each is observed with the pinned CLI (tests/pinned_cli). The list decides what the lab's grammar passes over and what
the oracle does not hold against a history; a text that merely looks like one of these, but was expected, still counts
as said.
"""

from __future__ import annotations

_REMINDER_START = "<system-reminder>"
_REMINDER_END = "</system-reminder>"

_USER_PREFIXES = (
    "[Request interrupted by user]",
    "[Request interrupted by user for tool use]",
    # Sent by the CLI inside the turn after stop_reason max_tokens.
    "Output token limit hit. Resume directly",
    # Sent by the CLI inside the turn after a reply without content.
    "[Your previous response had no visible output. Please continue",
    # Sent on a resume after a turn that a SIGTERM ended, together with the reply "No response requested.".
    "Continue from where you left off.",
)
_ASSISTANT_TEXTS = (
    # Invented on a resume where a user message has no reply.
    "No response requested.",
    # Stands for an assistant message without content.
    "(no content)",
)


def is_reminder(text: str) -> bool:
    """True if the whole block is one or more system reminders. A user may type such a text, too."""
    bare = text.strip()
    return bare.startswith(_REMINDER_START) and bare.endswith(_REMINDER_END)


def is_added(role: str, text: str) -> bool:
    """True if the CLI writes this text in this role without being told."""
    if role == "user":
        return text.strip().startswith(_USER_PREFIXES)
    return text.strip() in _ASSISTANT_TEXTS


def is_summary(text: str) -> bool:
    """True for the user text that a compaction leaves in place of what it took away."""
    return text.startswith("This session is being continued from a previous conversation that ran out of context.")
