"""`lab provider`: the deterministic model provider for trials without a key."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Deterministic parts for trials: nothing here needs a key.")


@app.callback()
def _group() -> None:
    """Keeps `provider` a command of its own while it is the only one."""


@app.command()
def provider(
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0 takes a free one.")] = 0,
    log: Annotated[Path | None, typer.Option("--log", help="JSONL file, one row a request; appended to.")] = None,
    script: Annotated[Path | None, typer.Option("--script", help="JSON list of script steps.")] = None,
    ready_file: Annotated[Path | None, typer.Option("--ready-file", help="Written once it listens.")] = None,
) -> None:
    """Serves the Messages protocol on loopback. The first line printed says where, as JSON.

    Accepted API keys come from the environment variable STANDFAST_LAB_API_KEYS, never from a flag; unset: any.
    """
    from standfast_lab.provider.main import run

    raise typer.Exit(run(host=host, port=port, log=log, script=script, ready_file=ready_file))
