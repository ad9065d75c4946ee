"""Every process that can be killed without an engine, at every step, in a first and in a third turn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from standfast_lab.fleet.switches import Switches
from tests.kill_matrix.killing import Cellmate, clis_of, history_is_complete, perform, processes_of, sandbox_of
from tests.kill_matrix.table import NOT_SENT, SETTLED, TABLE, Cell, is_in_the_default_tier, is_there_to_kill
from tests.scenarios.stage import Stage
from tests.stub_cli.tool_folder import ToolFolder

pytestmark = [pytest.mark.engine("local"), pytest.mark.asyncio(loop_scope="module")]

# Short leases: a cell waits for them to end, not for a time of its own.
SETTINGS = {
    "manager": {"activation_lease_s": 10.0, "host_lease_s": 10.0, "heartbeat_s": 0.5, "reconcile_s": 0.2},
    "host-agent": {"store_wait_s": 1.0},
    "runner": {"manager_wait_s": 10.0},
}
NAMED_LOSSES = frozenset({"HISTORY_BROKEN", "HISTORY_TORN", "HISTORY_CHANGED_OUTSIDE_TURN", "STORE_MISSING"})

ON_LOCAL = [cell for cell in TABLE if cell.process != "engine"]
PARAMETERS = [
    pytest.param(cell, id=str(cell), marks=() if is_in_the_default_tier(cell) else pytest.mark.full)
    for cell in ON_LOCAL
]


class Arena:
    """One fleet for many cells; a cell that failed leaves it to nobody."""

    def __init__(self, short_folder: Callable[[], Path], tools: ToolFolder) -> None:
        self._short_folder = short_folder
        self._tools = tools
        self._stage: Stage | None = None
        self.pauses = Path()

    async def stage(self) -> Stage:
        """A fleet in which everybody serves."""
        if self._stage is not None:
            try:
                for member in self._stage.fleet.members:
                    await member.wait_ready(30.0)
                return self._stage
            except Exception:  # noqa: BLE001 (whatever is wrong with it, the next cell gets a new one)
                await self.drop()
        folder = self._short_folder()
        self.pauses = folder / "pauses"
        self.pauses.mkdir()
        self._stage = await Stage(
            folder, self._tools, switches=Switches(pauses=str(self.pauses)), settings=SETTINGS
        ).__aenter__()
        return self._stage

    async def drop(self) -> None:
        """Ends it."""
        if (stage := self._stage) is not None:
            self._stage = None
            for hold in (*self.pauses.glob("*.hold"), *stage.tools.gates.glob("*.hold")):
                hold.unlink()
            await stage.__aexit__(None, None, None)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def arena(short_folder: Callable[[], Path], stub_tools: ToolFolder) -> AsyncIterator[Arena]:
    made = Arena(short_folder, stub_tools)
    yield made
    await made.drop()


@pytest.mark.parametrize("cell", PARAMETERS)
async def test_a_kill_sends_nothing_twice_and_reports_no_false_state(arena: Arena, cell: Cell) -> None:
    stage = await arena.stage()
    try:
        if not is_there_to_kill(cell):
            await a_first_turn_has_no_cli_yet(stage, cell, arena.pauses)
            return
        mate = await perform(stage, arena.pauses, cell)
        judge(stage, cell, mate)
        await nothing_runs_after_a_stop(stage, mate.conversation)
    except BaseException:
        await arena.drop()
        raise


def judge(stage: Stage, cell: Cell, mate: Cellmate) -> None:
    """What must hold in every cell."""
    told, label = mate.next, f"{cell}: killed {mate.killed.turn}\n{mate.killed.refusal!r}\nnext {mate.next.turn}"
    assert mate.ending in cell.endings, label
    assert mate.sent_in_all == mate.sent_before_next, label
    assert mate.sent_in_all <= 1, label
    if mate.ending == NOT_SENT:
        assert mate.sent_in_all == 0, label
    settled_before = cell.turn - 1 + (mate.ending == SETTLED)
    if told.state == "LOST":
        assert settled_before > 0, label
        assert told.reason in NAMED_LOSSES, label
        return
    assert told.outcome == "COMPLETED", label
    assert told.verdicts == ("CONFIRMED", "CONFIRMED"), label
    if settled_before == 0:
        assert told.state == "NEW", label
        assert told.session != mate.killed.session or mate.ending == NOT_SENT, label
    else:
        allowed = {"LIVE", "RESTORED"} if cell.may_be_live_after(mate.ending) else {"RESTORED"}
        assert told.state in allowed, label
        assert told.session == mate.killed.session or not mate.killed.session, label
        assert told.text == ("the colour is green" if cell.turn == 3 else "I do not know the colour"), label
    if mate.ending == SETTLED or cell.turn == 3:
        assert history_is_complete(stage, mate), label


async def a_first_turn_has_no_cli_yet(stage: Stage, cell: Cell, pauses: Path) -> None:
    """The one cell with nobody to kill."""
    mate = await perform(stage, pauses, Cell("nobody", cell.step, cell.turn))
    assert mate.ending == SETTLED
    assert (mate.next.state, mate.sent_in_all) == ("LIVE", 1)
    await nothing_runs_after_a_stop(stage, mate.conversation)


async def nothing_runs_after_a_stop(stage: Stage, conversation: str) -> None:
    """One CLI at most while it runs, and nothing at all afterwards."""
    folder = sandbox_of(stage, conversation)
    assert folder is not None
    assert len(clis_of(stage, folder)) <= 1
    await stage.client.stop_conversation(conversation)
    assert processes_of(folder) == {}
