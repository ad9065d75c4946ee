"""Asks the person at the terminal what the agent asks: one request after the other, while the turn goes on.

A request that is closed meanwhile (expired, answered elsewhere, its turn cancelled) is taken off the screen. Nothing that was not
typed is ever answered: an empty line asks again, and leaving the chat answers nothing.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape

from standfast.runner.v1 import runner_pb2 as pb
from standfast_client.errors import ClientError
from standfast_client.screen.control_characters import shown
from standfast_client.sdk import StandfastClient

_INPUT_SHOWN_CHARS = 600


@dataclass(frozen=True, slots=True)
class Allowed:
    """The call may be made."""


@dataclass(frozen=True, slots=True)
class Denied:
    """It may not; or the question gets no answer."""

    message: str


Typed = Allowed | Denied | list[list[str]]


def read_permission(line: str) -> Allowed | Denied | None:
    """What a typed line says to a permission; None for nothing that could be meant."""
    word, _, rest = line.strip().partition(" ")
    if word.lower() in ("y", "yes", "allow") and not rest:
        return Allowed()
    if word.lower() in ("n", "no", "deny"):
        return Denied(rest.strip())
    return None


def read_answer(line: str, question: pb.Question) -> list[str] | Denied | None:
    """What a typed line says to a question: numbers of options, or a text of one's own where that is allowed."""
    line = line.strip()
    if not line:
        return None
    if line == "-":
        return Denied("")
    pieces = [piece.strip() for piece in line.split(",")] if question.multiple else [line]
    options = question.options
    if all(piece.isascii() and piece.isdigit() and 1 <= int(piece) <= len(options) for piece in pieces):
        return list(dict.fromkeys(options[int(piece) - 1].label for piece in pieces))
    labels = {option.label for option in options}
    if line in labels or question.free_text:
        return [line]
    return pieces if all(piece in labels for piece in pieces) else None


class Prompting:
    """The requests of one turn, at one terminal."""

    def __init__(self, client: StandfastClient, conversation_id: str, notes: Console) -> None:
        self._client = client
        self._conversation_id = conversation_id
        self._notes = notes
        self._waiting: asyncio.Queue[pb.TurnEvent] = asyncio.Queue()
        self._closed: set[str] = set()
        self._asked: str | None = None
        self._asking: asyncio.Task[None] | None = None

    def event(self, event: pb.TurnEvent) -> None:
        """Takes note of what is asked, and of what is no longer."""
        match event.WhichOneof("body"):
            case "native_request" if event.native_request.HasField("expires_at"):
                self._waiting.put_nowait(event)
            case "native_request_closed":
                request_id = event.native_request_closed.request_id
                self._closed.add(request_id)
                if request_id == self._asked and self._asking is not None:
                    self._asking.cancel()

    async def run(self) -> None:
        """Asks until it is cancelled."""
        while True:
            event = await self._waiting.get()
            request_id = event.native_request.request_id
            if request_id in self._closed:
                continue
            self._asked = request_id
            self._asking = asyncio.create_task(self._ask(event))
            try:
                await asyncio.wait({self._asking})
            finally:
                self._asking.cancel()
                self._asked = None

    async def _ask(self, event: pb.TurnEvent) -> None:
        request = event.native_request
        async with _typed_lines() as lines:
            while True:
                typed = await (
                    self._permission(event, lines) if request.kind == "PERMISSION" else self._question(event, lines)
                )
                try:
                    await self._send(request, typed)
                    return
                except ClientError as error:
                    self._note(f"[red]{_safe(error.reason)}[/red] {_safe(error.message)}")
                    if error.reason != "ANSWER_INVALID":
                        return

    async def _send(self, request: pb.NativeRequest, typed: Typed) -> None:
        match typed:
            case Allowed():
                await self._client.answer_permission(self._conversation_id, request.request_id, allow=True)
            case Denied(message) if request.kind == "PERMISSION":
                await self._client.answer_permission(
                    self._conversation_id, request.request_id, allow=False, message=message
                )
            case Denied(message):
                await self._client.reject_question(self._conversation_id, request.request_id, message)
            case answers:
                await self._client.answer_question(self._conversation_id, request.request_id, answers)

    async def _permission(self, event: pb.TurnEvent, lines: asyncio.Queue[str]) -> Typed:
        request = event.native_request
        who = "a sub-agent" if event.parent_id else "the agent"
        self._note(f"[bold yellow]{who} wants to use {_safe(request.tool)}[/bold yellow]")
        self._note(f"  [dim]{_safe(request.payload_json[:_INPUT_SHOWN_CHARS])}[/dim]")
        while True:
            self._note("[yellow]allow this call? y, or n and why>[/yellow]")
            answer = read_permission(await lines.get())
            if answer is not None:
                return answer

    async def _question(self, event: pb.TurnEvent, lines: asyncio.Queue[str]) -> Typed:
        answers: list[list[str]] = []
        for question in event.native_request.questions:
            self._note(f"[bold yellow]{_safe(question.text)}[/bold yellow]")
            for number, option in enumerate(question.options, 1):
                self._note(f"  {number}  {_safe(option.label)}  [dim]{_safe(option.description)}[/dim]")
            while True:
                several = ", several with commas" if question.multiple else ""
                own = ", or a text of your own" if question.free_text else ""
                self._note(f"[yellow]answer with a number{several}{own}; - gives no answer>[/yellow]")
                answer = read_answer(await lines.get(), question)
                if isinstance(answer, Denied):
                    return answer
                if answer is not None:
                    answers.append(answer)
                    break
        return answers

    def _note(self, markup: str) -> None:
        self._notes.print(markup, soft_wrap=True)


@asynccontextmanager
async def _typed_lines() -> AsyncIterator[asyncio.Queue[str]]:
    """Whole lines that are typed on the terminal while the block runs. Only for a terminal: it keeps lines to itself until their end."""
    loop, lines = asyncio.get_running_loop(), asyncio.Queue[str]()
    stdin = sys.stdin.fileno()

    def read() -> None:
        typed = os.read(stdin, 65536).decode("utf-8", "replace")
        if not typed:  # Ctrl-D on an empty line: no answer, and nothing more to read
            loop.remove_reader(stdin)
        for line in typed.splitlines():
            lines.put_nowait(line)

    loop.add_reader(stdin, read)
    try:
        yield lines
    finally:
        loop.remove_reader(stdin)


def _safe(text: str) -> str:
    return escape(shown(text))
