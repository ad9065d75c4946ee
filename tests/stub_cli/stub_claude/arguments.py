"""The command line, as far as a driver uses it. Unknown flags are errors: a driver that invents one is to be told."""

from __future__ import annotations

import json
from dataclasses import dataclass

_WITH_VALUE = frozenset(
    {
        "--input-format",
        "--output-format",
        "--permission-mode",
        "--allowedTools",
        "--disallowedTools",
        "--model",
        "--session-id",
        "--resume",
        "--permission-prompt-tool",
        "--settings",
        "--setting-sources",
    }
)
_WITHOUT_VALUE = frozenset(
    {"-p", "--print", "--verbose", "--include-partial-messages", "--forward-subagent-text", "--fork-session"}
)


@dataclass(frozen=True)
class Arguments:
    """What the process was told. Exactly one of `session_id` and `resume` may be set."""

    model: str = "claude-sonnet-4-5"
    permission_mode: str = "default"
    session_id: str | None = None
    resume: str | None = None
    partial_messages: bool = False
    subagent_text: bool = False
    asks: bool = False  # what must be asked for comes as a control request
    allowed: tuple[str, ...] = ()
    disallowed: tuple[str, ...] = ()
    asking: tuple[str, ...] = ()  # tools with an asking rule


class UsageError(Exception):
    """The command line cannot be used; the text goes to stderr."""


def read_arguments(argv: list[str]) -> Arguments:
    """Reads `argv` without the program's name."""
    values: dict[str, str] = {}
    flags: set[str] = set()
    rest = list(argv)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name in _WITHOUT_VALUE and not equals:
            flags.add(name)
        elif name in _WITH_VALUE:
            if not equals:
                if not rest:
                    raise UsageError(f"error: option '{name} <value>' argument missing")
                value = rest.pop(0)
            values[name] = value
        else:
            raise UsageError(f"error: unknown option '{name}'")
    if "--session-id" in values and "--resume" in values and "--fork-session" not in flags:
        raise UsageError("Error: --session-id can only be used with --resume together with --fork-session.")
    return Arguments(
        model=values.get("--model", Arguments.model),
        permission_mode=values.get("--permission-mode", Arguments.permission_mode),
        session_id=values.get("--session-id"),
        resume=values.get("--resume"),
        partial_messages="--include-partial-messages" in flags,
        subagent_text="--forward-subagent-text" in flags,
        asks=values.get("--permission-prompt-tool") == "stdio",
        allowed=_rules(values.get("--allowedTools", "")),
        disallowed=_rules(values.get("--disallowedTools", "")),
        asking=tuple(json.loads(values.get("--settings", "{}")).get("permissions", {}).get("ask", ())),
    )


def _rules(value: str) -> tuple[str, ...]:
    return tuple(rule for rule in value.split(",") if rule)
