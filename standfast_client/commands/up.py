"""`up`: the whole product on this machine, for a first try and for a single user."""

from __future__ import annotations

import asyncio
import enum
import sys
from pathlib import Path
from typing import Annotated

import typer

from standfast_chassis.errors import StandfastError
from standfast_client.commands.options import AsJson
from standfast_client.exit_codes import Exit
from standfast_client.house.endpoints import Endpoints, default_state
from standfast_client.house.house import endpoints_line, run_house
from standfast_client.house.log_lines import LogLines
from standfast_client.house.plan import HouseSettings


class Engine(enum.StrEnum):
    """Engines."""

    AUTO = "auto"
    DOCKER = "docker"
    LOCAL = "local"


class KeyStyle(enum.StrEnum):
    """Headers of the provider's key."""

    X_API_KEY = "x-api-key"
    BEARER = "bearer"


class OnExit(enum.StrEnum):
    """What becomes of running sandboxes at the end."""

    STOP = "stop"
    LEAVE = "leave"


def up(
    state: Annotated[
        Path | None,
        typer.Option(
            "--state",
            envvar=["STANDFAST_STATE", "STANDFAST_CLIENT_STATE"],
            help="State folder; one `up` at a time. Default: standfast in the user's state folder (~/.local/state).",
        ),
    ] = None,
    engine: Annotated[
        Engine,
        typer.Option("--engine", envvar="STANDFAST_ENGINE", help="auto: docker where an engine answers, else local."),
    ] = Engine.AUTO,
    provider_url: Annotated[
        str | None,
        typer.Option("--provider-url", envvar="STANDFAST_PROVIDER_URL", help="Base URL of the Messages provider."),
    ] = None,
    lab: Annotated[
        bool, typer.Option("--lab", help="Start the lab provider and use it: no key, no network, computed answers.")
    ] = False,
    provider_key_file: Annotated[
        Path | None,
        typer.Option(
            "--provider-key-file",
            envvar="STANDFAST_PROVIDER_KEY_FILE",
            help="File with the provider's key. Only the host agent reads it. Or give the key in STANDFAST_PROVIDER_KEY.",
        ),
    ] = None,
    provider_key_style: Annotated[
        KeyStyle, typer.Option("--provider-key-style", envvar="STANDFAST_PROVIDER_KEY_STYLE", help="Header of the key.")
    ] = KeyStyle.X_API_KEY,
    image: Annotated[
        str | None, typer.Option("--image", envvar="STANDFAST_IMAGE", help="docker: the sandbox image, by tag or id.")
    ] = None,
    manifest: Annotated[
        Path | None,
        typer.Option(
            "--manifest",
            envvar="STANDFAST_MANIFEST",
            help="Release manifest of the image or the tool folder. Default: the one in the build cache.",
        ),
    ] = None,
    tools: Annotated[
        Path | None,
        typer.Option(
            "--tools",
            envvar="STANDFAST_TOOLS",
            help="local: the folder with the agents' programs. Default: the one in the build cache.",
        ),
    ] = None,
    allow_unisolated: Annotated[
        bool, typer.Option("--allow-unisolated", help="local: allow a provider that is not on loopback.")
    ] = False,
    on_exit: Annotated[OnExit, typer.Option("--on-exit", help="Running sandboxes at the end.")] = OnExit.STOP,
    runner_port: Annotated[int, typer.Option("--runner-port", min=0, max=65535, help="0 takes a free one.")] = 0,
    manager_port: Annotated[int, typer.Option("--manager-port", min=0, max=65535, help="0 takes a free one.")] = 0,
    host_port: Annotated[int, typer.Option("--host-port", min=0, max=65535, help="0 takes a free one.")] = 0,
    otlp_endpoint: Annotated[
        str | None, typer.Option("--otlp-endpoint", envvar="STANDFAST_OTLP_ENDPOINT", help="Where traces go.")
    ] = None,
    log_level: Annotated[str, typer.Option("--log-level", envvar="STANDFAST_LOG_LEVEL", help="Log level.")] = "INFO",
    ready_timeout_s: Annotated[float, typer.Option("--ready-timeout-s", min=1, help="Bound of each start.")] = 60.0,
    stop_timeout_s: Annotated[
        float, typer.Option("--stop-timeout-s", min=1, help="Bound of each stop; then the process is killed.")
    ] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Starts manager, host agent and runner on loopback, shows their logs on standard error, and stops them on Ctrl-C.

    When all serve, one line on standard output says where, and `endpoints.json` in the state folder tells the other commands. Ctrl-C or
    SIGTERM stops runner, host agent and manager in this order; a second one hurries.

    Exit codes: 0 stopped in order · 1 a process did not come up, or ended by itself · 2 wrong usage · 3 refused, nothing was started
    (the state folder or a port is in use, no engine, no manifest).
    """
    if lab == (provider_url is not None):
        raise typer.BadParameter("name a provider with --provider-url URL, or take the lab's with --lab")
    asked = HouseSettings(
        state=(state or default_state()).absolute(),
        engine=engine.value,
        provider_url=provider_url,
        provider_key_file=provider_key_file,
        provider_key_style=provider_key_style.value,
        image=image,
        manifest=manifest,
        tools=tools,
        allow_unisolated=allow_unisolated,
        on_exit=on_exit.value,
        runner_port=runner_port,
        manager_port=manager_port,
        host_port=host_port,
        otlp_endpoint=otlp_endpoint,
        log_level=log_level,
        ready_timeout_s=ready_timeout_s,
        stop_timeout_s=stop_timeout_s,
    )

    def on_up(endpoints: Endpoints) -> None:
        typer.echo(
            endpoints_line(endpoints)
            if as_json
            else f"ready: runner at {endpoints.runner}. Try: standfast chat --state {asked.state}"
        )

    try:
        code = asyncio.run(run_house(asked, LogLines(sys.stderr), on_up))
    except StandfastError as error:
        typer.echo(f"standfast up: {error.reason}: {error}", err=True)
        raise typer.Exit(Exit.REFUSED) from error
    raise typer.Exit(code)
