"""A host agent's journal that takes nothing for a while: no turn stays open for ever, and none is called ended that nobody recorded."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from standfast.types.v1 import types_pb2 as types
from standfast_client.sdk import Expect, new_id
from tests.scenarios.stage import Stage
from tests.stub_cli.tool_folder import ToolFolder

pytestmark = pytest.mark.engine("local")


async def test_a_turn_whose_end_could_not_be_journalled_is_resolved_when_the_journal_can_be_written_again(
    short_folder: Callable[[], Path], stub_tools: ToolFolder
) -> None:
    async with Stage(short_folder(), stub_tools) as stage:
        first = await stage.begin("c")
        turn_id = new_id("t")
        stream = stage.client.start_turn("c", "slowly [[lab:slow=20x50ms]]", expect=Expect.CONTINUE, turn_id=turn_id)
        view = aiter(stream)
        async for event in view:
            if event.HasField("text_delta"):
                break
        await view.aclose()  # type: ignore[attr-defined]  # it is a generator
        # Another process's lock is what a full or broken disk is to a writer: an error after a while.
        lock = sqlite3.connect(stage.folder / "h" / "journal.sqlite", isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        try:
            broke = "STORE_"
            await stage.until("the journal failed", lambda: broke in stage.fleet.host_agent.log_tail(), 30.0)
        finally:
            lock.execute("ROLLBACK")
            lock.close()
        async with asyncio.timeout(30.0):
            while (over := await stage.client.get_turn("c", turn_id)).state not in ("SETTLED", "ENDED"):  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.05)
        assert over.outcome == types.OUTCOME_INTERRUPTED
        assert not over.locator_saved
        assert not stage.processes(first.session)
        after = await stage.ask("c", "what is the colour?")
        assert (after.state, after.text, after.session) == ("RESTORED", "the colour is green", first.session)
