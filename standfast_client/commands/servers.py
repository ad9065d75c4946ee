"""`runner`, `manager`, `host-agent`: the three processes, each in the foreground until SIGTERM or Ctrl-C.

A server's module is imported only when it is started: `standfast ls` needs none of it.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import typer

from standfast_chassis.errors import SettingsError, StandfastError
from standfast_client.commands.server_flags import parsed_flags

MODULES = {
    "runner": "runner.server",
    "manager": "sandbox_manager.server",
    "host-agent": "sandbox_manager.host.server",
}
DESCRIPTIONS = {
    "runner": "Serves turns to clients.",
    "manager": "Owns hosts, groups, members and activations; serves runners and host agents.",
    "host-agent": "Runs the sandboxes of one engine and the relay to the model.",
}
# Everything after the command's name is the server's own: its flags come from its Settings class, --help too.
CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def run_server(name: str, argv: list[str]) -> int:
    """Runs a server until it is stopped; returns the exit code."""
    module: Any = importlib.import_module(MODULES[name])
    flags, file = parsed_flags(f"standfast {name}", DESCRIPTIONS[name], module.Settings.model_fields, argv)
    try:
        settings = module.Settings.load(flags, file)
    except SettingsError as error:
        print(f"standfast {name}: {error}", file=sys.stderr)
        return 2
    try:
        return int(module.run(settings))
    except StandfastError as error:
        print(f"standfast {name}: {error.reason}: {error}", file=sys.stderr)
        return 1


def runner(context: typer.Context) -> None:
    """Runs the runner: serves turns to clients."""
    raise typer.Exit(run_server("runner", context.args))


def manager(context: typer.Context) -> None:
    """Runs the sandbox manager."""
    raise typer.Exit(run_server("manager", context.args))


def host_agent(context: typer.Context) -> None:
    """Runs the host agent of one engine."""
    raise typer.Exit(run_server("host-agent", context.args))
