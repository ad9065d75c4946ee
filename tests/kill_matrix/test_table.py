"""The table is whole."""

from __future__ import annotations

from tests.kill_matrix.table import PROCESSES, STEPS, TABLE, TURNS, is_in_the_default_tier, is_there_to_kill


def test_the_table_has_every_process_step_and_turn() -> None:
    assert len(TABLE) == len(set(TABLE)) == 6 * 8 * 2
    assert {(cell.process, cell.step, cell.turn) for cell in TABLE} == {
        (process, step, turn) for process in PROCESSES for step in STEPS for turn in TURNS
    }
    assert all(cell.endings for cell in TABLE)


def test_one_cell_has_nobody_to_kill_and_no_process_or_step_is_left_out_of_the_default_tier() -> None:
    assert [str(cell) for cell in TABLE if not is_there_to_kill(cell)] == ["cli-prepare-turn1"]
    default = [cell for cell in TABLE if is_in_the_default_tier(cell)]
    assert {(cell.process, cell.step) for cell in default} == {(p, s) for p in PROCESSES for s in STEPS}
    assert {(cell.process, cell.turn) for cell in default} == {(p, t) for p in PROCESSES for t in TURNS}
