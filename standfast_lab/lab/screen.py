"""How the matrix looks: a line a cell as it ends, and the table at the end; or one JSON object a cell."""

from __future__ import annotations

import json
import sys

from rich.console import Console
from rich.table import Table

from standfast_lab.lab.matrix import Cell

TABLE_WIDTH = 140


class JsonScreen:
    """One object a cell on standard output; everything else on standard error."""

    def note(self, text: str) -> None:
        """Says something that is no cell."""
        print(text, file=sys.stderr, flush=True)

    def cell(self, cell: Cell, done: int, of: int) -> None:
        """A cell is over."""
        print(json.dumps(cell.as_json()), flush=True)
        self.note(f"{done}/{of} {cell.agent} {cell.scenario}: {_word(cell)} ({cell.seconds} s)")

    def end(self, cells: list[Cell]) -> None:
        """All cells are over."""
        self.note(_summary(cells))


class TableScreen:
    """Lines as they come, and the matrix at the end."""

    def __init__(self) -> None:
        console = Console()
        self._console = console if console.is_terminal else Console(width=TABLE_WIDTH)

    def note(self, text: str) -> None:
        """Says something that is no cell."""
        self._console.print(text, style="dim", highlight=False, markup=False)

    def cell(self, cell: Cell, done: int, of: int) -> None:
        """A cell is over."""
        colour = {True: "green", False: "red", None: "yellow"}[cell.passed]
        self._console.print(
            f"{done:>3}/{of} [{colour}]{_word(cell):<6}[/] {cell.agent} {cell.scenario} "
            f"[dim]{cell.seconds} s{f', round {cell.round}' if cell.round > 1 else ''}[/]",
            highlight=False,
        )
        if cell.passed is not True:
            self._console.print(f"       {cell.detail}", highlight=False, markup=False)

    def end(self, cells: list[Cell]) -> None:
        """The matrix: a row a scenario, a column an agent."""
        agents = list(dict.fromkeys(cell.agent for cell in cells))
        table = Table(title="agent by scenario", show_lines=False)
        table.add_column("scenario", no_wrap=True)
        for agent in agents:
            table.add_column(agent, no_wrap=True)
        for scenario in dict.fromkeys(cell.scenario for cell in cells):
            table.add_row(scenario, *(_in_the_table(cells, agent, scenario) for agent in agents))
        self._console.print(table)
        self._console.print(_summary(cells), highlight=False, markup=False)


def _in_the_table(cells: list[Cell], agent: str, scenario: str) -> str:
    found = [cell for cell in cells if (cell.agent, cell.scenario) == (agent, scenario)]
    failed = sum(cell.passed is False for cell in found)
    if failed:
        return f"[red]NO[/] {failed} of {len(found)}" if len(found) > 1 else "[red]NO[/]"
    if not found:
        return ""
    return "[yellow]cannot[/]" if found[0].passed is None else "[green]ok[/]"


def _word(cell: Cell) -> str:
    return {True: "ok", False: "NO", None: "cannot"}[cell.passed]


def _summary(cells: list[Cell]) -> str:
    counts = [sum(cell.passed is value for cell in cells) for value in (True, False, None)]
    return f"{counts[0]} passed, {counts[1]} failed" + (f", {counts[2]} cannot be shown" if counts[2] else "")


Screen = JsonScreen | TableScreen
