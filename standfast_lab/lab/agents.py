"""What differs from agent to agent in the lab: one row each. A further agent is a row here and a line in `registry` on each side.

A row holds words and expectations, no steps: how its shell tool is called, how its process is known, how a fault of the provider ends
with it and in which context state the turn after it is. `cannot` names scenarios that a CLI cannot show, with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

KEPT, GONE = "LIVE", "RESTORED"
"""The context state of the turn after: the process is still there, or a new one has resumed."""


@dataclass(frozen=True)
class Ending:
    """How a turn ends and in which context state the next one is. `reason` is the failure's, "" for none."""

    outcome: str
    next_state: str
    reason: str = ""


GOOD, GOOD_THEN_GONE = Ending("COMPLETED", KEPT), Ending("COMPLETED", GONE)
BAD, BAD_THEN_GONE = Ending("FAILED", KEPT, "PROVIDER_ERROR"), Ending("FAILED", GONE, "PROVIDER_ERROR")


@dataclass(frozen=True)
class AgentWords:
    """One agent.

    shell: the lab word that calls its shell tool with this command.
    is_process: whether a command line is the CLI's own (for a bridged one: its server's).
    few_retries: options that set its own retries as low as it allows.
    endings: how the turn of a scenario ends, by the scenario's name; what is not named ends as GOOD.
    model: what a turn must name, None where the CLI has a model of its own. options: for every conversation.
    store_suffixes: what is appended to the locator's store for each file of it; a database has more than one.
    tells_status: a failure says the provider's HTTP status.
    failed_replies: what becomes of the texts of a turn that failed: they LAST in the history, they GO, or it is OPEN.
    """

    name: str
    shell: Callable[[str], str]
    is_process: Callable[[Sequence[str]], bool]
    few_retries: Mapping[str, str]
    endings: Mapping[str, Ending]
    model: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    store_suffixes: tuple[str, ...] = ("",)
    tells_status: bool = True
    failed_replies: str = "LAST"
    after_cancel: str = GONE
    cannot: Mapping[str, str] = field(default_factory=dict)

    def ending(self, scenario: str) -> Ending:
        """How the turn of this scenario ends."""
        return self.endings.get(scenario, GOOD)


def tool_word(name: str, **arguments: object) -> str:
    """The lab word that calls a tool."""
    return f"[[lab:tool={name} {json.dumps(arguments)}]]"


def _program(name: str, *words: str) -> Callable[[Sequence[str]], bool]:
    return lambda line: PurePath(line[0]).name == name and all(word in line for word in words)


_CLAUDE = AgentWords(
    name="claude-code",
    shell=lambda command: tool_word("Bash", command=command),
    is_process=_program("claude"),
    few_retries={"max_retries": "1"},
    endings={
        "call-refused": BAD,
        "call-refused-then-resume": BAD,
        "first-call-refused": BAD,
        # A process that has seen a retry leaves (design, chapter 5).
        "internal-retry": GOOD_THEN_GONE,
        "rate-limit": GOOD_THEN_GONE,
        "retry-in-a-tool-loop": GOOD_THEN_GONE,
        "retries-exhausted": BAD_THEN_GONE,
        "quota": BAD_THEN_GONE,
        "stream-cut-in-the-text": GOOD_THEN_GONE,
        "stream-reset-in-an-event": GOOD_THEN_GONE,
        "stream-cut-before-the-head": GOOD_THEN_GONE,
        "stream-cut-behind-the-text": BAD,
        "refusal": BAD,
    },
)

# Played over Chat Completions; a turn of it needs a model's name.
_PI = AgentWords(
    name="pi",
    shell=lambda command: tool_word("bash", command=command),
    # It gives itself a name in place of its command line.
    is_process=_program("pi"),
    model="lab-model",
    options={"protocol": "chat"},
    few_retries={"max_retries": "0"},
    # A failed reply is left out of every later request.
    failed_replies="GO",
    endings={
        "call-refused": BAD,
        "call-refused-then-resume": BAD,
        "first-call-refused": BAD,
        "retries-exhausted": BAD,
        "quota": BAD,
        "error-inside-the-stream": BAD,
        "stream-ends-in-order-too-early": BAD,
        "stream-cut-behind-the-text": BAD,
        "refusal": BAD,
        "length-stop": Ending("FAILED", KEPT, "NATIVE_ERROR"),
    },
    cannot={"sub-agent": "it has none"},
)

_CODEX = AgentWords(
    name="codex",
    shell=lambda command: tool_word("exec_command", cmd=command),
    is_process=_program("codex", "app-server"),
    model="lab-model",
    few_retries={"max_retries": "0"},
    # A failure says its kind, and the status only for some.
    tells_status=False,
    # An item that was whole before the failure lasts, a partial one goes.
    failed_replies="OPEN",
    endings={
        "call-refused": BAD,
        "call-refused-then-resume": Ending("FAILED", KEPT, "NATIVE_ERROR"),
        "first-call-refused": BAD,
        "retries-exhausted": Ending("FAILED", KEPT, "NATIVE_ERROR"),
        "quota": Ending("FAILED", KEPT, "NATIVE_ERROR"),
        "stream-cut-behind-the-text": Ending("FAILED", KEPT, "NATIVE_ERROR"),
        "error-inside-the-stream": Ending("FAILED", KEPT, "NATIVE_ERROR"),
        "refusal": Ending("FAILED", KEPT, "NATIVE_ERROR"),
        "length-stop": Ending("FAILED", KEPT, "NATIVE_ERROR"),
    },
    cannot={"sub-agent": "they outlive the turn, so they are switched off"},
)

AGENTS: Mapping[str, AgentWords] = {row.name: row for row in (_CLAUDE, _PI, _CODEX)}
