"""Shows what waits: native requests for an answer, messages for their turn."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from standfast.runner.v1 import runner_pb2 as pb
from standfast_client.plain import word
from standfast_client.screen.control_characters import shown

MESSAGE_SHOWN_CHARS = 120


def show_pending(console: Console, conversation_id: str, one: pb.PendingRequest) -> None:
    """A request, and the command that answers it."""
    request = one.request
    who = "sub-agent " if one.parent_id else ""
    until = request.expires_at.ToDatetime().strftime("%H:%M:%S")
    console.print(
        f"[bold]{_safe(request.request_id)}[/bold]  {who}{_safe(request.kind)} {_safe(request.tool)}  "
        f"[dim]turn {_safe(one.turn_id)}, expires {until} UTC[/dim]",
        soft_wrap=True,
    )
    for question in request.questions:
        several = " (several)" if question.multiple else ""
        console.print(f"  {_safe(question.text)}{several}", soft_wrap=True)
        for option in question.options:
            console.print(f"    - {_safe(option.label)}  [dim]{_safe(option.description)}[/dim]", soft_wrap=True)
    if not request.questions:
        console.print(f"  {_safe(request.payload_json)}", soft_wrap=True)
    console.print(f"  {answer_hint(conversation_id, request)}", soft_wrap=True)


def answer_hint(conversation_id: str, request: pb.NativeRequest) -> str:
    """How it is answered from the command line."""
    how = "--allow | --deny" if request.kind == "PERMISSION" else "--value TEXT | --reject"
    return f"standfast answer {_safe(conversation_id)} {_safe(request.request_id)} {how}"


def show_queue(console: Console, conversation_id: str, queue: pb.Queue) -> None:
    """The messages that wait, in their order."""
    if queue.HasField("held"):
        console.print(f"[yellow]{held_text(queue.held)}[/yellow]", soft_wrap=True)
        console.print(f"  go on: standfast queue release {_safe(conversation_id)}", soft_wrap=True)
    if queue.running_turn:
        console.print(f"running: {_safe(queue.running_turn)}", soft_wrap=True)
    if not queue.messages:
        console.print("nothing waits")
    for number, message in enumerate(queue.messages, 1):
        line = " ".join(message.message.split())
        cut = line if len(line) <= MESSAGE_SHOWN_CHARS else line[:MESSAGE_SHOWN_CHARS] + "…"
        console.print(f"{number}  [bold]{_safe(message.turn_id)}[/bold]  {_safe(cut)}", soft_wrap=True)


def held_text(held: pb.TurnHeld) -> str:
    """Why a queue is held."""
    how = word(held, "outcome") or "could not be begun"
    reason = f" ({_safe(held.reason)})" if held.reason else ""
    return f"held: turn {_safe(held.after_turn)} was not a normal end: {how}{reason}"


def _safe(text: str) -> str:
    return escape(shown(text))
