"""Texts that a CLI adds to a history by itself, per agent. Neither the user nor the model said them.

The table decides what the lab's grammar passes over and what the oracle does not hold against a history. A text that merely looks
like one of these, but was expected, still counts as said. To add a CLI: a row.

What each row rests on: Claude Code 2.1.220, see `claude_texts`. Codex 0.171.0: recorded requests, and for compactions the prompts that
stand in its program. Kilo 7.7.7: recorded requests (the part `environment_details` of every user message). OpenCode 1.18.33, Pi 1.6.0:
nothing was seen in ordinary turns; the compaction texts stand in their programs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from standfast_lab import claude_texts

_CODEX_TAGS = (
    "environment_context",
    "turn_aborted",
    "subagent_notification",
    "skill",
    "user_instructions",
    "user_shell_command",
)
_CODEX_WRAPPED = re.compile(rf"\s*<({'|'.join(_CODEX_TAGS)})>.*</\1>\s*", re.DOTALL)
_CODEX_INSTRUCTIONS = "# AGENTS.md instructions for "
_CODEX_COMPACT_REQUEST = "You are performing a CONTEXT CHECKPOINT COMPACTION."
_CODEX_SUMMARY = "Another language model started to solve this problem and produced a summary of its thinking process."
_KILO_DETAILS = re.compile(r"\s*<environment_details>.*</environment_details>\s*", re.DOTALL)
_OPENCODE_USER = (
    "What did we do so far?",
    "Continue if you have next steps, or stop and ask for clarification",
    "Summarize the task tool output above and continue with your task.",
    "The following tool was executed by the user",
)
_OPENCODE_SUMMARIES = ("What did we do so far?",)
_PI_SUMMARY = "The conversation history before this point was compacted into the following summary:"


def _never(*_: str) -> bool:
    return False


@dataclass(frozen=True)
class AddedTexts:
    """One CLI's habits.

    is_added: (role, text) is written without being told. is_reminder: a whole block of the CLI's own inside a user message.
    is_summary: the user text that a compaction leaves in place of what it took away. joins_user_texts: adjacent user texts are
    joined in one message, and the earlier one then ends with a line feed that nobody said.
    """

    is_added: Callable[[str, str], bool] = _never
    is_reminder: Callable[[str], bool] = _never
    is_summary: Callable[[str], bool] = _never
    joins_user_texts: bool = False


def is_codex_wrapper(text: str) -> bool:
    """True for a user item that Codex writes around its own words: environment, an aborted turn, a sub-agent's news, a skill."""
    return _CODEX_WRAPPED.fullmatch(text) is not None or text.startswith(_CODEX_INSTRUCTIONS)


def is_kilo_details(text: str) -> bool:
    """True for the part that Kilo appends to every user message."""
    return _KILO_DETAILS.fullmatch(text) is not None


def _codex_added(role: str, text: str) -> bool:
    return role == "user" and (is_codex_wrapper(text) or text.startswith(_CODEX_COMPACT_REQUEST))


def _opencode_added(role: str, text: str) -> bool:
    return role == "user" and text.strip().startswith(_OPENCODE_USER)


def _opencode_summary(text: str) -> bool:
    return text.strip().startswith(_OPENCODE_SUMMARIES)


OF_AGENT: Mapping[str, AddedTexts] = MappingProxyType(
    {
        "claude-code": AddedTexts(
            claude_texts.is_added, claude_texts.is_reminder, claude_texts.is_summary, joins_user_texts=True
        ),
        "codex": AddedTexts(_codex_added, is_codex_wrapper, lambda text: text.startswith(_CODEX_SUMMARY)),
        "opencode": AddedTexts(_opencode_added, is_summary=_opencode_summary),
        "kilo": AddedTexts(_opencode_added, is_kilo_details, _opencode_summary),
        "pi": AddedTexts(is_summary=lambda text: text.startswith(_PI_SUMMARY)),
        "direct": AddedTexts(),
    }
)


def is_added_by_any(role: str, text: str) -> bool:
    """True if some CLI of the table writes this text in this role; for readers that do not know whose request it is."""
    return any(added.is_added(role, text) for added in OF_AGENT.values())
