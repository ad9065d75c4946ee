"""`agents`, `version`."""

from __future__ import annotations

import typer

from standfast_chassis.build_info import build_info
from standfast_client.commands.options import (
    AsJson,
    RunnerAddress,
    State,
    Tenant,
    asked_runner,
    print_json,
    stdout_console,
    view_of,
    with_runner,
)
from standfast_client.errors import ClientError
from standfast_client.exit_codes import Exit, exit_of_error
from standfast_client.plain import plain
from standfast_client.screen.records import agents_table
from standfast_client.sdk import StandfastClient


def agents(
    as_json: AsJson = False, runner: RunnerAddress = None, state: State = None, tenant: Tenant = "local"
) -> None:
    """Lists the agents with their pinned versions and what each can."""

    async def work(client: StandfastClient) -> int:
        found = await client.list_agents()
        if as_json:
            for one in found:
                print_json(plain(one))
        else:
            stdout_console().print(agents_table(found))
        return Exit.COMPLETED

    with_runner(runner, state, tenant, as_json, work)


def version(
    as_json: AsJson = False, runner: RunnerAddress = None, state: State = None, tenant: Tenant = "local"
) -> None:
    """Says which release this client is, and, with --runner or a running `standfast up`, which builds answer."""
    own = build_info()
    builds: list[dict[str, object]] = [
        {
            "component": "client",
            "version": own.version,
            "release_sha": own.release_sha,
            "protocol_version": own.protocol_version,
        }
    ]

    async def work(client: StandfastClient) -> int:
        answer = await client.get_build_info()
        builds.extend(plain(one) for one in (answer.build, answer.manager) if one.component)
        return Exit.COMPLETED

    try:
        asked_runner(runner, state, tenant, work)
    except ClientError as error:
        # Its own release is known without anybody; a runner that was named and does not answer is an error.
        if runner is not None:
            view_of(as_json).error(error)
            raise typer.Exit(exit_of_error(error)) from error
        typer.echo(f"no runner asked: {error.message}", err=True)
    for build in builds:
        if as_json:
            print_json(build)
        else:
            typer.echo(f"{build['component']:<12} {build['version']}  {build['release_sha'] or 'release unknown'}")
