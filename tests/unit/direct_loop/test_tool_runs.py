"""Running the calls of one answer: order, parallel reads, permissions, cancel, storing, and what is recorded before what."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from direct_agent.intents.observe import DiskWitness
from direct_agent.intents.pending import PendingCalls
from direct_agent.intents.record import encode
from direct_agent.loop.requests import PermissionAnswer, QuestionAnswer, RequestNotOpenError, Requests
from direct_agent.loop.tool_runs import PARALLEL_MAX, ToolRuns
from direct_agent.session.errors import SessionWriteError
from direct_agent.tools.disk import Disk
from direct_agent.tools.permissions import PermissionMode, Permissions, parse_rule
from direct_agent.tools.port import Arguments, Output, PlainTool, ToolSpec
from direct_agent.tools.toolbox import TOOL_NAMES, Toolbox, standard_toolbox
from direct_agent.tools.workspace import Workspace
from direct_agent.transcript import RunState, ToolCall, ToolResult
from tests.unit.direct_loop.house import ENVIRONMENT, Heard, until

COMPLETED, NOT_STARTED, UNKNOWN = RunState


@dataclass
class Slow:
    """A tool that waits until it is let go. Implements PlainTool."""

    name: str
    is_read_only: bool
    begun: list[str] = field(default_factory=list)
    running: int = 0
    most: int = 0
    go: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def spec(self) -> ToolSpec:
        schema = {
            "type": "object",
            "properties": {"n": {"type": "string"}},
            "required": [],
            "additionalProperties": False,
        }
        return ToolSpec(self.name, "", schema, self.is_read_only)

    def subjects(self, arguments: Arguments) -> tuple[str, ...]:
        return ()

    async def run(self, arguments: Arguments) -> Output:
        self.begun.append(arguments.get("n", ""))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.go.wait()
        finally:
            self.running -= 1
        return Output(f"done {arguments.get('n', '')}")


@dataclass
class Records:
    """Implements CallRecords: what was recorded, in order; `fails_at` names what cannot be."""

    order: list[str] = field(default_factory=list)
    fails_at: str | None = None

    async def started(self, call: ToolCall) -> None:
        self._note(f"started {call.call_id}")

    async def intents(self, call: ToolCall, intents: Sequence[str]) -> None:
        self._note(f"intents {call.call_id} {len(intents)}")

    async def results(self, results: Sequence[ToolResult]) -> None:
        for each in results:
            self._note(f"result {each.call_id}")

    def _note(self, what: str) -> None:
        if self.fails_at is not None and what.startswith(self.fails_at):
            raise SessionWriteError("STORAGE_FULL", "full")
        self.order.append(what)


class Bench:
    """The runs over a real disk, with chosen surroundings."""

    def __init__(self, root: Path) -> None:
        self.work = root / "work"
        self.work.mkdir()
        (root / "staging").mkdir()
        self.disk = Disk(Workspace(self.work), root / "staging", reach=self._reach)
        self.witness = DiskWitness(self.disk, "here")
        self.records = Records()
        self.heard = Heard()
        self.cancel = asyncio.Event()
        self.requests = Requests(self.heard, lambda: f"r{len(self.heard.of('request')) + 1}")
        self.plain: dict[str, PlainTool] = dict(standard_toolbox(self.disk, ENVIRONMENT).plain)

    def _reach(self, point: str) -> None:
        self.records.order.append(point)

    def runs(
        self,
        mode: PermissionMode = PermissionMode.AUTO,
        *,
        pending: Sequence[ToolCall] = (),
        deny: Sequence[str] = (),
        allow: Sequence[str] = (),
    ) -> ToolRuns:
        toolbox = Toolbox(self.plain, standard_toolbox(self.disk, ENVIRONMENT).changes)
        rules = [tuple(parse_rule(text, TOOL_NAMES) for text in texts) for texts in (allow, deny)]
        return ToolRuns(
            toolbox,
            self.disk,
            self.witness,
            Permissions(mode, *rules),
            self.requests,
            self.records,
            self.heard,
            pending=PendingCalls(pending),
        )


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def call(call_id: str, name: str, **arguments: Any) -> ToolCall:
    return ToolCall(call_id, name, json.dumps(arguments))


# --- order -----------------------------------------------------------------------------------------------------------------------------
async def test_at_most_eight_reads_run_at_once_and_results_keep_the_order_of_the_calls(bench: Bench) -> None:
    slow = bench.plain["look"] = Slow("look", is_read_only=True)
    calls = [call(f"c{number}", "look", n=str(number)) for number in range(12)]
    task = asyncio.create_task(bench.runs().run(calls, bench.cancel))
    await until(lambda: slow.running == PARALLEL_MAX)
    slow.go.set()
    results = await task
    assert slow.most == PARALLEL_MAX
    assert [each.call_id for each in results] == [each.call_id for each in calls]
    assert [each.output for each in results] == [f"done {number}" for number in range(12)]


async def test_what_changes_something_runs_alone_between_the_reads_before_and_after_it(bench: Bench) -> None:
    look = bench.plain["look"] = Slow("look", is_read_only=True)
    act = bench.plain["act"] = Slow("act", is_read_only=False)
    look.go.set()
    task = asyncio.create_task(
        bench.runs().run([call("c0", "look"), call("c1", "act"), call("c2", "look")], bench.cancel)
    )
    await until(lambda: act.running)
    assert len(look.begun) == 1
    assert bench.records.order == ["result c0", "started c1"]
    act.go.set()
    await task
    assert bench.records.order[2:] == ["result c1", "result c2"]


async def test_the_intent_is_recorded_before_a_folder_or_a_file_is_touched(bench: Bench) -> None:
    await bench.runs().run([call("c0", "write", path="new/deep/a.txt", content="x")], bench.cancel)
    assert bench.records.order[0] == "intents c0 1"
    assert "before folder" in bench.records.order
    assert bench.records.order[-1] == "result c0"


async def test_without_a_durable_intent_nothing_changes_not_even_a_folder(bench: Bench) -> None:
    bench.records.fails_at = "intents"
    (result,) = await bench.runs().run([call("c0", "write", path="new/a.txt", content="x")], bench.cancel)
    assert result.state is NOT_STARTED
    assert list(bench.work.iterdir()) == []


async def test_identical_content_is_not_written_and_needs_no_intent(bench: Bench) -> None:
    (bench.work / "a.txt").write_text("x")
    (result,) = await bench.runs().run([call("c0", "write", path="a.txt", content="x")], bench.cancel)
    assert result.state is COMPLETED
    assert bench.records.order == ["result c0"]


async def test_several_targets_are_several_intents_on_the_same_call(bench: Bench) -> None:
    for name in "ab":
        (bench.work / name).write_text("x")
    edits = [{"path": name, "old_text": "x", "new_text": "y"} for name in "ab"]
    await bench.runs().run([call("c0", "multi_edit", edits=edits)], bench.cancel)
    assert bench.records.order[0] == "intents c0 2"


async def test_a_file_that_changes_while_the_intent_is_recorded_is_left_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bench.work / "a.txt").write_text("x")

    async def meanwhile(*_: Any) -> None:
        (bench.work / "a.txt").write_text("theirs")

    monkeypatch.setattr(bench.records, "intents", meanwhile)
    (result,) = await bench.runs().run([call("c0", "write", path="a.txt", content="mine")], bench.cancel)
    assert result.is_error
    assert "Nothing was written" in result.output
    assert (bench.work / "a.txt").read_text() == "theirs"


# --- storing ---------------------------------------------------------------------------------------------------------------------------
async def test_when_a_result_cannot_be_stored_no_later_call_starts(bench: Bench) -> None:
    act = bench.plain["act"] = Slow("act", is_read_only=False)
    act.go.set()
    bench.records.fails_at = "result c0"
    with pytest.raises(SessionWriteError):
        await bench.runs().run([call("c0", "act", n="0"), call("c1", "act", n="1")], bench.cancel)
    assert act.begun == ["0"]


async def test_a_call_that_cannot_be_recorded_as_started_does_not_start(bench: Bench) -> None:
    act = bench.plain["act"] = Slow("act", is_read_only=False)
    bench.records.fails_at = "started"
    (result,) = await bench.runs().run([call("c0", "act")], bench.cancel)
    assert (act.begun, result.state) == ([], NOT_STARTED)


# --- cancel ----------------------------------------------------------------------------------------------------------------------------
async def test_of_twelve_reads_the_eight_that_run_are_unknown_and_the_others_never_start(bench: Bench) -> None:
    slow = bench.plain["look"] = Slow("look", is_read_only=True)
    calls = [call(f"c{number}", "look", n=str(number)) for number in range(12)]
    task = asyncio.create_task(bench.runs().run(calls, bench.cancel))
    await until(lambda: slow.running == PARALLEL_MAX)
    bench.cancel.set()
    results = await asyncio.wait_for(task, 5)
    assert [each.state for each in results] == [UNKNOWN] * 8 + [NOT_STARTED] * 4
    assert len(slow.begun) == 8


async def test_a_cancel_interrupts_the_running_call_keeps_earlier_results_and_starts_no_later_one(bench: Bench) -> None:
    act = bench.plain["act"] = Slow("act", is_read_only=False)
    task = asyncio.create_task(
        bench.runs().run(
            [call("c0", "write", path="a", content="x"), call("c1", "act"), call("c2", "act")], bench.cancel
        )
    )
    await until(lambda: act.begun)
    bench.cancel.set()
    results = await asyncio.wait_for(task, 5)
    assert [each.state for each in results] == [COMPLETED, UNKNOWN, NOT_STARTED]
    assert [line for line in bench.records.order if line.startswith("result")] == [
        "result c0",
        "result c1",
        "result c2",
    ]


# --- permissions -----------------------------------------------------------------------------------------------------------------------
async def test_an_asked_call_runs_only_after_it_is_allowed(bench: Bench) -> None:
    task = asyncio.create_task(
        bench.runs(PermissionMode.ASK).run([call("c0", "write", path="a", content="x")], bench.cancel)
    )
    await until(lambda: bench.heard.of("request"))
    (request,) = bench.heard.of("request")
    assert (request["kind"], request["tool"], request["subjects"]) == ("permission", "write", ["a"])
    assert not (bench.work / "a").exists()
    with pytest.raises(RequestNotOpenError):
        bench.requests.answer("another", PermissionAnswer(allow=True))
    with pytest.raises(RequestNotOpenError):
        bench.requests.answer(request["request_id"], QuestionAnswer())
    bench.requests.answer(request["request_id"], PermissionAnswer(allow=True))
    (result,) = await task
    assert result.state is COMPLETED
    assert (bench.work / "a").exists()
    with pytest.raises(RequestNotOpenError):
        bench.requests.answer(request["request_id"], PermissionAnswer(allow=True))


async def test_a_refused_call_never_ran_and_the_model_reads_why(bench: Bench) -> None:
    task = asyncio.create_task(bench.runs(PermissionMode.ASK).run([call("c0", "shell", command="x")], bench.cancel))
    await until(lambda: bench.requests.open_ids)
    bench.requests.answer("r1", PermissionAnswer(allow=False, message="not today"))
    (result,) = await task
    assert result.state is NOT_STARTED
    assert "not today" in result.output
    assert bench.records.order == ["result c0"]


async def test_a_cancel_withdraws_the_open_request(bench: Bench) -> None:
    task = asyncio.create_task(bench.runs(PermissionMode.ASK).run([call("c0", "shell", command="x")], bench.cancel))
    await until(lambda: bench.requests.open_ids)
    bench.cancel.set()
    (result,) = await task
    assert result.state is NOT_STARTED
    assert bench.requests.open_ids == ()
    assert bench.heard.of("request_closed") == [{"type": "request_closed", "request_id": "r1", "how": "withdrawn"}]


async def test_in_deny_mode_nothing_is_changed_and_nobody_is_asked(bench: Bench) -> None:
    (result,) = await bench.runs(PermissionMode.DENY).run([call("c0", "write", path="a", content="x")], bench.cancel)
    assert result.state is NOT_STARTED
    assert bench.heard.of("request") == []
    assert list(bench.work.iterdir()) == []


async def test_a_deny_rule_holds_for_where_a_link_leads(bench: Bench) -> None:
    (bench.work / "secret").mkdir()
    (bench.work / "secret" / "s").write_text("s")
    (bench.work / "link").symlink_to("secret/s")
    for path in ("link", "x/../secret/s", "./secret//s"):
        (bench.work / "x").mkdir(exist_ok=True)
        (result,) = await bench.runs(deny=["read(secret/*)"]).run([call("c0", "read", path=path)], bench.cancel)
        assert result.state is NOT_STARTED, path


# --- repetition ------------------------------------------------------------------------------------------------------------------------
def interrupted(bench: Bench, **arguments: Any) -> ToolCall:
    """A write whose intent was recorded and whose result was not."""
    raw = encode(bench.witness.intent(bench.disk.change(arguments["path"], arguments["content"])))
    return ToolCall("old", "write", json.dumps(arguments), (raw,))


async def test_a_repeated_write_whose_work_is_proved_to_be_there_is_not_written_again(bench: Bench) -> None:
    old = interrupted(bench, path="a", content="x")
    (bench.work / "a").write_text("x")
    before = (bench.work / "a").stat()
    (result,) = await bench.runs(pending=[old]).run([call("c0", "write", content="x", path="a")], bench.cancel)
    assert (result.state, result.is_error) == (COMPLETED, False)
    assert "Nothing was repeated" in result.output
    after = (bench.work / "a").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert bench.records.order == ["result c0"]


@pytest.mark.parametrize("now", [None, "other"])
async def test_a_repeated_write_that_is_not_proved_is_refused_with_the_present_state(
    bench: Bench, now: str | None
) -> None:
    (bench.work / "a").write_text("before")
    old = interrupted(bench, path="a", content="x")
    if now is not None:
        (bench.work / "a").write_text(now)
    text = (bench.work / "a").read_text()
    (result,) = await bench.runs(pending=[old]).run([call("c0", "write", path="a", content="x")], bench.cancel)
    assert result.state is NOT_STARTED
    assert ("conflict" if now else "unchanged") in result.output
    assert (bench.work / "a").read_text() == text


async def test_the_proof_is_made_anew_each_time(bench: Bench) -> None:
    old = interrupted(bench, path="a", content="x")
    runs = bench.runs(pending=[old])
    (bench.work / "a").write_text("x")
    (first,) = await runs.run([call("c0", "write", path="a", content="x")], bench.cancel)
    (bench.work / "a").write_text("changed since")
    (second,) = await runs.run([call("c1", "write", path="a", content="x")], bench.cancel)
    assert (first.state, second.state) == (COMPLETED, NOT_STARTED)


async def test_a_repeated_command_is_refused_and_one_with_other_arguments_runs(bench: Bench) -> None:
    runs = bench.runs(pending=[call("old", "shell", command="echo x >> ledger")])
    (same,) = await runs.run([call("c0", "shell", command="echo x >> ledger")], bench.cancel)
    assert same.state is NOT_STARTED
    assert not (bench.work / "ledger").exists()
    (other,) = await runs.run([call("c1", "shell", command="cat ledger || echo none")], bench.cancel)
    assert other.state is COMPLETED


async def test_a_read_may_always_be_repeated(bench: Bench) -> None:
    (bench.work / "a").write_text("x")
    runs = bench.runs(pending=[call("old", "read", path="a")])
    for number in range(2):
        (result,) = await runs.run([call(f"c{number}", "read", path="a")], bench.cancel)
        assert result.state is COMPLETED


async def test_an_unknown_tool_and_bad_arguments_are_answers_not_faults(bench: Bench) -> None:
    calls = [ToolCall("c0", "fly", "{}"), ToolCall("c1", "read", '{"path":'), ToolCall("c2", "read", '{"path":"../x"}')]
    results = await bench.runs().run(calls, bench.cancel)
    assert [each.is_error for each in results] == [True, True, True]
