"""`ls`, `show`, `stop`, `rm`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from standfast_client.commands.options import (
    AsJson,
    ConversationId,
    RunnerAddress,
    State,
    Tenant,
    print_json,
    stdout_console,
    with_runner,
)
from standfast_client.exit_codes import Exit
from standfast_client.plain import plain
from standfast_client.screen.records import conversations_table, show_conversation, show_turn
from standfast_client.sdk import StandfastClient

Force = Annotated[bool, typer.Option("--force", help="Interrupt a running turn.")]


def ls(as_json: AsJson = False, runner: RunnerAddress = None, state: State = None, tenant: Tenant = "local") -> None:
    """Lists conversations."""

    async def work(client: StandfastClient) -> int:
        found = [one async for one in client.list_conversations()]
        if as_json:
            for one in found:
                print_json(plain(one))
        else:
            stdout_console().print(conversations_table(found))
        return Exit.COMPLETED

    with_runner(runner, state, tenant, as_json, work)


def show(
    conversation: ConversationId,
    turn_id: Annotated[str | None, typer.Argument(metavar="[TURN]", help="Only this turn.")] = None,
    as_json: AsJson = False,
    runner: RunnerAddress = None,
    state: State = None,
    tenant: Tenant = "local",
) -> None:
    """Shows a conversation and, per turn, how its context was kept and on which evidence.

    Context state and why, locator, container and process generation, end evidence, both verdicts, store, and whether the process was
    kept. With --json the conversation comes first, then one object a turn; `kind` tells which.
    """

    async def work(client: StandfastClient) -> int:
        if turn_id is not None:
            turns = [await client.get_turn(conversation, turn_id)]
        else:
            found = await client.get_conversation(conversation)
            turns = [one async for one in client.list_turns(conversation)]
            if as_json:
                print_json({"kind": "conversation", **plain(found)})
            else:
                show_conversation(stdout_console(), found)
        for one in turns:
            if as_json:
                print_json({"kind": "turn", **plain(one)})
            else:
                show_turn(stdout_console(), one)
        return Exit.COMPLETED

    with_runner(runner, state, tenant, as_json, work)


def stop(
    conversation: ConversationId,
    force: Force = False,
    as_json: AsJson = False,
    runner: RunnerAddress = None,
    state: State = None,
    tenant: Tenant = "local",
) -> None:
    """Stops a conversation's sandbox in order. The conversation stays; its next turn is RESTORED."""

    async def work(client: StandfastClient) -> int:
        found = await client.stop_conversation(conversation, force=force)
        if as_json:
            print_json(plain(found))
        else:
            show_conversation(stdout_console(), found)
        return Exit.COMPLETED

    with_runner(runner, state, tenant, as_json, work)


def rm(
    conversation: ConversationId,
    force: Force = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
    runner: RunnerAddress = None,
    state: State = None,
    tenant: Tenant = "local",
) -> None:
    """Removes a conversation with its sandbox for good; its id is not used again."""
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Remove {conversation} with its native session and workspace for good?", abort=True, err=True)

    async def work(client: StandfastClient) -> int:
        await client.remove_conversation(conversation, force=force)
        if as_json:
            print_json({"conversation_id": conversation, "is_removed": True})
        else:
            typer.echo(f"removed {conversation}")
        return Exit.COMPLETED

    with_runner(runner, state, tenant, as_json, work)
