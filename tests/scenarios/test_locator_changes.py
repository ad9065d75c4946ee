"""Another session answers: the runner refuses it alone, and the manager refuses it alone, each with the other's check switched off."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path

import pytest
import pytest_asyncio

from standfast.types.v1 import types_pb2 as types
from standfast_client.errors import LocatorError
from standfast_lab.fleet.switches import Switches
from tests.scenarios.stage import Stage, Told
from tests.shim_cli.tool_folder import alter
from tests.stub_cli.tool_folder import ToolFolder

pytestmark = [pytest.mark.engine("local"), pytest.mark.asyncio(loop_scope="module")]

ALONE = {
    "both": Switches(),
    "runner": Switches(manager_checks_identity=False),
    "manager": Switches(runner_checks_identity=False),
}
CHANGED = ("init", "first-event", "result", "every-event", "reset", "no-init")


@pytest.fixture(scope="module", params=sorted(ALONE))
def checking(request: pytest.FixtureRequest) -> str:
    """Whose check is on."""
    return str(request.param)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shimmed(checking: str, short_folder: Callable[[], Path], shim_tools: ToolFolder) -> AsyncIterator[Stage]:
    alter(shim_tools, None)
    async with Stage(short_folder(), shim_tools, switches=ALONE[checking]) as made:
        yield made
    alter(shim_tools, None)


def saved(stage: Stage, conversation: str) -> list[object]:
    """What both sides have saved of a conversation's locator."""
    manager = stage.rows("manager", "select locator, turn_id from locators where conversation_id = ?", conversation)
    runner = stage.rows(
        "runner",
        "select saved_session_id, saved_cwd, saved_store, last_settled_turn from conversations where conversation_id = ?",
        conversation,
    )
    return [manager, runner]


async def changed_turn(stage: Stage, conversation: str, place: str, text: str) -> Told:
    alter(stage.tools, place)
    try:
        return await stage.ask(conversation, text)
    finally:
        alter(stage.tools, None)


@pytest.mark.parametrize("ending", ["good", "failed"])
@pytest.mark.parametrize("when", ["live", "resumed"])
async def test_a_changed_id_fails_the_turn_and_saves_nothing(
    shimmed: Stage, checking: str, conversation: str, when: str, ending: str
) -> None:
    first = await shimmed.begin(conversation)
    before = saved(shimmed, conversation)
    for place in CHANGED:
        if when == "resumed":
            await shimmed.client.stop_conversation(conversation)
        text = f"{place} [[lab:status=403]]" if ending == "failed" else place
        told = await changed_turn(shimmed, conversation, place, text)
        label = f"{place} {when} {ending}: {told.turn}"
        assert told.state == ("RESTORED" if when == "resumed" else "LIVE"), label
        assert (told.outcome, told.turn.locator_saved, told.process) == ("FAILED", False, "RECLAIM_FIRST"), label
        wanted = "UNPROVEN" if place == "no-init" else "CONTRADICTED"
        assert told.verdicts == (
            "CONFIRMED" if checking == "manager" else wanted,
            "CONFIRMED" if checking == "runner" else wanted,
        ), label
        assert told.turn.output_unconfirmed == bool(told.text), label
        assert saved(shimmed, conversation) == before, label
        after = await shimmed.ask(conversation, "what is the colour?")
        assert (after.state, after.text, after.session) == ("RESTORED", "the colour is green", first.session), label
        before = saved(shimmed, conversation)


async def test_a_changed_id_in_a_first_turn_saves_no_locator(shimmed: Stage, conversation: str) -> None:
    alter(shimmed.tools, "every-event")
    try:
        told = await shimmed.begin(conversation)
    finally:
        alter(shimmed.tools, None)
    assert (told.outcome, told.turn.locator_saved) == ("FAILED", False)
    assert shimmed.rows("manager", "select * from locators where conversation_id = ?", conversation) == []
    after = await shimmed.begin_again(conversation)
    assert (after.state, after.outcome) == ("NEW", "COMPLETED")
    assert after.session != told.session


