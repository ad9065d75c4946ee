"""Performs one cell: brings a turn to the step, kills there, and gathers what came of it."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from standfast_client.errors import ClientError
from standfast_client.sdk import Expect, new_id
from standfast_lab.fleet.pauses import pause_name
from standfast_lab.oracle import Outcome as Said
from standfast_lab.oracle import Turn, judge_session
from tests.house.leftovers import marked_processes
from tests.kill_matrix.table import INTERRUPTED, NOT_SENT, REFUSED_BY_VERDICT, SETTLED, Cell
from tests.scenarios.stage import Stage, Told

_RESOLVE_TIMEOUT_S = 60.0
_numbers = itertools.count(1)

# Where the turn is held: a span of a process, or a gate of the stub.
_SPANS = {
    "prepare": ("manager", "prepare", "end"),
    "admitted": ("manager", "admit", "end"),
    "quiesce": ("host-agent", "quiesce", "start"),
    "settle": ("manager", "settle", "start"),
}
_GATES = {"forwarded": "init", "mid-stream": "mid-stream", "ended": "result"}


@dataclass
class Cellmate:
    """What came of one cell."""

    ending: str
    killed: Told
    conversation: str
    next: Told
    said: list[Turn]
    sent_before_next: int
    sent_in_all: int


class Holder:
    """The place at which a cell's turn is held."""

    def __init__(self, stage: Stage, pauses: Path, cell: Cell) -> None:
        if cell.step == "activate":
            # A new process is held in its handshake; a kept one has none, and its host agent is held at the start.
            gate, span = ("initialize", None) if cell.turn == 1 else (None, ("host-agent", "activate", "start"))
        else:
            gate, span = _GATES.get(cell.step), _SPANS.get(cell.step)
        if span is not None:
            self.hold = pauses / f"{pause_name(*span)}.hold"
            self._is_reached: Callable[[], bool] = self.hold.with_suffix(".reached").exists
        else:
            assert gate is not None
            folder = stage.tools.gates
            self.hold = folder / f"{gate}.hold"
            self._is_reached = lambda: any(folder.glob(f"{gate}.reached-*"))
        self._marks = [pauses.glob("*.reached"), stage.tools.gates.glob("*.reached-*")]

    def close(self) -> None:
        for marks in self._marks:
            for mark in marks:
                mark.unlink()
        self.hold.touch()

    async def reached(self, stage: Stage, turn: asyncio.Task[Told]) -> None:
        await stage.until(f"the turn is at {self.hold.stem}", lambda: self._is_reached() or turn.done(), 30.0)
        assert self._is_reached(), f"the turn ended before it came to {self.hold.stem}: {turn.result()}"

    def open(self) -> None:
        self.hold.unlink(missing_ok=True)


async def perform(stage: Stage, pauses: Path, cell: Cell) -> Cellmate:
    """The whole cell, to its next turn's end. Raises nothing for a turn that fails; the test judges."""
    number = next(_numbers)
    conversation = f"k{number}"
    said: list[Turn] = []
    if cell.turn == 3:
        for text in ("remember: the colour is green", "hello"):
            told = await stage.ask(conversation, text, expect=Expect.CONTINUE if said else Expect.NEW)
            assert told.outcome == "COMPLETED", told.turn
            said.append(Turn(text, (told.text,)))
    text = f"note {number}"
    turn_id = new_id("t")
    holder = Holder(stage, pauses, cell)
    holder.close()
    expect = Expect.CONTINUE if cell.turn == 3 else Expect.NEW
    running = asyncio.create_task(_ask(stage, conversation, text, turn_id, expect))
    try:
        await holder.reached(stage, running)
        if cell.step == "quiesce":
            await stage.until("the reply is on disk", lambda: _is_on_disk(stage, conversation, text), 10.0)
        await _kill(stage, cell, conversation)
        if cell.step == "admitted" and cell.process in ("supervisor", "cli"):
            # Else the message might be recorded as forwarded to somebody whose end nobody has noticed yet.
            await stage.until(
                "the host agent has noticed", lambda: _newest_activation(stage) == "NEVER_FORWARDED", 10.0
            )
    finally:
        holder.open()
    killed = await running
    killed = await _resolved(stage, conversation, turn_id, killed)
    ending = _ending(killed)
    sent = stage.prompts().count(text)
    if ending == SETTLED:
        outcome = Said.COMPLETED if killed.outcome == "COMPLETED" else Said.NOT_ENDED
        said.append(Turn(text, (killed.text,) if killed.text else (), outcome))
    elif ending != NOT_SENT:
        said.append(Turn(text, (), Said.NOT_ENDED))
    following = await _next(stage, conversation, cell)
    return Cellmate(ending, killed, conversation, following, said, sent, stage.prompts().count(text))


