"""Performs one cell: brings a turn to the step, kills there, and gathers what came of it."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass

from standfast_client.errors import ClientError
from standfast_client.sdk import Expect, new_id
from standfast_lab.oracle import Outcome as Said
from standfast_lab.oracle import Turn, judge_session
from tests.kill_matrix.ground import Ground
from tests.kill_matrix.holds import Hold
from tests.kill_matrix.table import BEFORE_FORWARDED, INTERRUPTED, NOT_SENT, REFUSED_BY_VERDICT, SETTLED, Cell
from tests.scenarios.stage import Stage, Told

# Deadlines for states, with room for a real CLI that starts on busy cores.
_RESOLVE_TIMEOUT_S = 60.0
_REACHED_TIMEOUT_S = 90.0
_NOTICED_TIMEOUT_S = 30.0
_TURN_TIMEOUT_S = 150.0
_numbers = itertools.count(1)


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


async def perform(ground: Ground, cell: Cell) -> Cellmate:
    """The whole cell, to its next turn's end. Raises nothing for a turn that fails; the test judges."""
    stage, number = ground.stage, next(_numbers)
    conversation = f"k{number}"
    said: list[Turn] = []
    if cell.turn == 3:
        for text in ("remember: the colour is green", "hello"):
            told = await stage.ask(conversation, text, expect=Expect.CONTINUE if said else Expect.NEW)
            assert told.outcome == "COMPLETED", told.turn
            said.append(Turn(text, (told.text,)))
    text = ground.message(cell, number)
    turn_id = new_id("t")
    hold = ground.hold(cell)
    hold.close()
    expect = Expect.CONTINUE if cell.turn == 3 else Expect.NEW
    running = asyncio.create_task(_ask(stage, conversation, text, turn_id, expect))
    try:
        await _reached(hold, stage, running)
        if cell.step == "quiesce":
            await stage.until(
                "the reply is on disk", lambda: _is_on_disk(ground, conversation, text), _NOTICED_TIMEOUT_S
            )
        await _kill(ground, cell, conversation)
        if cell.step == "admitted" and cell.process in ("supervisor", "cli", "engine"):
            # Else the message might be recorded as forwarded to somebody whose end nobody has noticed yet.
            await stage.until(
                "the host agent has noticed", lambda: _newest_activation(stage) == "NEVER_FORWARDED", _NOTICED_TIMEOUT_S
            )
    finally:
        hold.open()
    killed = await running
    killed = await _resolved(stage, conversation, turn_id, killed)
    ending = _ending(killed)
    sent = stage.prompts().count(text)
    if ending == SETTLED:
        outcome = Said.COMPLETED if killed.outcome == "COMPLETED" else Said.NOT_ENDED
        said.append(Turn(text, (killed.text,) if killed.text else (), outcome))
    elif ending != NOT_SENT:
        said.append(Turn(text, (), Said.NOT_ENDED))
    if cell.process in ("supervisor", "engine") and cell.step not in BEFORE_FORWARDED:
        await stage.until(
            "the container is UNCLEAN", lambda: _group_state(stage, conversation) == "UNCLEAN", _NOTICED_TIMEOUT_S
        )
    following = await _next(stage, conversation, cell)
    return Cellmate(ending, killed, conversation, following, said, sent, stage.prompts().count(text))


async def _reached(hold: Hold, stage: Stage, turn: asyncio.Task[Told]) -> None:
    await stage.until(f"the turn is at {hold.name}", lambda: hold.is_reached() or turn.done(), _REACHED_TIMEOUT_S)
    assert hold.is_reached(), f"the turn ended before it came to {hold.name}: {turn.result()}"


async def _ask(stage: Stage, conversation: str, text: str, turn_id: str, expect: Expect) -> Told:
    try:
        return await stage.ask(conversation, text, expect=expect, turn_id=turn_id, timeout_s=_TURN_TIMEOUT_S)
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
            told = await stage.ask(
                conversation, "what is the colour?", expect=expect, turn_id=turn_id, timeout_s=_TURN_TIMEOUT_S
            )
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


def _is_on_disk(ground: Ground, conversation: str, text: str) -> bool:
    sandbox = ground.sandbox_of(conversation)
    return sandbox is not None and ground.is_on_disk(sandbox, text)


def _newest_activation(stage: Stage) -> str:
    return str(stage.rows("host", "select state from activations order by rowid desc limit 1")[0]["state"])


def _group_state(stage: Stage, conversation: str) -> str:
    rows = stage.rows("manager", "select state from groups where conversation_id = ?", conversation)
    return str(rows[0]["state"]) if rows else ""


async def _kill(ground: Ground, cell: Cell, conversation: str) -> None:
    fleet = ground.stage.fleet
    members = {"runner": fleet.runner, "manager": fleet.manager, "host-agent": fleet.host_agent}
    if cell.process in members:
        member = members[cell.process]
        await member.kill()
        await member.start()  # not waited for: what depends on it sees it gone and coming back
        return
    sandbox = ground.sandbox_of(conversation)
    assert sandbox is not None, f"{conversation} has no sandbox"
    if cell.process == "engine":
        await ground.kill_engine(sandbox)
        return
    if cell.process == "nobody":
        assert ground.clis_of(sandbox) == []
        return
    pids = [ground.supervisor_of(sandbox)] if cell.process == "supervisor" else ground.clis_of(sandbox)
    assert len(pids) == 1, f"expected one {cell.process} of {conversation}, found {pids}"
    os.kill(pids[0], signal.SIGKILL)
