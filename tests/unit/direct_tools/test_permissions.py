"""Modes and rules of the built-in agent's tools."""

from __future__ import annotations

import pytest

from direct_agent.tools.permissions import PermissionMode, Permissions, Rule, RuleError, Ruling, parse_rule
from direct_agent.tools.toolbox import TOOL_NAMES

AUTO, ASK, DENY = PermissionMode.AUTO, PermissionMode.ASK, PermissionMode.DENY


def rules(*texts: str) -> tuple[Rule, ...]:
    return tuple(parse_rule(text, TOOL_NAMES) for text in texts)


@pytest.mark.parametrize(
    ("mode", "reads", "changes"),
    [(AUTO, Ruling.RUN, Ruling.RUN), (ASK, Ruling.RUN, Ruling.ASK), (DENY, Ruling.RUN, Ruling.REFUSE)],
)
def test_modes(mode: PermissionMode, reads: Ruling, changes: Ruling) -> None:
    permissions = Permissions(mode)
    assert permissions.rule("read", ["a"], is_read_only=True) is reads
    assert permissions.rule("write", ["a"], is_read_only=False) is changes


def test_a_deny_rule_is_stronger_than_mode_and_allow_rule() -> None:
    permissions = Permissions(AUTO, allow=rules("read"), deny=rules("read(*.env)"))
    assert permissions.rule("read", ["x.env"], is_read_only=True) is Ruling.REFUSE
    assert permissions.rule("read", ["x.py"], is_read_only=True) is Ruling.RUN


def test_one_denied_subject_of_several_is_enough_and_all_must_be_allowed() -> None:
    permissions = Permissions(ASK, allow=rules("multi_edit(docs/*)"), deny=rules("multi_edit(secret/*)"))
    assert permissions.rule("multi_edit", ["docs/a", "docs/b"], is_read_only=False) is Ruling.RUN
    assert permissions.rule("multi_edit", ["docs/a", "src/b"], is_read_only=False) is Ruling.ASK
    assert permissions.rule("multi_edit", ["docs/a", "secret/b"], is_read_only=False) is Ruling.REFUSE


@pytest.mark.parametrize(
    "command",
    [
        "git status; rm -rf .",
        "git status && x",
        "git status | x",
        "git status $(x)",
        "git status `x`",
        "git status\nx",
        "git status > x",
    ],
)
def test_a_pattern_for_a_command_does_not_allow_a_second_command_behind_it(command: str) -> None:
    permissions = Permissions(ASK, allow=rules("shell(git status*)"))
    assert permissions.rule("shell", ["git status -s"], is_read_only=False) is Ruling.RUN
    assert permissions.rule("shell", [command], is_read_only=False) is Ruling.ASK
    assert Permissions(ASK, allow=rules("shell")).rule("shell", [command], is_read_only=False) is Ruling.RUN


@pytest.mark.parametrize("text", ["", "nothing", "write(", "write)x(", "Write", "write (a)"])
def test_a_rule_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(RuleError):
        parse_rule(text, TOOL_NAMES)