async def _ask(stage: Stage, conversation: str, text: str, turn_id: str, expect: Expect) -> Told:
    try:
        return await stage.ask(conversation, text, expect=expect, turn_id=turn_id)
    except ClientError as error:  # retryable: nothing was sent, or nobody can say yet
        return Told(await stage.recorded(conversation, turn_id), [], error)


async def _resolved(stage: Stage, conversation: str, turn_id: str, told: Told) -> Told:
    """The turn once it is over on the record; an empty one where nothing is recorded."""
    deadline = time.monotonic() + _RESOLVE_TIMEOUT_S
    while time.monotonic() < deadline:
        with suppress(ClientError):
            turn = await stage.recorded(conversation, turn_id)
            if turn.state in ("", "SETTLED", "ENDED"):
                return Told(turn, told.events, told.refusal)
        await asyncio.sleep(0.05)
    raise AssertionError(f"the killed turn is not over within {_RESOLVE_TIMEOUT_S} s: {told.turn}")


def _ending(told: Told) -> str:
    if told.turn.state == "" or told.outcome in ("NOT_SENT", "REFUSED"):
        return NOT_SENT
    if told.turn.locator_saved:
        return SETTLED
    return REFUSED_BY_VERDICT if told.turn.state == "SETTLED" else INTERRUPTED


async def _next(stage: Stage, conversation: str, cell: Cell) -> Told:
    """The next turn, asked again while somebody is still coming back."""
    deadline = time.monotonic() + _RESOLVE_TIMEOUT_S
    turn_id = new_id("t")
    # A first turn of which nothing is recorded has made no conversation.
    expect = Expect.CONTINUE
    while True:
        try:
            told = await stage.ask(conversation, "what is the colour?", expect=expect, turn_id=turn_id)
        except ClientError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)
            continue
        if told.reason == "LEGACY_CONVERSATION" and cell.turn == 1 and expect is Expect.CONTINUE:
            expect, turn_id = Expect.NEW, new_id("t")
        elif told.reason in ("CONVERSATION_BUSY", "TURN_ELSEWHERE") and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        else:
            return told


def history_is_complete(stage: Stage, cellmate: Cellmate) -> bool:
    """By the provider's log. Of an interrupted turn the CLI may have kept the user's text, or lost it with its process."""
    current = Turn("what is the colour?", (cellmate.next.text,))
    session = cellmate.next.session
    histories = [cellmate.said]
    if cellmate.said and cellmate.said[-1].outcome is Said.NOT_ENDED:
        histories.append(cellmate.said[:-1])
    rows = stage.lab.log.rows()
    return any(judge_session(rows, session, [*history, current]).is_complete for history in histories)


def _is_on_disk(stage: Stage, conversation: str, text: str) -> bool:
    """The text and the reply that repeats it."""
    folder = sandbox_of(stage, conversation)
    transcripts = folder.glob("members/*/home/.claude/projects/*/*.jsonl") if folder is not None else ()
    return any(path.read_text().count(f'{text}"') >= 2 for path in transcripts)


def _newest_activation(stage: Stage) -> str:
    return str(stage.rows("host", "select state from activations order by rowid desc limit 1")[0]["state"])


# --- who is killed ----------------------------------------------------------------------------------------------------


def sandbox_of(stage: Stage, conversation: str) -> Path | None:
    """The retained folder of a conversation, if there is one."""
    for folder in stage.sandboxes.iterdir() if stage.sandboxes.exists() else ():
        record = folder / "container.json"
        with suppress(OSError):
            if f"local/{conversation}" in json.loads(record.read_text())["labels"].values() or any(
                conversation == value or value.split(",")[0] == conversation
                for value in json.loads(record.read_text())["labels"].values()
            ):
                return folder
    return None


def processes_of(folder: Path) -> dict[int, str]:
    """Everything that lives in a retained folder."""
    return marked_processes([os.fsencode(f"{folder}/"), os.fsencode(f"{folder}\0")])


def supervisor_of(folder: Path) -> int:
    return int(json.loads((folder / "run.json").read_text())["pid"])


def clis_of(stage: Stage, folder: Path) -> list[int]:
    return [pid for pid, command in processes_of(folder).items() if str(stage.tools.executable) in command]


async def _kill(stage: Stage, cell: Cell, conversation: str) -> None:
    members = {"runner": stage.fleet.runner, "manager": stage.fleet.manager, "host-agent": stage.fleet.host_agent}
    if cell.process in members:
        member = members[cell.process]
        await member.kill()
        await member.start()  # not waited for: what depends on it sees it gone and coming back
        return
    folder = sandbox_of(stage, conversation)
    assert folder is not None, f"{conversation} has no sandbox"
    if cell.process == "nobody":
        assert clis_of(stage, folder) == []
        return
    pids = [supervisor_of(folder)] if cell.process == "supervisor" else clis_of(stage, folder)
    assert len(pids) == 1, f"expected one {cell.process} of {conversation}, found {pids}"
    os.kill(pids[0], signal.SIGKILL)
