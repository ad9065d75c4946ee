"""What the tools give the model, and what they refuse."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from direct_agent.assembly import shell_environment
from direct_agent.tools.arguments import parse
from direct_agent.tools.disk import Disk
from direct_agent.tools.errors import ArgumentError, PathError, ToolError
from direct_agent.tools.port import Change, Output
from direct_agent.tools.toolbox import Toolbox, standard_toolbox
from direct_agent.tools.workspace import Workspace

ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}


@pytest.fixture
def work(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    return made


@pytest.fixture
def tools(work: Path, tmp_path: Path) -> Toolbox:
    staging = tmp_path / "staging"
    staging.mkdir()
    return standard_toolbox(Disk(Workspace(work), staging), ENVIRONMENT)


async def run(tools: Toolbox, name: str, **arguments: Any) -> Output:
    tool = tools.plain[name]
    return await tool.run(parse(tool.spec, json.dumps(arguments)))


def plan(tools: Toolbox, name: str, **arguments: Any) -> tuple[Change, ...]:
    tool = tools.changes[name]
    return tool.plan(parse(tool.spec, json.dumps(arguments)))


# --- arguments -----------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "text",
    [
        "no json",
        "[]",
        "{}",
        '{"path":1}',
        '{"path":"a","other":1}',
        '{"path":"a","lines":true}',
        '{"path":"a","lines":0}',
        '{"path":"a","lines":1.5}',
    ],
)
def test_arguments_that_do_not_agree_with_the_schema_are_refused(tools: Toolbox, text: str) -> None:
    with pytest.raises(ArgumentError):
        parse(tools.plain["read"].spec, text)


def test_the_list_of_tools_is_the_same_each_time(tools: Toolbox) -> None:
    assert [spec.name for spec in tools.specs] == ["read", "write", "edit", "multi_edit", "list", "search", "shell"]


# --- reading -------------------------------------------------------------------------------------------------------------------------
async def test_read_numbers_lines_and_says_what_it_leaves_out(tools: Toolbox, work: Path) -> None:
    (work / "a.txt").write_text("\n".join(f"line {number}" for number in range(1, 11)))
    shown = await run(tools, "read", path="a.txt", first_line=3, lines=2)
    assert shown.text.splitlines() == [
        "     3\tline 3",
        "     4\tline 4",
        "… lines 5 to 10 are not shown; read on with first_line=5",
    ]


async def test_read_refuses_what_is_no_text(tools: Toolbox, work: Path) -> None:
    (work / "b.bin").write_bytes(b"\x00\x01")
    for path in ("b.bin", ".", "nowhere"):
        with pytest.raises(PathError):
            await run(tools, "read", path=path)


async def test_list_names_kinds_and_follows_no_link(tools: Toolbox, work: Path) -> None:
    (work / "sub").mkdir()
    (work / "sub" / "in.py").write_text("")
    (work / "link").symlink_to("sub")
    (work / "node_modules").mkdir()
    (work / "node_modules" / "x.py").write_text("")
    assert (await run(tools, "list")).text.splitlines() == ["link@", "node_modules/", "sub/"]
    assert (await run(tools, "list", depth=3, pattern="*.py")).text.splitlines() == ["sub/in.py"]


async def test_search_finds_lines(tools: Toolbox, work: Path) -> None:
    (work / "a.py").write_text("one\ntwo\n")
    (work / "b.txt").write_text("two (2)\n")
    assert (await run(tools, "search", pattern="^tw.")).text.splitlines() == ["a.py:2: two", "b.txt:1: two (2)"]
    assert (await run(tools, "search", pattern="(2)", literal=True)).text == "b.txt:1: two (2)"
    assert (await run(tools, "search", pattern="TWO", ignore_case=True, names="*.py")).text == "a.py:2: two"
    assert (await run(tools, "search", pattern="three")).text == "(no match)"
    with pytest.raises(ArgumentError):
        await run(tools, "search", pattern="(")


async def test_a_pattern_that_takes_for_ever_ends_and_the_loop_goes_on(
    tools: Toolbox, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("direct_agent.tools.search.TIMEOUT_S", 1)
    (work / "a.txt").write_text("a" * 60 + "b\n")
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.05)
            ticks += 1

    ticking = asyncio.create_task(tick())
    with pytest.raises(ToolError, match="longer"):
        await run(tools, "search", pattern="(a+)+$")
    ticking.cancel()
    assert ticks > 5


# --- changes -------------------------------------------------------------------------------------------------------------------------
def test_an_edit_needs_exactly_one_place(tools: Toolbox, work: Path) -> None:
    (work / "a.txt").write_text("x y x")
    with pytest.raises(PathError, match="2 times"):
        plan(tools, "edit", path="a.txt", old_text="x", new_text="z")
    with pytest.raises(PathError, match="does not hold"):
        plan(tools, "edit", path="a.txt", old_text="q", new_text="z")
    (change,) = plan(tools, "edit", path="a.txt", old_text="x", new_text="z", replace_all=True)
    assert change.after == "z y z"


def test_an_edit_keeps_the_files_line_ends(tools: Toolbox, work: Path) -> None:
    (work / "a.txt").write_bytes(b"one\r\ntwo\r\n")
    (change,) = plan(tools, "edit", path="a.txt", old_text="one\ntwo", new_text="1\n2")
    assert change.after == "1\r\n2\r\n"


def test_several_edits_of_one_file_by_two_names_are_one_change(tools: Toolbox, work: Path) -> None:
    (work / "a.txt").write_text("one two")
    (work / "link").symlink_to("a.txt")
    edits = [
        {"path": "a.txt", "old_text": "one", "new_text": "1"},
        {"path": "link", "old_text": "1 two", "new_text": "1 2"},
    ]
    (change,) = plan(tools, "multi_edit", edits=edits)
    assert change.after == "1 2"


def test_one_edit_that_cannot_be_made_stops_all(tools: Toolbox, work: Path) -> None:
    (work / "a.txt").write_text("one")
    edits = [
        {"path": "a.txt", "old_text": "one", "new_text": "1"},
        {"path": "b.txt", "old_text": "two", "new_text": "2"},
    ]
    with pytest.raises(PathError):
        plan(tools, "multi_edit", edits=edits)
    assert (work / "a.txt").read_text() == "one"


def test_planning_writes_nothing_and_makes_no_folder(tools: Toolbox, work: Path) -> None:
    plan(tools, "write", path="new/deep/a.txt", content="x")
    assert list(work.iterdir()) == []


# --- shell ---------------------------------------------------------------------------------------------------------------------------
async def test_shell_gives_output_and_exit_code(tools: Toolbox, work: Path) -> None:
    assert await run(tools, "shell", command="pwd; echo err >&2") == Output(f"{work}\nerr\n(exit code 0)")
    assert await run(tools, "shell", command="exit 3") == Output("(exit code 3)", is_error=True)
    assert (await run(tools, "shell", command="cat")).text == "(exit code 0)"


async def test_shell_bounds_output_in_the_middle(tools: Toolbox) -> None:
    shown = await run(tools, "shell", command="echo begin; head -c 300000 /dev/zero | tr '\\0' x; echo; echo end")
    assert len(shown.text) < 40_000
    assert shown.text.startswith("begin")
    assert "bytes are not shown" in shown.text
    assert shown.text.endswith("end\n(exit code 0)")


async def test_shell_ends_at_its_limit_with_its_whole_group(tools: Toolbox, work: Path) -> None:
    began = time.monotonic()
    shown = await run(tools, "shell", command="(sleep 30; touch late) & echo $! > child; sleep 30", timeout_s=1)
    assert time.monotonic() - began < 10
    assert shown.is_error
    assert "limit of 1 s" in shown.text
    await _gone(int((work / "child").read_text()))


async def test_what_a_command_leaves_behind_in_its_group_is_ended_with_it(tools: Toolbox, work: Path) -> None:
    shown = await run(tools, "shell", command="sleep 30 & echo $! > child")
    assert shown.text == "(exit code 0)"
    await _gone(int((work / "child").read_text()))


async def test_a_child_outside_the_group_does_not_hold_the_call_open(tools: Toolbox) -> None:
    began = time.monotonic()
    await run(tools, "shell", command="setsid sleep 3 & exit 0")
    assert time.monotonic() - began < 2


async def test_a_cancelled_command_is_over_when_the_cancel_returns(tools: Toolbox, work: Path) -> None:
    task = asyncio.create_task(run(tools, "shell", command="echo $$ > child; sleep 30"))
    await _until(lambda: (work / "child").exists() and (work / "child").read_text().strip() != "")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await _gone(int((work / "child").read_text()))


def test_a_command_does_not_get_the_models_key() -> None:
    given = shell_environment({"PATH": "/bin", "STANDFAST_MODEL_KEY": "k", "MY_KEY": "k", "HOME": "/h"})
    assert given == {"PATH": "/bin", "HOME": "/h"}


async def _gone(pid: int) -> None:
    """Gone, or nobody's but its reaper's."""
    await _until(lambda: _state(pid) in (None, "Z"))


async def _until(is_so: Callable[[], bool]) -> None:
    for _ in range(1000):
        if is_so():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it did not become so within 10 s")


def _state(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None
