"""`chat`: one conversation, message by message.

Whatever is typed goes to the agent, a leading `/` too: chat has no commands of its own. Ctrl-D leaves.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from typing import Annotated

import typer
from rich.console import Console

from standfast_client.commands.following import INTERRUPT_HELP, follow
from standfast_client.commands.options import AsJson, RunnerAddress, State, Tenant, runner_address, view_of
from standfast_client.commands.turns import Agent, CancelOnInterrupt, Model, Options, expected_of, options_of
from standfast_client.errors import ClientError, UnavailableError
from standfast_client.exit_codes import EXIT_CODES_HELP, Exit, exit_of_error
from standfast_client.screen.turn_views import TurnView
from standfast_client.sdk import DEFAULT_AGENT, Expect, StandfastClient, new_id

PROMPT = "you> "


def chat(
    conversation: Annotated[
        str | None, typer.Option("--conversation", "-c", help="The conversation's id. Default: a new one.")
    ] = None,
    new: Annotated[
        bool | None,
        typer.Option(
            "--new/--continue", help="Expect a new or a known conversation. Default: known with an id, new without."
        ),
    ] = None,
    agent: Agent = DEFAULT_AGENT,
    model: Model = None,
    options: Options = None,
    cancel_on_interrupt: CancelOnInterrupt = False,
    as_json: AsJson = False,
    runner: RunnerAddress = None,
    state: State = None,
    tenant: Tenant = "local",
) -> None:
    expect = expected_of(new, conversation)
    settings = options_of(options)
    conversation_id = conversation if conversation is not None else new_id("c")
    view = view_of(as_json)
    try:
        address = runner_address(runner, state)
    except UnavailableError as error:
        view.error(error)
        raise typer.Exit(exit_of_error(error)) from error
    notes = Console(stderr=True, highlight=False)
    notes.print(
        f"[dim]conversation {conversation_id} with {agent} · Ctrl-D leaves · everything else is sent as typed[/dim]"
    )
    code: int = Exit.COMPLETED
    # One loop for the whole chat: the channel lives in it between two messages, while input() waits in the main thread.
    with asyncio.Runner() as loop:
        client = loop.run(_opened(address, tenant))
        try:
            while (line := _typed(notes)) is not None:
                if not line:
                    continue
                code = loop.run(
                    _one(client, conversation_id, line, expect, agent, model, settings, view, cancel_on_interrupt)
                )
                # Only a turn that was refused leaves the conversation unknown.
                if code not in (Exit.REFUSED, Exit.USAGE, Exit.UNAVAILABLE):
                    expect = Expect.CONTINUE
        finally:
            loop.run(client.close())
    notes.print(f"[dim]go on with: standfast chat --conversation {conversation_id}[/dim]")
    raise typer.Exit(code)


chat.__doc__ = f"""Talks with an agent in one conversation, with live output; each turn shows how its context was kept.

Everything you type is sent byte for byte, also a leading /. Ctrl-D leaves. {INTERRUPT_HELP}

The exit code is that of the last turn. {EXIT_CODES_HELP}"""


async def _opened(address: str, tenant: str) -> StandfastClient:
    return StandfastClient(address, tenant=tenant)


def _typed(notes: Console) -> str | None:
    """The next line without its line end; None at the end of input, or at Ctrl-C on the prompt."""
    try:
        if sys.stdin.isatty():
            # input() gets line editing and a history by the import alone.
            importlib.import_module("readline")

            return input(PROMPT)
        line = sys.stdin.readline()
        return line.removesuffix("\n") if line else None
    except (EOFError, KeyboardInterrupt):
        notes.print()
        return None


async def _one(
    client: StandfastClient,
    conversation_id: str,
    text: str,
    expect: Expect,
    agent: str,
    model: str | None,
    settings: dict[str, str],
    view: TurnView,
    cancel_on_interrupt: bool,
) -> int:
    try:
        stream = client.start_turn(conversation_id, text, expect=expect, agent=agent, model=model, options=settings)
        return await follow(client, conversation_id, stream, view, cancel_on_interrupt=cancel_on_interrupt)
    except ClientError as error:
        view.error(error)
        return exit_of_error(error)
