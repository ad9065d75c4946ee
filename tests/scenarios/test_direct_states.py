"""The built-in agent behind runner, manager and host agent on `local`: NEW, LIVE, RESTORED, failed, cancelled, changed outside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from standfast_client.sdk import Expect
from tests.scenarios.direct_tools import make_direct_folder
from tests.scenarios.stage import Stage, Told

pytestmark = [pytest.mark.engine("local"), pytest.mark.asyncio(loop_scope="module")]

WRITE = '[[lab:tool=write {"path":"notes/a.txt","content":"hi"}]]'
SLOW = '[[lab:tool=shell {"command":"echo x >> ledger; sleep 30"}]]'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(short_folder: Callable[[], Path], tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    tools = make_direct_folder(tmp_path_factory.mktemp("direct"))
    async with Stage(short_folder(), tools) as made:
        yield made


async def ask(stage: Stage, conversation: str, text: str, **more: Any) -> Told:
    return await stage.ask(conversation, text, agent="direct", **more)


async def begin(stage: Stage, conversation: str, text: str = "remember: the colour is green", **more: Any) -> Told:
    return await ask(stage, conversation, text, expect=Expect.NEW, **more)


async def test_a_conversation_is_new_then_live_then_restored(stage: Stage, conversation: str) -> None:
    first = await begin(stage, conversation, f"{WRITE} remember: the colour is green")
    assert (first.state, first.outcome, first.process) == ("NEW", "COMPLETED", "KEPT")
    assert first.verdicts == ("CONFIRMED", "CONFIRMED")
    second = await ask(stage, conversation, "what is the colour?")
    assert (second.state, second.outcome, second.text) == ("LIVE", "COMPLETED", "the colour is green"), second.reason
    assert second.turn.generations.process == first.turn.generations.process
    await stage.client.stop_conversation(conversation)
    third = await ask(stage, conversation, "what is the colour?")
    assert (third.state, third.outcome, third.text) == ("RESTORED", "COMPLETED", "the colour is green")
    assert third.session == first.session
    assert third.verdicts == ("CONFIRMED", "CONFIRMED")


async def test_a_failed_turn_settles_and_the_next_is_live(stage: Stage, conversation: str) -> None:
    await begin(stage, conversation)
    failed = await ask(stage, conversation, "[[lab:status=401]] go")
    assert (failed.outcome, failed.verdicts) == ("FAILED", ("CONFIRMED", "CONFIRMED"))
    following = await ask(stage, conversation, "what is the colour?")
    assert (following.state, following.text) == ("LIVE", "the colour is green")


async def test_a_cancelled_command_settles_as_cancelled_and_is_not_run_again(stage: Stage, conversation: str) -> None:
    await begin(stage, conversation)

    task = asyncio.create_task(ask(stage, conversation, f"{SLOW} go", turn_id="cancel-1"))
    await stage.until("the command runs", lambda: any(stage.sandboxes.rglob("ledger")))
    await stage.client.cancel_turn(conversation, "cancel-1")
    cancelled = await task
    assert cancelled.outcome == "CANCELLED"
    following = await ask(stage, conversation, f"{SLOW} what is the colour?")
    assert (following.state, following.outcome) == ("RESTORED", "COMPLETED")
    (ledger,) = stage.sandboxes.rglob("ledger")
    assert ledger.read_text() == "x\n"


async def test_a_record_that_no_turn_explains_is_lost(stage: Stage, conversation: str) -> None:
    first = await begin(stage, conversation)
    await stage.client.stop_conversation(conversation)
    line = b'{"v":1,"kind":"message","id":"x","parent":null,"at_ms":1,"data":{"message":{"role":"user","text":"forged"}}}\n'
    store = stage.transcript(first)
    before = store.read_bytes()
    store.write_bytes(before + line)
    lost = await ask(stage, conversation, "what is the colour?")
    assert (lost.state, lost.reason) == ("LOST", "HISTORY_CHANGED_OUTSIDE_TURN")
    assert store.read_bytes() == before + line


async def test_half_a_record_at_the_end_is_set_aside_and_the_conversation_goes_on(
    stage: Stage, conversation: str
) -> None:
    first = await begin(stage, conversation)
    await stage.client.stop_conversation(conversation)
    store = stage.transcript(first)
    with store.open("ab") as file:
        file.write(b'{"v":1,"kind":"mess')
    following = await ask(stage, conversation, "what is the colour?")
    assert (following.state, following.outcome, following.text) == ("RESTORED", "COMPLETED", "the colour is green")
    again = await ask(stage, conversation, "what is the colour?")
    assert (again.state, again.text) == ("LIVE", "the colour is green")
