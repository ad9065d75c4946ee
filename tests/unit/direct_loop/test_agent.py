"""One agent on one session: each message once, one at a time; cancel, steer, questions, compaction, agreements."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from direct_agent.instructions import AgreementsFile, system_text
from direct_agent.loop.agent import Agent, BusyError, CompactionError, Known
from direct_agent.loop.ports import Accepted, NotAnswered, Past, RoundOutcome
from direct_agent.loop.requests import QuestionAnswer
from direct_agent.loop.turn import End, Outcome
from direct_agent.ports import Cancellation
from direct_agent.session import journal as journal_module
from direct_agent.transcript import (
    AssistantMessage,
    Finish,
    RunState,
    ToolCall,
    ToolResult,
    Transcript,
    Usage,
    UserMessage,
)
from tests.unit.direct_loop.house import House, until
from tests.unit.direct_loop.scripted_model import Goal, ScriptedModel

COMPLETED = End(Outcome.COMPLETED)
CANCELLED = End(Outcome.CANCELLED, "cancelled")


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def persons(transcript: Transcript) -> list[str]:
    return [each.text for each in transcript if isinstance(each, UserMessage) and not each.is_host]


def results(agent: Agent) -> list[ToolResult]:
    return [each for each in agent.session.history.transcript if isinstance(each, ToolResult)]


# --- delivery ------------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("text", ["/compact", "--help", " \n ", "", "a\x00\ud800b", "@file ☃ \u2028"])
async def test_the_text_is_stored_and_asked_as_it_is(house: House, text: str) -> None:
    model = ScriptedModel(())
    agent = house.agent(model)
    await agent.deliver("m1", text)
    assert persons(model.asked[0]) == [text]
    agent.session.close()
    assert persons(house.agent(model).session.history.transcript) == [text]


async def test_a_message_id_is_delivered_once_also_after_a_reload(house: House) -> None:
    model = ScriptedModel(())
    agent = house.agent(model)
    assert agent.known("m1") is None
    assert await agent.deliver("m1", "hello") == COMPLETED
    assert await agent.deliver("m1", "another text") == Known("completed")
    agent.session.close()
    again = house.agent(model)
    assert await again.deliver("m1", "hello") == Known("completed")
    assert len(model.asked) == 1


async def test_one_message_at_a_time(house: House) -> None:
    go = asyncio.Event()
    agent = house.agent(Waiting(go))
    first = asyncio.create_task(agent.deliver("m1", "one"))
    await until(lambda: agent.is_busy)
    with pytest.raises(BusyError):
        await agent.deliver("m2", "two")
    with pytest.raises(BusyError):
        await agent.compact(asyncio.Event())
    go.set()
    assert await first == COMPLETED
    assert await agent.deliver("m2", "two") == COMPLETED


async def test_accepted_is_said_when_the_message_is_on_disk_and_the_end_when_it_is(house: House) -> None:
    on_disk: list[tuple[str, bool]] = []

    def look(event: Mapping[str, Any]) -> None:
        if event["type"] in ("accepted", "assistant", "turn_end"):
            wanted = {"accepted": b'"m1"', "assistant": b"all done", "turn_end": b'"completed"'}[event["type"]]
            on_disk.append((event["type"], wanted in agent.session.path.read_bytes()))

    house.heard.on_event = look
    agent = house.agent(ScriptedModel(()))
    await agent.deliver("m1", "hello")
    assert on_disk == [("accepted", True), ("assistant", True), ("turn_end", True)]


async def test_usage_is_summed_over_the_rounds_and_unknown_stays_unknown(house: House) -> None:
    agent = house.agent(ScriptedModel(((Goal.of("list"),),)))
    await agent.deliver("m1", "hello")
    (end,) = house.heard.of("turn_end")
    assert (
        end["usage"] | {"requests": 2, "input_tokens": 20, "output_tokens": 4, "reasoning_tokens": None} == end["usage"]
    )


# --- cancel and steer ----------------------------------------------------------------------------------------------------------------
class Waiting:
    """A model that answers when it is let go or cancelled. Implements Rounds."""

    def __init__(self, go: asyncio.Event, answer: AssistantMessage | None = None) -> None:
        self._go = go
        self._answer = answer or AssistantMessage("late")
        self.asked: list[Transcript] = []

    def begin_turn(self) -> None:
        pass

    def taken_summary(self) -> str | None:
        return None

    async def ask(self, transcript: Transcript, instructions: str, cancel: Cancellation, past: Past) -> RoundOutcome:
        self.asked.append(transcript)
        waits = [asyncio.ensure_future(self._go.wait()), asyncio.ensure_future(cancel.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        # A complete answer that arrives together with the cancel: the turn must not take it.
        return Accepted(self._answer, Usage(request_count=1))

    async def ask_aside(self, transcript: Transcript, instructions: str, cancel: Cancellation) -> RoundOutcome:
        return NotAnswered("headers", "503", Usage(request_count=4), 503)


async def test_a_complete_answer_that_comes_with_a_cancel_runs_nothing_and_is_not_stored(house: House) -> None:
    calling = AssistantMessage(tool_calls=(ToolCall("c1", "shell", '{"command":"touch x"}'),), finish=Finish.TOOL_CALLS)
    agent = house.agent(Waiting(asyncio.Event(), calling))
    task = asyncio.create_task(agent.deliver("m1", "go"))
    await until(lambda: house.heard.of("accepted"))
    assert agent.cancel()
    assert await asyncio.wait_for(task, 5) == CANCELLED
    assert not (house.work / "x").exists()
    assert persons(agent.session.history.transcript) == ["go"]
    assert len(agent.session.history.transcript) == 1
    assert not agent.cancel()


async def test_a_cancel_that_comes_before_the_message_is_stored_is_not_lost(house: House) -> None:
    model = ScriptedModel(())
    agent = house.agent(model)
    task = asyncio.create_task(agent.deliver("m1", "go"))
    await asyncio.sleep(0)
    assert agent.cancel()
    assert await asyncio.wait_for(task, 5) == CANCELLED
    assert model.asked == []


async def test_a_cancelled_command_is_unknown_in_the_next_turn_and_is_not_repeated_there(house: House) -> None:
    command = "echo x >> ledger; sleep 30"
    model = ScriptedModel(((Goal.of("shell", command=command),),))
    agent = house.agent(model)
    task = asyncio.create_task(agent.deliver("m1", "go"))
    await until(lambda: (house.work / "ledger").exists())
    agent.cancel()
    assert await asyncio.wait_for(task, 10) == CANCELLED
    assert [each.state for each in results(agent)] == [RunState.UNKNOWN]
    assert await asyncio.wait_for(agent.deliver("m2", "go on"), 10) == COMPLETED
    assert (house.work / "ledger").read_text() == "x\n"
    assert model.pasts[-1].has_unknown, "it may not wait for a provider meanwhile"
    facts = [each.text for each in model.asked[-1] if isinstance(each, UserMessage) and each.is_host]
    assert "unknown_outcome_tools: shell" in facts[0]
    await agent.deliver("m3", "and now")
    assert not model.pasts[-1].has_unknown, "a completed turn has dealt with it"


async def test_a_steering_text_reaches_the_model_in_the_same_turn_and_counts_as_delivered(house: House) -> None:
    go = asyncio.Event()
    model = Waiting(go)
    agent = house.agent(model)
    task = asyncio.create_task(agent.deliver("m1", "one"))
    await until(lambda: model.asked)
    assert agent.steer("m2", "and this")
    go.set()
    assert await task == COMPLETED
    assert persons(model.asked[-1]) == ["one", "and this"]
    assert agent.known("m2") == Known("completed")
    assert list(agent.session.history.turns) == ["m1"]
    assert not agent.steer("m3", "too late")


# --- questions -----------------------------------------------------------------------------------------------------------------------
async def test_a_question_is_asked_and_its_answer_reaches_the_model(house: House) -> None:
    goal = Goal.of("ask", questions=[{"text": "Which?", "options": ["a", "b"]}])
    agent = house.agent(ScriptedModel(((goal,),)))
    task = asyncio.create_task(agent.deliver("m1", "go"))
    await until(lambda: house.heard.of("request"))
    (request,) = house.heard.of("request")
    assert (request["kind"], request["questions"][0]["options"]) == ("question", ["a", "b"])
    agent.answer(request["request_id"], QuestionAnswer((("b",),)))
    assert await task == COMPLETED
    (answered,) = results(agent)
    assert json.loads(answered.output) == [{"question": "Which?", "answer": ["b"]}]


async def test_a_question_that_nobody_answers_is_said_so(house: House) -> None:
    agent = house.agent(ScriptedModel(((Goal.of("ask", questions=[{"text": "Which?"}]),),)))
    task = asyncio.create_task(agent.deliver("m1", "go"))
    await until(lambda: house.heard.of("request"))
    agent.answer(house.heard.of("request")[0]["request_id"], QuestionAnswer(refused="nobody is there"))
    assert await task == COMPLETED
    assert results(agent)[0].is_error
    assert "nobody is there" in results(agent)[0].output


# --- failures ------------------------------------------------------------------------------------------------------------------------
async def test_a_round_that_fails_ends_the_turn_with_its_class_and_the_next_turn_runs(house: House) -> None:
    class Broke(ScriptedModel):
        async def ask(
            self, transcript: Transcript, instructions: str, cancel: Cancellation, past: Past
        ) -> RoundOutcome:
            if len(persons(transcript)) == 1:
                return NotAnswered("quota", "the quota is used up", Usage(request_count=1, is_unknown=True), 429)
            return await super().ask(transcript, instructions, cancel, past)

    agent = house.agent(Broke(()))
    assert await agent.deliver("m1", "go") == End(Outcome.FAILED, "quota", "the quota is used up", 429)
    (end,) = house.heard.of("turn_end")
    assert (end["outcome"], end["status"], end["usage"]["is_unknown"]) == ("failed", 429, True)
    assert await agent.deliver("m2", "go on") == COMPLETED


async def test_without_space_nothing_runs_and_the_end_says_so(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    model = ScriptedModel(((Goal.of("shell", command="touch x"),),))
    agent = house.agent(model)
    real = journal_module._write_all

    def full_at_the_answer(fd: int, content: bytes, *more: Any) -> None:
        if b'"assistant"' in content:
            os.write(fd, content[:7])
            raise OSError(errno.ENOSPC, "no space")
        real(fd, content, *more)

    monkeypatch.setattr(journal_module, "_write_all", full_at_the_answer)
    end = await agent.deliver("m1", "go")
    assert isinstance(end, End)
    assert (end.outcome, end.reason) == (Outcome.FAILED, "STORAGE_FULL")
    assert not (house.work / "x").exists()
    monkeypatch.setattr(journal_module, "_write_all", real)
    assert await agent.deliver("m2", "go on") == COMPLETED
    assert (house.work / "x").exists()


# --- compaction ----------------------------------------------------------------------------------------------------------------------
async def test_a_compaction_keeps_the_tail_and_what_was_delivered(house: House) -> None:
    model = ScriptedModel(())
    agent = house.agent(model, agreements=lambda: "never touch prod")
    for number in range(4):
        await agent.deliver(f"m{number}", f"text {number}")
    before = agent.session.path.read_bytes()
    assert await agent.compact(asyncio.Event()) is not None
    assert agent.session.path.read_bytes().startswith(before)
    await agent.deliver("m4", "text 4")
    asked = model.asked[-1]
    assert persons(asked) == ["text 2", "text 3", "text 4"]
    assert isinstance(asked[0], UserMessage)
    assert asked[0].is_host
    assert "what was done so far" in asked[0].text
    assert agent.known("m0") == Known("completed")
    assert agent.session.history.agreements == "never touch prod"


async def test_a_compaction_without_a_summary_changes_nothing(house: House) -> None:
    go = asyncio.Event()
    go.set()
    agent = house.agent(Waiting(go))
    for number in range(3):
        await agent.deliver(f"m{number}", "x")
    before = agent.session.path.read_bytes()
    with pytest.raises(CompactionError):
        await agent.compact(asyncio.Event())
    assert agent.session.path.read_bytes() == before


async def test_what_is_short_is_not_compacted(house: House) -> None:
    agent = house.agent(ScriptedModel(()))
    await agent.deliver("m0", "x")
    assert await agent.compact(asyncio.Event()) is None


# --- agreements ----------------------------------------------------------------------------------------------------------------------
def test_agreements_are_read_anew_and_go_in_verbatim(tmp_path: Path) -> None:
    file = AgreementsFile(tmp_path / "agreements.md")
    assert file.read() is None
    plain = system_text(Path("/w"), file.read())
    assert "agreements" not in plain
    for rules in ("never touch prod\n", "at most 20 %: {x} <b>"):
        (tmp_path / "agreements.md").write_text(rules)
        assert rules in system_text(Path("/w"), file.read())
    assert system_text(Path("/w"), None) == plain
