"""`turn`, `watch`, `cancel`."""

from __future__ import annotations

import enum
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from standfast_client.commands.following import INTERRUPT_HELP, follow
from standfast_client.commands.options import (
    AsJson,
    ConversationId,
    RunnerAddress,
    State,
    Tenant,
    TurnId,
    print_json,
    stdout_console,
    view_of,
    with_runner,
)
from standfast_client.exit_codes import EXIT_CODES_HELP, Exit
from standfast_client.plain import plain
from standfast_client.screen.records import show_turn
from standfast_client.sdk import (
    Expect,
    Permissions,
    StandfastClient,
    TurnLimits,
    WhenBusy,
    new_id,
)

Agent = Annotated[
    str | None,
    typer.Option(
        "--agent", help="The agent. Default: the conversation's; claude-code in a new one.", show_default=False
    ),
]
CancelOnInterrupt = Annotated[
    bool, typer.Option("--cancel-on-interrupt", help="The first Ctrl-C cancels the turn instead of leaving the view.")
]
Model = Annotated[
    str | None, typer.Option("--model", help="The model's name. Default: the conversation's, else the agent's.")
]
PermissionMode = Annotated[
    str | None,
    typer.Option(
        "--permission-mode",
        metavar="MODE",
        help="auto (allow inside the sandbox), ask or deny. Default: what the conversation has, auto at first.",
    ),
]
AllowRules = Annotated[
    list[str] | None,
    typer.Option(
        "--allow", metavar="RULE", help="A tool that may be used unasked, e.g. 'Bash(git *)'; may be repeated."
    ),
]
DenyRules = Annotated[
    list[str] | None, typer.Option("--deny", metavar="RULE", help="A tool that may never be used; may be repeated.")
]
RequestExpiry = Annotated[
    float | None,
    typer.Option(
        "--request-expiry-s",
        min=0.001,
        help="How long a permission or a question waits for its answer. Default: the runner's.",
    ),
]
Options = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A further setting of the agent; may be repeated."),
]


class Busy(enum.StrEnum):
    """The words of --when-busy."""

    REJECT = "reject"
    QUEUE = "queue"
    STEER = "steer"


def expected_of(is_new: bool | None, conversation_id: str | None) -> Expect:
    """What is expected of the conversation: said by a flag, else NEW without an id and CONTINUE with one."""
    if is_new is None:
        return Expect.NEW if conversation_id is None else Expect.CONTINUE
    if not is_new and conversation_id is None:
        raise typer.BadParameter("--continue needs the conversation's id: --conversation ID")
    return Expect.NEW if is_new else Expect.CONTINUE


def options_of(words: list[str] | None) -> dict[str, str]:
    """NAME=VALUE words as a dictionary."""
    found: dict[str, str] = {}
    for word in words or []:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"expected NAME=VALUE, found {word!r}")
        found[name] = value
    return found


def message_of(argument: str | None, file: Path | None) -> str:
    """The message, byte for byte: nothing is trimmed, added or translated. Raises typer.BadParameter."""
    if (argument is None) == (file is None):
        raise typer.BadParameter("give the message either as an argument (`-` reads standard input) or by --file")
    if file is not None:
        try:
            raw = file.read_bytes()
        except OSError as error:
            raise typer.BadParameter(f"{file} cannot be read: {error.strerror}") from error
        where = str(file)
    elif argument == "-":
        raw, where = sys.stdin.buffer.read(), "standard input"
    else:
        # Undoes Python's decoding of the command line, whatever the locale was.
        raw, where = os.fsencode(argument or ""), "the argument"
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise typer.BadParameter(
            f"{where} is not UTF-8 (byte {error.start}); a message is text, put other content into a file of the workspace"
        ) from error


