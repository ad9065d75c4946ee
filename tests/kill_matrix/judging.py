"""What must hold in every cell, and after it."""

from __future__ import annotations

from tests.kill_matrix.ground import Ground
from tests.kill_matrix.killing import Cellmate, history_is_complete, perform
from tests.kill_matrix.table import NOT_SENT, SETTLED, Cell, is_there_to_kill
from tests.scenarios.stage import Stage

NAMED_LOSSES = frozenset({"HISTORY_BROKEN", "HISTORY_TORN", "HISTORY_CHANGED_OUTSIDE_TURN", "STORE_MISSING"})


async def play(ground: Ground, cell: Cell) -> None:
    """The cell, judged."""
    if not is_there_to_kill(cell):
        await a_first_turn_has_no_cli_yet(ground, cell)
        return
    mate = await perform(ground, cell)
    judge(ground.stage, cell, mate)
    await nothing_runs_after_a_stop(ground, mate.conversation)


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


async def a_first_turn_has_no_cli_yet(ground: Ground, cell: Cell) -> None:
    """The one cell with nobody to kill."""
    mate = await perform(ground, Cell("nobody", cell.step, cell.turn))
    assert mate.ending == SETTLED
    assert (mate.next.state, mate.sent_in_all) == ("LIVE", 1)
    await nothing_runs_after_a_stop(ground, mate.conversation)


async def nothing_runs_after_a_stop(ground: Ground, conversation: str) -> None:
    """One CLI at most while it runs, and nothing at all afterwards."""
    sandbox = ground.sandbox_of(conversation)
    assert sandbox is not None
    assert len(ground.clis_of(sandbox)) <= 1
    await ground.stage.client.stop_conversation(conversation)
    assert ground.processes_of(sandbox) == {}
