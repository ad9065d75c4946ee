"""`queue ls`, `queue cancel`, `queue release`: messages that wait for their turn."""

from __future__ import annotations

import typer

from standfast_client.commands.options import (
    AsJson,
    ConversationId,
    RunnerAddress,
    State,
    Tenant,
    TurnId,
    print_json,
    stdout_console,
    with_runner,
)
from standfast_client.exit_codes import Exit
from standfast_client.plain import plain
from standfast_client.screen.records import show_turn
from standfast_client.screen.waiting_views import show_queue
from standfast_client.sdk import StandfastClient

app = typer.Typer(no_args_is_help=True, help="Messages that wait for their turn.", rich_markup_mode=None)


@app.command("ls")
def ls(
    conversation: ConversationId,
    as_json: AsJson = False,
    runner: RunnerAddress = None,
    state: State = None,
    tenant: Tenant = "local",
) -> None:
    """Lists a conversation's waiting messages in the order in which they will be sent, and why they are held, if they are."""

    async def work(client: StandfastClient) -> int:
        found = await client.list_queue(conversation)
        if as_json:
            print_json(plain(found))
        else:
            show_queue(stdout_console(), conversation, found)
        return Exit.COMPLETED

    with_runner(runner, state, tenant, as_json, work)


@app.command("cancel")
def cancel(
    conversation: ConversationId,
    turn_id: TurnId,
    as_json: AsJson = False,
    runner: RunnerAddress = None,
    state: State = None,
    tenant: Tenant = "local",
) -> None:
    """Takes a waiting message out; nothing of it was sent. One that runs already is refused (exit code 3): see `cancel`."""

    async def work(client: StandfastClient) -> int:
        found = await client.cancel_queued(conversation, turn_id)
        if as_json:
            print_json(plain(found))
        else:
            show_turn(stdout_console(), found)
        return Exit.COMPLETED

    with_runner(runner, state, tenant, as_json, work)


@app.command("release")
def release(
    conversation: ConversationId,
    as_json: AsJson = False,
    runner: RunnerAddress = None,
    state: State = None,
    tenant: Tenant = "local",
) -> None:
    """Lets a held queue go on with its next message."""

    async def work(client: StandfastClient) -> int:
        found = await client.release_queue(conversation)
        if as_json:
            print_json(plain(found))
        else:
            show_queue(stdout_console(), conversation, found)
        return Exit.COMPLETED

    with_runner(runner, state, tenant, as_json, work)
