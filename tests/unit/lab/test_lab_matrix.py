"""The lab's own parts: its table, its list, how a cell is judged, its command line."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from standfast_lab.added_texts import OF_AGENT
from standfast_lab.lab import scenarios
from standfast_lab.lab.__main__ import main
from standfast_lab.lab.agents import AGENTS, AgentWords
from standfast_lab.lab.checks import LabCheckError, check, check_that
from standfast_lab.lab.matrix import Cell, play_cell
from standfast_lab.lab.play import Play
from standfast_lab.lab.scenario import SCENARIOS, Scenario, scenario
from standfast_lab.lab.screen import JsonScreen, TableScreen
from standfast_lab.lab.site import LabSite
from standfast_lab.provider.directives import find_directives

SITE = cast(LabSite, None)  # the acts below touch none
assert scenarios.__all__


def words(name: str, **more: Any) -> AgentWords:
    return AgentWords(name, lambda command: "", lambda line: True, {}, {}, **more)


def act(error: Exception | None) -> Scenario:
    async def played(play: Play) -> None:
        if error is not None:
            raise error

    return Scenario("made-up", "nothing", played, False, False)


@pytest.mark.parametrize("agent", AGENTS.values(), ids=list(AGENTS))
def test_a_row_names_only_scenarios_that_exist_and_words_that_can_be_read(agent: AgentWords) -> None:
    assert {*agent.endings, *agent.cannot} <= set(SCENARIOS)
    assert agent.name in OF_AGENT
    (call,) = find_directives(agent.shell('echo "a b" > made.txt'))
    assert call.name == "tool"
    assert 'echo "a b" > made.txt' in json.loads(call.options["input"]).values()


def test_every_scenario_says_what_it_shows_and_the_core_is_about_a_dozen() -> None:
    assert all(one.shows for one in SCENARIOS.values())
    assert 12 <= sum(one.is_core for one in SCENARIOS.values()) <= 16


def test_a_name_is_given_once() -> None:
    with pytest.raises(ValueError, match="two scenarios"):
        scenario("follow-up-live")(SCENARIOS["follow-up-live"].act)


@pytest.mark.parametrize(
    ("error", "passed", "detail"),
    [
        (None, True, "0 turns, 0 requests judged"),
        (LabCheckError("the word: expected 1, found 2"), False, "expected 1, found 2"),
        (TimeoutError(), False, "TimeoutError"),
    ],
)
async def test_a_cell_passes_only_if_its_scenario_does(error: Exception | None, passed: bool, detail: str) -> None:
    cell = await play_cell(act(error), SITE, words("x"), 1)
    assert (cell.passed, cell.agent, cell.scenario) == (passed, "x", "made-up")
    assert detail in cell.detail


async def test_what_a_cli_cannot_show_is_neither_passed_nor_failed() -> None:
    cell = await play_cell(act(LabCheckError("no")), SITE, words("x", cannot={"made-up": "it has no tools"}), 1)
    assert (cell.passed, cell.detail) == (None, "cannot: it has no tools")


def test_a_check_names_expected_and_found() -> None:
    check(1, 1, "a number")
    with pytest.raises(LabCheckError, match="a number: expected 2, found 1\nhere"):
        check(1, 2, "a number", "here")
    with pytest.raises(LabCheckError, match="does not hold: it rains"):
        check_that(False, "it rains")


CELLS = [
    Cell("a", "one", True, "fine", 1.0, 1),
    Cell("a", "one", False, "broken", 1.0, 2),
    Cell("a", "two", None, "cannot: x", 0.0, 1),
    Cell("b", "one", True, "fine", 1.0, 1),
]


def test_the_matrix_has_a_row_a_scenario_and_a_column_an_agent(capsys: pytest.CaptureFixture[str]) -> None:
    screen = TableScreen()
    for number, cell in enumerate(CELLS, 1):
        screen.cell(cell, number, len(CELLS))
    screen.end(CELLS)
    out = capsys.readouterr().out
    assert "broken" in out
    assert "NO 1 of 2" in out
    assert "cannot" in out
    assert "2 passed, 1 failed, 1 cannot be shown" in out


def test_json_is_one_object_a_cell_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    screen = JsonScreen()
    for number, cell in enumerate(CELLS, 1):
        screen.cell(cell, number, len(CELLS))
    screen.end(CELLS)
    out = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["passed"] for one in out] == [True, False, None, True]
    assert set(out[0]) >= {"agent", "scenario", "passed", "detail"}


def test_the_list_and_a_check_play_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert capsys.readouterr().out.count("\n") == len(SCENARIOS)
    assert main(["--check", "--scenarios", "core", "--agents", "claude-code"]) == 0
    for wrong in (["--check", "--scenarios", "none"], ["--check", "--repeat", "0"], []):
        with pytest.raises(SystemExit) as left:
            main(wrong)
        assert left.value.code == 2