def turn(
    message: Annotated[
        str | None, typer.Argument(metavar="MESSAGE", help="The text; `-` reads it from standard input.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Read the text from this file.")] = None,
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
    turn_id: Annotated[
        str | None, typer.Option("--turn-id", help="Your own id of the turn; the same one is never run twice.")
    ] = None,
    model: Model = None,
    options: Options = None,
    raw: Annotated[bool, typer.Option("--raw", help="Show each raw native frame too.")] = False,
    turn_limit_s: Annotated[
        float | None, typer.Option("--turn-limit-s", min=0.001, help="Time limit of the turn. Default: the runner's.")
    ] = None,
    silence_limit_s: Annotated[
        float | None,
        typer.Option(
            "--silence-limit-s", min=0.001, help="How long the agent may print nothing. Default: the runner's."
        ),
    ] = None,
    request_expiry_s: RequestExpiry = None,
    when_busy: Annotated[
        Busy,
        typer.Option(
            "--when-busy", help="While another turn runs: refuse, queue in order, or hand it to the running turn."
        ),
    ] = Busy.REJECT,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Return once the message is accepted or queued; `watch` follows it.")
    ] = False,
    permission_mode: PermissionMode = None,
    allow: AllowRules = None,
    deny: DenyRules = None,
    cancel_on_interrupt: CancelOnInterrupt = False,
    as_json: AsJson = False,
    runner: RunnerAddress = None,
    state: State = None,
    tenant: Tenant = "local",
) -> None:
    text = message_of(message, file)
    expect = expected_of(new, conversation)
    settings = options_of(options)
    conversation_id = conversation if conversation is not None else new_id("c")
    view = view_of(as_json)
    permissions = Permissions(permission_mode or "", allow or (), deny or ())
    limits = TurnLimits(turn_limit_s, silence_limit_s, request_expiry_s)
    busy = WhenBusy[when_busy.name]

    async def send(client: StandfastClient) -> int:
        sent = await client.send_message(
            conversation_id,
            text,
            expect=expect,
            agent=agent,
            turn_id=turn_id,
            model=model,
            options=settings,
            when_busy=busy,
            permissions=permissions,
            limits=limits,
        )
        if as_json:
            print_json(plain(sent))
        else:
            typer.echo(f"{sent.state}. Follow it: standfast watch {conversation_id} {sent.turn_id}", err=True)
        return Exit.COMPLETED

    async def work(client: StandfastClient) -> int:
        stream = client.start_turn(
            conversation_id,
            text,
            expect=expect,
            agent=agent,
            turn_id=turn_id,
            model=model,
            options=settings,
            include_raw=raw,
            when_busy=busy,
            permissions=permissions,
            limits=limits,
        )
        # Before anything can fail: whoever must retry needs both ids.
        if as_json:
            print_json({"event": "sending", "conversation_id": conversation_id, "turn_id": stream.turn_id})
        elif conversation is None:
            typer.echo(f"conversation {conversation_id}", err=True)
        return await follow(client, conversation_id, stream, view, cancel_on_interrupt=cancel_on_interrupt)

    with_runner(runner, state, tenant, as_json, send if no_wait else work)


turn.__doc__ = f"""Sends one message and shows the turn.

The text goes to the agent byte for byte: nothing is trimmed, and a leading / or - is text (put `--` before a message that begins with -).
The answer is on standard output, all else on standard error. What the agent asks is shown; `answer` answers it, `chat` asks you.
{INTERRUPT_HELP}

{EXIT_CODES_HELP}"""


def watch(
    conversation: ConversationId,
    turn_id: TurnId,
    after: Annotated[int, typer.Option("--after", min=0, help="Only events with a greater number.")] = 0,
    raw: Annotated[bool, typer.Option("--raw", help="Show each raw native frame too, as far as it is kept.")] = False,
    cancel_on_interrupt: CancelOnInterrupt = False,
    as_json: AsJson = False,
    runner: RunnerAddress = None,
    state: State = None,
    tenant: Tenant = "local",
) -> None:
    view = view_of(as_json)

    async def work(client: StandfastClient) -> int:
        stream = client.watch_turn(conversation, turn_id, after_sequence=after, include_raw=raw)
        return await follow(client, conversation, stream, view, cancel_on_interrupt=cancel_on_interrupt)

    with_runner(runner, state, tenant, as_json, work)


watch.__doc__ = f"""Replays a turn and follows it to its end.

{INTERRUPT_HELP}

{EXIT_CODES_HELP}"""


def cancel(
    conversation: ConversationId,
    turn_id: TurnId,
    as_json: AsJson = False,
    runner: RunnerAddress = None,
    state: State = None,
    tenant: Tenant = "local",
) -> None:
    """Ends a running turn: natively first, bounded. An ended one is shown as it stands; exit code 0 either way."""

    async def work(client: StandfastClient) -> int:
        found = await client.cancel_turn(conversation, turn_id)
        if as_json:
            print_json(plain(found))
        else:
            show_turn(stdout_console(), found)
        return Exit.COMPLETED

    with_runner(runner, state, tenant, as_json, work)
