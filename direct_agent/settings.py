"""What one process of the agent is started with, from its command line. Pure, but for the key, which is read when it is needed.

The key comes from a file or an environment variable, named on the command line; it never is a value there.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from direct_agent.core.endpoint import ANTHROPIC_BASE_URL, EFFORTS, Endpoint, Thinking, Wire, kind_of
from direct_agent.recovery.policy import Policy
from direct_agent.tools.permissions import PermissionMode, Permissions, Rule, RuleError, parse_rule
from direct_agent.tools.toolbox import TOOL_NAMES

VERSION = "1.0.0"
KEY_VARIABLE = "STANDFAST_MODEL_KEY"


class SettingsError(Exception):
    """A setting that is missing or not one of those that exist. The text says what to write."""


@dataclass(frozen=True, slots=True)
class KeySource:
    """Where the key is. Its repr holds no key."""

    variable: str | None = None
    file: Path | None = None

    def read(self, environment: Mapping[str, str]) -> str:
        """Raises SettingsError when there is none; the text names the place."""
        if self.file is not None:
            try:
                return self.file.read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise SettingsError(f"the key's file {self.file} cannot be read: {type(error).__name__}") from None
        name = self.variable or KEY_VARIABLE
        if not environment.get(name):
            raise SettingsError(f"expected the model's key in the environment variable {name}, or a --key-file")
        return environment[name]

    @property
    def name(self) -> str:
        return f"the file {self.file}" if self.file is not None else (self.variable or KEY_VARIABLE)


@dataclass(frozen=True, slots=True)
class Settings:
    """One process. `session_id` None: one is made. `limit_s` of a turn: None is none."""

    session_id: str | None
    is_resume: bool
    fork_from: str | None
    fork_after: str | None
    home: Path
    workspace: Path
    endpoint: Endpoint
    key: KeySource
    permissions: Permissions
    policy: Policy
    limit_s: float | None
    agreements: Path | None
    asks_person: bool


def parser(program: str) -> argparse.ArgumentParser:
    """The options that every way of starting the agent has."""
    made = argparse.ArgumentParser(prog=program, description=__doc__.splitlines()[0], allow_abbrev=False)
    add = made.add_argument
    add("--version", action="version", version=VERSION)
    add("--session-id", help="the id of a session that begins; with --fork-from, the child's")
    add("--resume", metavar="ID", help="go on with a session that is kept")
    add("--fork-from", metavar="ID", help="begin with a copy of this session")
    add("--fork-after", metavar="MESSAGE_ID", help="copy up to the end of this turn; the newest ended one otherwise")
    add("--home", type=Path, help="sessions are in HOME/.standfast-direct; the user's own home otherwise")
    add("--workspace", type=Path, help="the present folder otherwise")
    add("--base-url", help="the endpoint's base address")
    add("--protocol", choices=[wire.value for wire in Wire], default=Wire.MESSAGES.value)
    add(
        "--contract", choices=["deepseek", "anthropic", "openai", "none"], help="what the endpoint demands of reasoning"
    )
    add("--model", required=True)
    add("--thinking", choices=[each.value for each in Thinking], default=Thinking.SERVER.value)
    add("--effort", choices=[*EFFORTS, "none"])
    add("--max-tokens", type=int)
    add("--key-env", metavar="NAME", help=f"the environment variable that holds the key; {KEY_VARIABLE} otherwise")
    add("--key-file", type=Path, help="the file that holds the key")
    add("--permission-mode", choices=[mode.value for mode in PermissionMode], default=PermissionMode.AUTO.value)
    add("--allow", action="append", default=[], metavar="RULE", help="e.g. 'write(docs/*)', 'shell(git status*)'")
    add("--deny", action="append", default=[], metavar="RULE")
    add(
        "--wait-budget-s", type=float, help="how long to wait for a provider in all; 0: not at all; unlimited otherwise"
    )
    add("--no-transport-retries", action="store_true")
    add("--turn-limit-s", type=float)
    add("--agreements", type=Path, help="a file with rules that are read before every step")
    add("--no-questions", action="store_true", help="the model cannot ask the person")
    return made


def from_arguments(given: argparse.Namespace) -> Settings:
    """Raises SettingsError."""
    if given.resume and (given.session_id or given.fork_from):
        raise SettingsError("expected either --resume, or --session-id with or without --fork-from, found both")
    if given.fork_from and not given.session_id:
        raise SettingsError("expected the child's --session-id with --fork-from")
    if given.key_env and given.key_file:
        raise SettingsError("expected one place for the key, found --key-env and --key-file")
    return Settings(
        session_id=given.resume or given.session_id,
        is_resume=given.resume is not None,
        fork_from=given.fork_from,
        fork_after=given.fork_after,
        home=(given.home or Path.home()).absolute(),
        workspace=(given.workspace or Path.cwd()).absolute(),
        endpoint=_endpoint(given),
        key=KeySource(given.key_env, given.key_file),
        permissions=Permissions(
            PermissionMode(given.permission_mode), _rules(given.allow, "--allow"), _rules(given.deny, "--deny")
        ),
        policy=Policy(
            wait_budget_s=_not_negative(given.wait_budget_s, "--wait-budget-s"),
            transport_retries=not given.no_transport_retries,
        ),
        limit_s=_not_negative(given.turn_limit_s, "--turn-limit-s"),
        agreements=given.agreements.absolute() if given.agreements else None,
        asks_person=not given.no_questions,
    )


def _endpoint(given: argparse.Namespace) -> Endpoint:
    wire = Wire(given.protocol)
    if given.base_url is None and wire is not Wire.MESSAGES:
        raise SettingsError(f"expected the --base-url of the endpoint for --protocol {wire.value}")
    try:
        kind = kind_of(wire, given.base_url, given.contract)
    except ValueError as error:
        raise SettingsError(f"--contract: {error}") from None
    return Endpoint(
        wire=wire,
        kind=kind,
        base_url=given.base_url or ANTHROPIC_BASE_URL,
        model=given.model,
        thinking=Thinking(given.thinking),
        effort=given.effort,
        max_tokens=given.max_tokens,
        name="the model's provider",
        key_variable=KeySource(given.key_env, given.key_file).name,
    )


def _rules(texts: Sequence[str], option: str) -> tuple[Rule, ...]:
    try:
        return tuple(parse_rule(text, TOOL_NAMES) for text in texts)
    except RuleError as error:
        raise SettingsError(f"{option}: {error}") from None


def _not_negative(value: float | None, option: str) -> float | None:
    if value is not None and not 0 <= value < float("inf"):
        raise SettingsError(f"{option}: expected seconds from 0 on, found {value}")
    return value
