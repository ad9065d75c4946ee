"""How the story looks: a table that grows line by line, or one JSON object a line."""

from __future__ import annotations

import json
import sys

from rich.console import Console
from rich.table import Table

from standfast_lab.demo.story import Line, Step

TABLE_WIDTH = 170
# Name, and whether its cells are short enough never to be broken.
COLUMNS = (
    ("", True),
    ("what happens", False),
    ("state", True),
    ("outcome", True),
    ("process", True),
    ("session", True),
    ("history", False),
    ("runner", True),
    ("manager", True),
    ("answer", False),
)


class JsonScreen:
    """One object a step on standard output; everything else on standard error."""

    def note(self, text: str) -> None:
        """Says something that is no step."""
        print(text, file=sys.stderr, flush=True)

    def line(self, step: Step, line: Line, wrong: list[str]) -> None:
        """A step is over."""
        print(json.dumps({**line.as_json(), "passed": not wrong, "differences": wrong}), flush=True)

    def end(self, passed: bool) -> None:
        """The story is over."""
        self.note("every line is as it must be" if passed else "not every line is as it must be")


class TableScreen:
    """Lines as they come, and the table at the end."""

    def __init__(self) -> None:
        console = Console()
        # A pipe has no width of its own; the table needs this much to be read.
        self._console = console if console.is_terminal else Console(width=TABLE_WIDTH)
        self._table = Table(title="One conversation, one native session", show_lines=False)
        for name, is_short in COLUMNS:
            self._table.add_column(name, overflow="fold", no_wrap=is_short)

    def note(self, text: str) -> None:
        """Says something that is no step."""
        self._console.print(text, style="dim", highlight=False)

    def line(self, step: Step, line: Line, wrong: list[str]) -> None:
        """A step is over."""
        mark = "[green]ok[/]" if not wrong else "[red]NO[/]"
        self._console.print(
            f"{step.number:>2} {mark} {step.title}: {line.context_state}, {line.outcome}"
            + (f" ({line.reason})" if line.reason else ""),
            highlight=False,
        )
        for one in wrong:
            self._console.print(f"      [red]{one}[/]", highlight=False)
        self._table.add_row(
            str(step.number),
            f"{step.title}\n[dim]{step.message.replace('[', chr(92) + '[')}[/]",
            line.context_state,
            line.outcome + (f"\n{line.reason}" if line.reason else ""),
            f"{line.process_generation} {line.disposition.lower()}" if line.process_generation else "-",
            line.native_session_id[:8] or "-",
            line.history,
            _short(line.runner_verdict),
            _short(line.manager_verdict),
            line.answer.replace("[", "\\["),
        )

    def end(self, passed: bool) -> None:
        """The story is over."""
        self._console.print(self._table)
        self._console.print(
            "[green]every line is as it must be[/]" if passed else "[red]not every line is as it must be[/]"
        )


def _short(verdict: str) -> str:
    return "-" if verdict in ("", "UNSPECIFIED") else verdict.lower()


Screen = JsonScreen | TableScreen
