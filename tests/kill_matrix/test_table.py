"""The table is whole."""

from __future__ import annotations

from tests.kill_matrix.table import (
    IN_DOCKER,
    ON_LOCAL,
    ON_OWN_ENGINE,
    PROCESSES,
    STEPS,
    TABLE,
    TURNS,
    is_in_the_default_tier,
    is_there_to_kill,
)


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


def test_every_cell_is_played_with_the_stub_and_with_the_real_cli_and_the_engine_dies_in_sixteen() -> None:
    assert len(ON_LOCAL) == len(IN_DOCKER) == 5 * 8 * 2
    assert len(ON_OWN_ENGINE) == 8 * 2
    assert set(IN_DOCKER) | set(ON_OWN_ENGINE) == set(TABLE)
