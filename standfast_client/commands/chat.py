"""`chat`: one conversation, message by message.

Whatever is typed goes to the agent, a leading `/` too: chat has no commands of its own. Ctrl-D leaves.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console

from standfast_client.commands.following import INTERRUPT_HELP, follow
from standfast_client.commands.options import AsJson, RunnerAddress, State, Tenant, runner_address, view_of
from standfast_client.commands.prompting import Prompting
from standfast_client.commands.turns import (
    Agent,
    AllowRules,
    CancelOnInterrupt,
    DenyRules,
    Model,
    Options,
    PermissionMode,
    RequestExpiry,
    expected_of,
    options_of,
)
from standfast_client.errors import ClientError, UnavailableError
from standfast_client.exit_codes import EXIT_CODES_HELP, Exit, exit_of_error
from standfast_client.screen.turn_views import TurnView
from standfast_client.sdk import Expect, Permissions, StandfastClient, TurnLimits, new_id
from standfast_client.turn_stream import TurnStream

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
    agent: Agent = None,
    model: Model = None,
    options: Options = None,
    permission_mode: PermissionMode = None,
    allow: AllowRules = None,
    deny: DenyRules = None,
    request_expiry_s: RequestExpiry = None,
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
    permissions = Permissions(permission_mode or "", allow or (), deny or ())
    limits = TurnLimits(request_expiry_s=request_expiry_s)
    asks_here = sys.stdin.isatty() and not as_json
    # One loop for the whole chat: the channel lives in it between two messages, while input() waits in the main thread.
    with asyncio.Runner() as loop:
        client = loop.run(_opened(address, tenant))
        try:
            while (line := _typed(notes)) is not None:
                if not line:
                    continue
                stream = _Message(client, conversation_id, line, expect, agent, model, settings, permissions, limits)
                code = loop.run(_one(stream, view, notes if asks_here else None, cancel_on_interrupt))
                # Only a turn that was refused leaves the conversation unknown.
                if code not in (Exit.REFUSED, Exit.USAGE, Exit.UNAVAILABLE):
                    expect = Expect.CONTINUE
        finally:
            loop.run(client.close())
    notes.print(f"[dim]go on with: standfast chat --conversation {conversation_id}[/dim]")
    raise typer.Exit(code)


chat.__doc__ = f"""Talks with an agent in one conversation, with live output; each turn shows how its context was kept.

Everything you type is sent byte for byte, also a leading /. Ctrl-D leaves. On a terminal you are asked what the agent asks; elsewhere
`standfast answer` answers it. {INTERRUPT_HELP}

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


@dataclass(frozen=True, slots=True)
class _Message:
    """One message and how it is sent."""

    client: StandfastClient
    conversation_id: str
    text: str
    expect: Expect
    agent: str | None
    model: str | None
    settings: dict[str, str]
    permissions: Permissions
    limits: TurnLimits

    def start(self) -> TurnStream:
        return self.client.start_turn(
            self.conversation_id,
            self.text,
            expect=self.expect,
            agent=self.agent,
            model=self.model,
            options=self.settings,
            permissions=self.permissions,
            limits=self.limits,
        )


async def _one(message: _Message, view: TurnView, prompts: Console | None, cancel_on_interrupt: bool) -> int:
    """One turn. `prompts` None: nobody is there to be asked."""
    client, conversation_id = message.client, message.conversation_id
    prompting = Prompting(client, conversation_id, prompts) if prompts is not None else None
    asking = asyncio.create_task(prompting.run()) if prompting is not None else None
    try:
        return await follow(
            client,
            conversation_id,
            message.start(),
            view,
            cancel_on_interrupt=cancel_on_interrupt,
            answering=prompting,
        )
    except ClientError as error:
        view.error(error)
        return exit_of_error(error)
    finally:
        if asking is not None:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
