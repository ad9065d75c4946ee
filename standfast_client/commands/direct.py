"""`direct`: the built-in agent by itself, with no runner, manager or sandbox. Its options are the agent's own."""

from __future__ import annotations

import typer


def direct(context: typer.Context) -> None:
    """Works as a coding agent in this folder, against any compatible endpoint."""
    # Imported here: the other commands need none of it.
    from direct_agent.terminal.program import main

    raise typer.Exit(main(context.args))
