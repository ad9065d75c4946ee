"""Shows one turn as it runs: for people (text on stdout, all else on stderr), or as one JSON object a line.

For people: on a terminal the text appears as it comes and a whole block that differs from its pieces is shown again; into a file or
pipe only whole blocks go, byte for byte, since a retried model call leaves pieces that are not part of the answer.
"""

from __future__ import annotations

import json
import sys
from typing import Protocol, TextIO

from rich.console import Console
from rich.markup import escape

from standfast.runner.v1 import runner_pb2 as pb
from standfast_client.errors import ClientError
from standfast_client.plain import plain, word
from standfast_client.screen.control_characters import shown
from standfast_client.screen.waiting_views import held_text

INPUT_SHOWN_CHARS = 200


class TurnView(Protocol):
    """What is told of a turn."""

    def event(self, event: pb.TurnEvent) -> None:
        """An event came."""

    def gap(self) -> None:
        """Events are missing from the replay."""

    def error(self, error: ClientError) -> None:
        """The turn was refused, or the view broke."""

    def left(self, conversation_id: str, turn_id: str) -> None:
        """The view was left while the turn runs on."""


def event_line(event: pb.TurnEvent) -> dict[str, object]:
    """An event as one flat object: its kind under `event`, then number, time and parent, then its fields."""
    kind = event.WhichOneof("body")
    body = plain(getattr(event, kind)) if kind is not None else {}
    head = plain(event)
    return {
        "event": kind,
        "sequence": event.sequence,
        "time": head["time"],
        "parent_id": event.parent_id or None,
        **body,
    }


def error_line(error: ClientError) -> dict[str, object]:
    """A failed call as one object."""
    return {
        "event": "error",
        "reason": error.reason,
        "code": error.code.name,
        "message": error.message,
        "metadata": dict(error.metadata),
        "is_retryable": error.is_retryable,
    }


