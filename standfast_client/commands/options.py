"""Options that several commands share, and how a command reaches its runner."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from standfast_client.errors import ClientError, UnavailableError
from standfast_client.exit_codes import exit_of_error
from standfast_client.house.endpoints import EndpointsError, default_state, read_endpoints
from standfast_client.screen.turn_views import JsonView, TextView, TurnView
from standfast_client.sdk import StandfastClient

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]
RunnerAddress = Annotated[
    str | None,
    typer.Option(
        "--runner",
        metavar="HOST:PORT",
        envvar="STANDFAST_CLIENT_RUNNER",
        help="The runner's address. Default: the one that `standfast up` wrote into the state folder.",
    ),
]
State = Annotated[
    Path | None,
    typer.Option(
        "--state",
        envvar="STANDFAST_CLIENT_STATE",
        help="State folder of `standfast up`. Default: standfast in the user's state folder (~/.local/state).",
    ),
]
Tenant = Annotated[str, typer.Option("--tenant", envvar="STANDFAST_CLIENT_TENANT", help="Tenant.", hidden=True)]
ConversationId = Annotated[str, typer.Argument(metavar="CONVERSATION", help="The conversation's id.")]
TurnId = Annotated[str, typer.Argument(metavar="TURN", help="The turn's id.")]


def runner_address(given: str | None, state: Path | None) -> str:
    """The runner to talk to. Raises UnavailableError when nobody says where it is."""
    if given:
        return given
    try:
        return read_endpoints(state or default_state()).runner
    except EndpointsError as error:
        raise UnavailableError(
            f"{error}. Start it with `standfast up`, or name a runner with --runner HOST:PORT."
        ) from error


def view_of(as_json: bool) -> TurnView:
    """The view for a turn."""
    return JsonView() if as_json else TextView()


def asked_runner(
    runner: str | None, state: Path | None, tenant: str, work: Callable[[StandfastClient], Awaitable[int]]
) -> int:
    """Runs `work` with a client. Raises ClientError."""

    async def run() -> int:
        async with StandfastClient(runner_address(runner, state), tenant=tenant) as client:
            return await work(client)

    return asyncio.run(run())


def with_runner(
    runner: str | None,
    state: Path | None,
    tenant: str,
    as_json: bool,
    work: Callable[[StandfastClient], Awaitable[int]],
) -> NoReturn:
    """Runs `work` with a client and exits with its code, or with that of a ClientError, which is shown."""
    try:
        code = asked_runner(runner, state, tenant, work)
    except ClientError as error:
        view_of(as_json).error(error)
        code = exit_of_error(error)
    raise typer.Exit(code)


def print_json(value: object) -> None:
    """One object, one line."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def stdout_console() -> Console:
    """The console for records; plain text when it is no terminal."""
    return Console(highlight=False)
