"""`pending`, `answer`: what the agent asks, and the answer to it."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from standfast.runner.v1 import runner_pb2 as pb
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
from standfast_client.errors import NotFoundError
from standfast_client.exit_codes import EXIT_CODES_HELP, Exit
from standfast_client.plain import plain
from standfast_client.screen.waiting_views import show_pending
from standfast_client.sdk import StandfastClient


def pending(
    conversation: ConversationId,
    as_json: AsJson = False,
    runner: RunnerAddress = None,
    state: State = None,
    tenant: Tenant = "local",
) -> None:
    """Lists what the conversation's running turn asks and nobody has answered yet."""

    async def work(client: StandfastClient) -> int:
        for one in await client.list_pending(conversation):
            if as_json:
                print_json(plain(one))
            else:
                show_pending(stdout_console(), conversation, one)
        return Exit.COMPLETED

    with_runner(runner, state, tenant, as_json, work)


def answer(
    conversation: ConversationId,
    request_id: Annotated[str, typer.Argument(metavar="REQUEST", help="The request's id, as `pending` shows it.")],
    allow: Annotated[bool, typer.Option("--allow", help="A permission: this one call may be made.")] = False,
    deny: Annotated[bool, typer.Option("--deny", help="A permission: it may not.")] = False,
    reject: Annotated[bool, typer.Option("--reject", help="A question: there will be no answer.")] = False,
    message: Annotated[str, typer.Option("--message", help="What the agent is told with --deny or --reject.")] = "",
    values: Annotated[
        list[str] | None,
        typer.Option(
            "--value",
            metavar="TEXT",
            help="A question: the label of an option, or a text of your own; one a question, in their order. Of one question that "
            "takes several, all.",
        ),
    ] = None,
    answers_json: Annotated[
        str | None,
        typer.Option(
            "--answers-json", metavar="JSON", help='A question: all answers, e.g. \'[["Red"],["Apple","Pear"]]\'.'
        ),
    ] = None,
    as_json: AsJson = False,
    runner: RunnerAddress = None,
    state: State = None,
    tenant: Tenant = "local",
) -> None:
    ways = [allow, deny, reject, bool(values), answers_json is not None]
    if sum(ways) != 1:
        raise typer.BadParameter("give one of --allow, --deny, --reject, --value or --answers-json")
    if message and not (deny or reject):
        raise typer.BadParameter("--message goes with --deny or --reject")
    told = _answers_of(answers_json) if answers_json is not None else None

    async def work(client: StandfastClient) -> int:
        if allow or deny:
            turn_id = await client.answer_permission(conversation, request_id, allow=allow, message=message)
        elif reject:
            turn_id = await client.reject_question(conversation, request_id, message)
        else:
            answers = told if told is not None else await _spread(client, conversation, request_id, values or [])
            turn_id = await client.answer_question(conversation, request_id, answers)
        if as_json:
            print_json(
                {"event": "answered", "conversation_id": conversation, "turn_id": turn_id, "request_id": request_id}
            )
        else:
            typer.echo(f"answered, in turn {turn_id}", err=True)
        return Exit.COMPLETED

    with_runner(runner, state, tenant, as_json, work)


answer.__doc__ = f"""Answers a permission or a question of the running turn, once.

{EXIT_CODES_HELP}"""


def _answers_of(text: str) -> list[list[str]]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"--answers-json: expected JSON, found none ({error})") from error
    if not isinstance(found, list) or not all(
        isinstance(one, list) and all(isinstance(value, str) for value in one) for one in found
    ):
        raise typer.BadParameter("--answers-json: expected a list of lists of texts, one list a question")
    return found


async def _spread(client: StandfastClient, conversation: str, request_id: str, values: list[str]) -> list[list[str]]:
    """One value a question; all of them for a single question that takes several. The runner judges the rest."""
    asked: pb.PendingRequest | None = None
    for one in await client.list_pending(conversation):
        if one.request.request_id == request_id:
            asked = one
    if asked is None:
        raise NotFoundError(
            f"conversation {conversation} has no open request {request_id}; `standfast pending {conversation}` lists them."
        )
    questions = asked.request.questions
    if len(questions) == 1 and questions[0].multiple:
        return [values]
    return [[value] for value in values]
