"""Prints a result: the answers and request ids, a table, and a summary. Everything goes through the mask first."""

from __future__ import annotations

import json
from collections.abc import Callable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from deploy.preflight.questions import GROUPS
from deploy.preflight.result import Call, PreflightResult

Masked = Callable[[str], str]


def as_json(result: PreflightResult, masked: Masked) -> str:
    """One JSON object."""
    return masked(json.dumps(result.to_json(), ensure_ascii=False, indent=1))


def show(result: PreflightResult, console: Console, masked: Masked) -> None:
    """Answers, table, summary."""
    for call in result.calls:
        ident = f"{call.group}, repetition {call.repetition}, request {call.request_id or 'without an id'}"
        console.print(Text(masked(ident), style="bold"))
        console.print(Text(masked(call.answer or "(no answer)")))
        for line in _complaints(call):
            console.print(Text(masked(line), style="red"))
    table = Table(title=masked(f"{result.model} at {result.gateway}"))
    for name in ("group", "calls", "recalled", "thinking seen"):
        table.add_column(name)
    for group in GROUPS:
        calls = [call for call in result.calls if call.group == group]
        recalled, thought = sum(call.recalled for call in calls), sum(call.thinking_seen for call in calls)
        table.add_row(group, str(len(calls)), f"{recalled}/{len(calls)}", f"{thought}/{len(calls)}")
    console.print(table)
    console.print(f"recall_passed: {_word(result.recall_passed)}")
    console.print(f"thinking_observed: {_word(result.thinking_observed)}")
    for note in result.notes():
        console.print(Text(note))


def _complaints(call: Call) -> list[str]:
    lines = [] if call.error is None else [f"failed: {call.error}"]
    if call.missing_facts:
        lines.append(f"missing: {', '.join(call.missing_facts)}")
    if call.lost_sentence is not None:
        lines.append(f"says that it cannot see the history (a person must look): {call.lost_sentence!r}")
    return lines


def _word(value: bool) -> str:
    return "yes" if value else "no"
