"""Shows conversations and turns as tables for people."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from standfast.runner.v1 import runner_pb2 as pb
from standfast.types.v1 import types_pb2 as types
from standfast_client.plain import word
from standfast_client.screen.control_characters import shown


def conversations_table(conversations: list[pb.Conversation]) -> Table:
    """One row a conversation."""
    table = Table(box=None)
    # An id that is cut short cannot be copied into the next command.
    table.add_column(
        "conversation",
        no_wrap=True,
        overflow="ignore",
        min_width=max((len(c.conversation.conversation_id) for c in conversations), default=0),
    )
    for name in ("agent", "sandbox", "settled", "running", "host"):
        table.add_column(name)
    for one in conversations:
        table.add_row(
            _text(one.conversation.conversation_id),
            _text(one.agent),
            _text(one.sandbox_state),
            str(one.settled_turns),
            _text(one.running_turn),
            _text(one.host_id),
        )
    return table


def show_conversation(console: Console, one: pb.Conversation) -> None:
    """A conversation's own record."""
    console.print(f"[bold]{_text(one.conversation.conversation_id)}[/bold]  {_text(one.agent)}")
    rows = {
        "sandbox": f"{_text(one.sandbox_state)}, container {_text(one.container_id)}, generation {one.container_generation}",
        "group, host": f"{_text(one.group_id)}, {_text(one.host_id)}",
        "settled turns": f"{one.settled_turns}, newest {_text(one.last_settled_turn)}",
        "running turn": _text(one.running_turn),
        "locator, manager": _locator(one.manager_locator if one.HasField("manager_locator") else None),
        "locator, runner": _locator(one.runner_locator if one.HasField("runner_locator") else None),
    }
    _rows(console, rows)


def show_turn(console: Console, turn: pb.Turn) -> None:
    """A turn: how its context was kept, on which evidence, and what was judged."""
    outcome = word(turn, "outcome") or turn.state
    console.print(f"\n[bold]{_text(turn.turn_id)}[/bold]  {word(turn, 'context_state') or '-'}  {outcome}")
    generations = turn.generations
    rows = {
        "context": f"{word(turn, 'context_state') or '-'}: {_text(turn.context_reason)}",
        "locator": _locator(turn.locator if turn.HasField("locator") else None)
        + (" (saved)" if turn.locator_saved else " (not saved)"),
        "container": f"{_text(turn.container_id)}, generation {generations.container}",
        "process": f"generation {generations.process}; {word(turn, 'process_disposition') or '-'}: {_text(turn.process_reason)}",
        "end evidence": f"{_text(turn.end_reason)}, {_text(turn.end_evidence_digest)}",
        "verdicts": f"runner {word(turn, 'runner_verdict') or '-'}, manager {word(turn, 'manager_verdict') or '-'}",
        "store": word(turn, "store_verdict") or "-",
    }
    if turn.HasField("failure") and turn.failure.reason:
        rows["failure"] = f"{_text(turn.failure.reason)}: {_text(turn.failure.message)}"
    if turn.output_unconfirmed:
        rows["output"] = "UNCONFIRMED"
    _rows(console, rows)
    for finding in turn.findings:
        console.print(
            f"  {'finding':<18} {_text(finding.code)}: expected {_text(finding.expected)}, observed {_text(finding.observed)}",
            soft_wrap=True,
        )


def agents_table(agents: list[pb.Agent]) -> Table:
    """One row a capability of an agent: whether it can, and why not."""
    table = Table("agent", "version", "capability", "can", "why", box=None)
    for one in agents:
        name, version = one.name, one.version
        for capability, value in sorted(one.capabilities.items()):
            can, _, why = value.partition(": ")
            table.add_row(
                escape(shown(name)), escape(shown(version)), _text(capability), _text(can), escape(shown(why))
            )
            name, version = "", ""
        if name:
            table.add_row(_text(name), _text(version), "-", "-", "")
    return table


def _rows(console: Console, rows: dict[str, str]) -> None:
    for name, value in rows.items():
        console.print(f"  {name:<18} {value}", soft_wrap=True)


def _locator(locator: types.NativeLocator | None) -> str:
    if locator is None or not locator.native_session_id:
        return "-"
    return _text(f"{locator.agent} {locator.native_session_id} in {locator.cwd}")


def _text(text: str) -> str:
    return escape(shown(text)) or "-"
