"""`kill -9` in the middle of writes: what a commit has confirmed is there, and no commit is there by half."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox_manager.adapters.manager_store import SqliteManagerStore
from sandbox_manager.core.records import ConversationRef

REPO = Path(__file__).parent.parent.parent.parent

# Writes turns with their settlements, several at once, and says each number only after its commit.
_WRITER = """
import asyncio, sys
from dataclasses import replace
from pathlib import Path
from sandbox_manager.adapters.manager_store import SqliteManagerStore
from sandbox_manager.adapters.store_port import Insert, Update
from sandbox_manager.core.records import TurnState
from tests.contract.manager_store import records as made

async def write(store, number):
    key = {"conversation_id": f"c{number}"}
    await store.commit([Insert(made.turn(**key)), Insert(replace(made.locator(f"c{number}", f"g{number}")))])
    await store.commit([
        Update(made.turn(state=TurnState.SETTLED, **key)),
        Insert(made.settlement(f"a{number}", request_id=f"q{number}", **key)),
        Update(replace(made.locator(f"c{number}", f"g{number}"), turn_id="t2")),
    ])
    print(number, flush=True)

async def main():
    async with SqliteManagerStore.database(Path(sys.argv[1])) as db:
        store = SqliteManagerStore(db)
        for start in range(0, 1000000, 8):
            await asyncio.gather(*(write(store, start + one) for one in range(8)))

asyncio.run(main())
"""


@pytest.mark.parametrize("confirmed_before_kill", [1, 50, 300])
async def test_no_confirmed_commit_is_lost_and_none_is_there_by_half(
    tmp_path: Path, confirmed_before_kill: int
) -> None:
    path = tmp_path / "manager.sqlite"
    confirmed = await asyncio.to_thread(_killed_writer, path, confirmed_before_kill)
    assert len(confirmed) >= confirmed_before_kill
    async with SqliteManagerStore.database(path) as db:
        store = SqliteManagerStore(db)
        for number in confirmed:
            story = await store.turn(ConversationRef("local", f"c{number}"), "t1")
            assert story is not None
            assert story.turn.state.value == "SETTLED"
            assert await store.settlement_by_request(f"q{number}") is not None
        for number in range(max(confirmed) + 17):
            ref = ConversationRef("local", f"c{number}")
            story = await store.turn(ref, "t1")
            found = await store.conversation(ref)
            settled = await store.settlement_by_request(f"q{number}")
            # All of a commit, or nothing of it.
            assert (story is None) == (found.locator is None)
            is_settled = story is not None and story.turn.state.value == "SETTLED"
            assert is_settled == (settled is not None)
            assert is_settled == (found.locator is not None and found.locator.turn_id == "t2")
        assert await db.read(lambda opened: opened.conn.execute("pragma integrity_check").fetchone()[0]) == "ok"


def _killed_writer(path: Path, confirmed_before_kill: int) -> list[int]:
    """Numbers that the writer had confirmed when it was killed."""
    env = os.environ | {"PYTHONPATH": f"{REPO}{os.pathsep}{REPO / 'proto'}"}
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, env=env, cwd=REPO, text=True
    )
    assert process.stdout is not None
    confirmed = []
    try:
        for line in process.stdout:
            confirmed.append(int(line))
            if len(confirmed) == confirmed_before_kill:
                process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    return confirmed
