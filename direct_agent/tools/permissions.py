"""Whether a call may run: the permission mode, and allow and deny rules per tool. Pure.

A rule is `tool` or `tool(pattern)`: `deny shell`, `allow write(docs/*)`, `deny read(*.env)`, `allow shell(git status*)`. The pattern is
a shell glob over the call's subjects: a command, or paths relative to the workspace, both as named and as they really lead.

    deny rule on any subject         refused
    allow rule on every subject      runs
    otherwise, by mode               auto: runs | ask: reads run, the rest is asked | deny: reads run, the rest is refused
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class PermissionMode(StrEnum):
    AUTO = "auto"
    ASK = "ask"
    DENY = "deny"


class Ruling(StrEnum):
    RUN = "run"
    ASK = "ask"
    REFUSE = "refuse"


class RuleError(ValueError):
    """A rule that cannot be read. Ignoring it would allow or deny something that nobody meant."""


_RULE = re.compile(r"([a-z_]+)(?:\((.*)\))?", re.DOTALL)
# What makes one command line several commands: with any of it a pattern that fits the beginning says nothing about the rest.
_SHELL_JOINTS = frozenset(";&|<>`$(){}\n\r\\")


@dataclass(frozen=True, slots=True)
class Rule:
    """`pattern` None: every call of the tool."""

    tool: str
    pattern: str | None

    def fits(self, subject: str) -> bool:
        return self.pattern is None or fnmatch.fnmatchcase(subject, self.pattern)


def parse_rule(text: str, tools: Sequence[str]) -> Rule:
    """Raises RuleError, naming what was expected and found."""
    match = _RULE.fullmatch(text.strip())
    if match is None:
        raise RuleError(f"expected a rule like shell or write(docs/*), found {text!r}")
    if match[1] not in tools:
        raise RuleError(f"expected a rule for one of {', '.join(tools)}, found {match[1]!r}")
    return Rule(match[1], match[2])


@dataclass(frozen=True, slots=True)
class Permissions:
    """One process's settings."""

    mode: PermissionMode
    allow: tuple[Rule, ...] = ()
    deny: tuple[Rule, ...] = ()

    def rule(self, tool: str, subjects: Sequence[str], *, is_read_only: bool) -> Ruling:
        """`subjects`: every one must be allowed by a rule to be allowed, and one that is denied is enough to refuse."""
        if any(rule.tool == tool and rule.fits(subject) for rule in self.deny for subject in subjects):
            return Ruling.REFUSE
        if subjects and all(self._is_allowed(tool, subject) for subject in subjects):
            return Ruling.RUN
        if is_read_only or self.mode is PermissionMode.AUTO:
            return Ruling.RUN
        return Ruling.ASK if self.mode is PermissionMode.ASK else Ruling.REFUSE

    def _is_allowed(self, tool: str, subject: str) -> bool:
        for rule in self.allow:
            if rule.tool != tool or not rule.fits(subject):
                continue
            if tool == "shell" and rule.pattern is not None and _SHELL_JOINTS & set(subject):
                continue
            return True
        return False
