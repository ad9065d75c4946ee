"""`standfast`: the command line. One file a group of commands in `commands/`."""

from __future__ import annotations

import typer

from standfast_client.commands import about, chat, conversations, direct, lab, queue, requests, servers, turns, up
from standfast_client.exit_codes import EXIT_CODES_HELP

app = typer.Typer(
    name="standfast",
    no_args_is_help=True,
    add_completion=False,
    # A traceback with local variables could print a message or a key.
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Runs coding-agent CLIs as cloud agents, each conversation in the CLI's own session.\n\n" + EXIT_CODES_HELP,
)

app.command()(up.up)
app.command()(chat.chat)
app.command()(turns.turn)
app.command()(turns.watch)
app.command()(turns.cancel)
app.command()(requests.pending)
app.command()(requests.answer)
app.command()(conversations.ls)
app.command()(conversations.show)
app.command()(conversations.stop)
app.command()(conversations.rm)
app.command()(about.agents)
app.command()(about.version)
app.command(context_settings=servers.CONTEXT)(servers.runner)
app.command(context_settings=servers.CONTEXT)(servers.manager)
app.command(context_settings=servers.CONTEXT)(direct.direct)
app.command("host-agent", context_settings=servers.CONTEXT)(servers.host_agent)
app.add_typer(queue.app, name="queue")
app.add_typer(lab.app, name="lab")


def main() -> None:
    """Entry point."""
    app()