async def test_a_sub_agent_with_another_id_is_harmless(shimmed: Stage, conversation: str) -> None:
    await shimmed.begin(conversation)
    told = await changed_turn(shimmed, conversation, "sub-agent", "what is the colour?")
    assert (told.outcome, told.verdicts, told.process) == ("COMPLETED", ("CONFIRMED", "CONFIRMED"), "KEPT")
    assert told.text == "the colour is green"


async def test_a_result_that_the_cli_forges_early_binds_nothing_to_another_session(
    shimmed: Stage, conversation: str
) -> None:
    """The stdio is a socket, so no tool can write it; a CLI that lies about its own end spoils its conversation and no more."""
    first = await shimmed.begin(conversation)
    forged = await changed_turn(shimmed, conversation, "forged-result", "what is the colour? [[lab:latency=300ms]]")
    assert forged.session == first.session
    after = await shimmed.ask(conversation, "what is the colour?")
    # What it said after its end was admitted to nobody; it is found before the next turn, or at its end if it came that late.
    assert after.state == "LOST" or after.outcome == "FAILED"
    assert not after.turn.locator_saved
    assert after.reason == "HISTORY_CHANGED_OUTSIDE_TURN"


OTHERS = {"native_session_id": "0b5e55ed-dead-4000-8000-00000000beef", "cwd": "/other", "store": "x"}


async def test_a_request_whose_locator_is_not_the_saved_one_is_refused_and_costs_no_process(
    shimmed: Stage, checking: str, conversation: str
) -> None:
    first = await shimmed.begin(conversation)
    if checking == "manager":
        return  # a client's locator is the runner's to check; what the runner itself sends is tried below
    sent = len(shimmed.requests())
    for name, value in OTHERS.items():
        other = types.NativeLocator()
        other.CopyFrom(first.turn.locator)
        setattr(other, name, value)
        told = await shimmed.ask(conversation, "what is the colour?", locator=other)
        assert isinstance(told.refusal, LocatorError), name
        assert told.reason == "LOCATOR_MISMATCH"
    assert len(shimmed.requests()) == sent
    told = await shimmed.ask(conversation, "what is the colour?", locator=first.turn.locator)
    assert (told.state, told.text) == ("LIVE", "the colour is green")


async def test_records_that_differ_are_refused_by_the_side_that_checks(
    shimmed: Stage, checking: str, conversation: str
) -> None:
    """One side's record is changed behind its back. It is refused at the resume by the other, alone; put back, it is restored."""
    first = await shimmed.begin(conversation)
    sent = len(shimmed.requests())
    # The side whose check is off is the one with the wrong record; with both on, either will do.
    changed = "runner" if checking == "manager" else "manager"
    session = first.session
    path = shimmed.transcript(first)
    # Another session with the very same content: only the name of it can be held against it.
    shutil.copy2(path, path.with_name(f"{OTHERS['native_session_id']}.jsonl"))
    await exchange(shimmed, changed, conversation, session, OTHERS["native_session_id"])
    told = await shimmed.ask_until_answered(conversation, "what is the colour?")
    assert (told.outcome, told.reason) == ("REFUSED", "LOCATOR_MISMATCH")
    assert len(shimmed.requests()) == sent
    await exchange(shimmed, changed, conversation, OTHERS["native_session_id"], session)
    told = await shimmed.ask_until_answered(conversation, "what is the colour?")
    assert (told.outcome, told.text, told.session) == ("COMPLETED", "the colour is green", session)


async def exchange(stage: Stage, process: str, conversation: str, old: str, new: str) -> None:
    """Changes the native id in a process's record of the saved locator, while it is down."""
    member = stage.fleet.manager if process == "manager" else stage.fleet.runner
    await member.stop()
    path = stage.folder / process[0] / f"{process}.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        if process == "manager":
            statement = (
                "update locators set native_session_id = replace(native_session_id, ?1, ?2), "
                "locator = replace(locator, ?1, ?2) where conversation_id = ?3"
            )
        else:
            statement = (
                "update conversations set saved_session_id = replace(saved_session_id, ?1, ?2), "
                "saved_store = replace(saved_store, ?1, ?2), verified_session_id = replace(verified_session_id, ?1, ?2), "
                "verified_store = replace(verified_store, ?1, ?2) where conversation_id = ?3"
            )
        assert connection.execute(statement, (old, new, conversation)).rowcount == 1
    await stage.fleet.restart(member)