class JsonView:
    """One JSON object a line."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out if out is not None else sys.stdout

    def event(self, event: pb.TurnEvent) -> None:
        self._line(event_line(event))

    def gap(self) -> None:
        self._line({"event": "gap"})

    def error(self, error: ClientError) -> None:
        self._line(error_line(error))

    def left(self, conversation_id: str, turn_id: str) -> None:
        self._line({"event": "left", "conversation_id": conversation_id, "turn_id": turn_id})

    def _line(self, value: dict[str, object]) -> None:
        self._out.write(json.dumps(value, ensure_ascii=False) + "\n")
        self._out.flush()


class TextView:
    """For people."""

    def __init__(self, out: TextIO | None = None, notes: Console | None = None) -> None:
        self._out = out if out is not None else sys.stdout
        self._notes = notes if notes is not None else Console(stderr=True, highlight=False)
        self._is_live = self._out.isatty()
        self._pieces = ""
        self._is_line_open = False

    def event(self, event: pb.TurnEvent) -> None:
        """Shows an event; what belongs to a sub-agent is a note."""
        if event.parent_id:
            self._of_sub_agent(event)
            return
        match event.WhichOneof("body"):
            case "context":
                self._context(event.context)
            case "text_delta":
                self._delta(event.text_delta.text)
            case "assistant_message":
                self._block(event.assistant_message)
            case "tool_call":
                call = event.tool_call
                self._note(f"[cyan]→ {_safe(call.tool)}[/cyan] [dim]{_safe(_short(call.input_json))}[/dim]")
            case "tool_result":
                result = event.tool_result
                mark = "[red]✗[/red]" if result.is_error else "[cyan]←[/cyan]"
                self._note(f"{mark} [dim]{_safe(_short(result.text))}[/dim]")
            case "provider_retry":
                self._note(f"[yellow]{_retry(event.provider_retry)}[/yellow]")
            case "warning":
                warning = event.warning
                self._note(f"[yellow]{_safe(warning.code)}: {_safe(warning.message)}[/yellow]")
            case "native_request":
                self._request(event.native_request, "the agent")
            case "native_request_closed":
                self._request_closed(event.native_request_closed)
            case "queued":
                behind = f" behind {event.queued.ahead} others" if event.queued.ahead else ""
                self._note(f"[dim]queued{behind}; it goes when turn {_safe(event.queued.running_turn)} is over[/dim]")
            case "held":
                self._note(f"[yellow]{held_text(event.held)}[/yellow]")
                self._note("  go on with: standfast queue release CONVERSATION")
            case "dequeued":
                self._note("[dim]its turn has come[/dim]")
            case "raw_frame":
                self._note(f"[dim]raw {_safe(_short(event.raw_frame.frame.decode('utf-8', 'replace')))}[/dim]")
            case "ended":
                self._ended(event.ended)
            case "settled":
                self._settled(event.settled.turn)
            case _:
                pass

    def gap(self) -> None:
        self._note("[yellow]earlier events of this turn are no longer kept[/yellow]")

    def error(self, error: ClientError) -> None:
        self._note(f"[red]{_safe(error.reason)}[/red] {_safe(error.message)}")
        for name in ("cause", "cure", "readable", "address", "expected", "found", "observed"):
            if value := error.metadata.get(name):
                self._note(f"  {name}: {_safe(value)}")

    def left(self, conversation_id: str, turn_id: str) -> None:
        self._note(
            f"The turn runs on. Watch it: standfast watch {_safe(conversation_id)} {_safe(turn_id)}"
            f" · end it: standfast cancel {_safe(conversation_id)} {_safe(turn_id)}"
        )

    def _context(self, context: pb.ContextDecided) -> None:
        state = word(context, "state")
        why = f" [dim]{_safe(context.reason)}[/dim]" if context.reason else ""
        again = f" [dim](after the interrupted turn {_safe(context.interrupted_turn_id)})[/dim]"
        self._note(f"[bold]{state}[/bold]{why}{again if context.interrupted_turn_id else ''}")

    def _delta(self, text: str) -> None:
        if self._is_live:
            self._write(shown(text))
            self._pieces += text

    def _block(self, message: pb.AssistantMessage) -> None:
        pieces, self._pieces = self._pieces, ""
        if not self._is_live:
            self._write(message.text)
        elif pieces != message.text:
            if pieces:
                self._note("[yellow]the text above was given up; this is the whole one:[/yellow]")
            self._write(shown(message.text))
        if message.aborted:
            self._note("[yellow]cut by an interrupt[/yellow]")
        self._end_line()

    def _ended(self, ended: pb.TurnEnded) -> None:
        self._end_line()
        if ended.HasField("failure"):
            self._note(f"[red]{_safe(ended.failure.reason)}[/red] {_safe(ended.failure.message)}")

    def _settled(self, turn: pb.Turn) -> None:
        self._end_line()
        if turn.output_unconfirmed:
            self._note("[red]UNCONFIRMED[/red]: the text above is not confirmed; nothing of it was saved")
        outcome = word(turn, "outcome") or "?"
        colour = "green" if outcome == "COMPLETED" else "red"
        verdicts = f"runner {word(turn, 'runner_verdict') or '-'}, manager {word(turn, 'manager_verdict') or '-'}"
        kept = word(turn, "process_disposition") or "-"
        self._note(
            f"[{colour}]{outcome}[/{colour}] [dim]{verdicts} · process {kept} · turn {_safe(turn.turn_id)}[/dim]"
        )
        if turn.HasField("failure") and turn.failure.reason:
            self._note(f"  [red]{_safe(turn.failure.reason)}[/red] {_safe(turn.failure.message)}")

    def _request(self, request: pb.NativeRequest, who: str) -> None:
        what = f"to use {_safe(request.tool)}" if request.kind == "PERMISSION" else _safe(request.kind.lower())
        self._note(f"[yellow]{who} asks {what}[/yellow] [dim]request {_safe(request.request_id)}[/dim]")

    def _request_closed(self, closed: pb.NativeRequestClosed) -> None:
        end, answer = word(closed, "end") or "?", f": {closed.answer}" if closed.answer else ""
        self._note(f"[dim]request {_safe(closed.request_id)}: {end}{answer}[/dim]")

    def _of_sub_agent(self, event: pb.TurnEvent) -> None:
        match event.WhichOneof("body"):
            case "native_request":
                self._request(event.native_request, "a sub-agent")
            case "assistant_message":
                self._note(f"  [dim]sub-agent: {_safe(_short(event.assistant_message.text))}[/dim]")
            case "tool_call":
                self._note(f"  [dim]sub-agent → {_safe(event.tool_call.tool)}[/dim]")
            case _:
                pass

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
        if text:
            self._is_line_open = not text.endswith("\n")

    def _end_line(self) -> None:
        if self._is_line_open:
            self._write("\n")

    def _note(self, markup: str) -> None:
        # On a terminal both streams meet: a note never stands in the middle of a line of text.
        if self._is_live:
            self._end_line()
        self._notes.print(markup, soft_wrap=True)


def _retry(retry: pb.ProviderRetry) -> str:
    status = f"status {retry.status}" if retry.HasField("status") else "no connection"
    most = f" of {retry.attempts_max}" if retry.HasField("attempts_max") else ""
    wait = f", waits {retry.delay_ms} ms" if retry.HasField("delay_ms") else ""
    return f"the agent calls its model again (attempt {retry.attempt}{most} failed: {status}{wait})"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= INPUT_SHOWN_CHARS else line[:INPUT_SHOWN_CHARS] + "…"


def _safe(text: str) -> str:
    return escape(shown(text))
