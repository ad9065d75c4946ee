"""The whole agent on a real session against a scripted provider, in each protocol: six turns with a reload, and a crash between
a write and its stored result.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest

from direct_agent.adapters.http_transport import HttpTransport
from direct_agent.core.endpoint import Endpoint, EndpointKind, Thinking, Wire
from direct_agent.intents.record import decode
from direct_agent.loop.agent import Agent
from direct_agent.loop.provider_rounds import ProviderRounds
from direct_agent.loop.turn import End, Outcome
from direct_agent.session.session import Session
from direct_agent.tools.disk import Disk
from direct_agent.tools.port import Arguments, Change, ChangeTool, Output, PlainTool, ToolSpec
from direct_agent.tools.toolbox import Toolbox
from direct_agent.transcript import AssistantMessage, RunState, ToolResult, UserMessage
from standfast_lab.recovery import answers
from standfast_lab.recovery.hand_clock import HandClock
from standfast_lab.recovery.scripted_server import ScriptedServer, Step
from tests.unit.direct_loop.house import House

TURNS = 6
WIRES = list(Wire)
SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}


class Killed(BaseException):
    """Stands for the end of the process: nothing of ours handles it."""


@dataclass
class Echo:
    """Implements PlainTool; counts."""

    executions: int = 0
    spec: ClassVar[ToolSpec] = ToolSpec("echo", "Says the text again.", SCHEMA, is_read_only=False)

    def subjects(self, arguments: Arguments) -> tuple[str, ...]:
        return ()

    async def run(self, arguments: Arguments) -> Output:
        self.executions += 1
        return Output(f"echoed: {arguments['text']}")


@dataclass
class EchoToFile:
    """Implements ChangeTool: the same call writes a file, in a folder that is not there yet."""

    disk: Disk
    spec: ClassVar[ToolSpec] = ToolSpec("echo", "Writes the text to a file.", SCHEMA, is_read_only=False)

    def subjects(self, arguments: Arguments) -> tuple[str, ...]:
        return ("new/a.txt",)

    def plan(self, arguments: Arguments) -> tuple[Change, ...]:
        return (self.disk.change("new/a.txt", arguments["text"]),)

    def report(self, changes: tuple[Change, ...]) -> str:
        return "written"


def opened(
    house: House,
    endpoint: Endpoint,
    transport: HttpTransport,
    *,
    plain: dict[str, PlainTool] | None = None,
    changes: dict[str, ChangeTool] | None = None,
) -> Agent:
    session = house.session()
    made: list[Agent] = []
    rounds = ProviderRounds(endpoint, session, transport, HandClock(), house.heard, lambda: made[0].toolbox.specs)
    made.append(house.agent(rounds, session=session, toolbox=Toolbox(plain or {}, changes or {})))
    return made[0]


def endpoint_of(wire: Wire, base_url: str, model: str = "deepseek-v4-flash") -> Endpoint:
    return Endpoint(wire, EndpointKind.STRICT_DEEPSEEK, base_url, model, Thinking.ON, name="lab")


def history_of(wire: Wire, body: dict[str, Any]) -> list[Any]:
    found: list[Any] = body["input" if wire is Wire.RESPONSES else "messages"]
    return found


@pytest.mark.parametrize("model", ["deepseek-v4-flash", "deepseek-v4-pro"])
@pytest.mark.parametrize("wire", WIRES)
async def test_six_turns_with_a_reload_keep_history_tools_and_settings_byte_for_byte(
    tmp_path: Path, wire: Wire, model: str
) -> None:
    steps = [
        Step(body)
        for turn in range(TURNS)
        for body in (answers.tool(wire, f"call_{turn}"), answers.text(wire, f"answer {turn}"))
    ]
    echo = Echo()
    async with ScriptedServer(steps) as server, HttpTransport() as transport:
        endpoint = endpoint_of(wire, server.base_url, model)
        agent = opened(House(tmp_path), endpoint, transport, plain={"echo": echo})
        for turn in range(TURNS):
            if turn == TURNS // 2:
                agent.session.close()
                agent = opened(House(tmp_path), endpoint, transport, plain={"echo": echo})
            end = await agent.deliver(f"m{turn}", f"question {turn}")
            assert end == End(Outcome.COMPLETED)
        agent.session.close()
        bodies = [heard.body for heard in server.heard]
    assert (len(bodies), echo.executions) == (2 * TURNS, TURNS)
    for before, after in pairwise(bodies):
        assert _is_continued(wire, before, after)


def _is_continued(wire: Wire, before: bytes, after: bytes) -> bool:
    """The same bytes, but for what was added at the end of the history."""
    earlier, later = json.loads(before), json.loads(after)
    old, new = history_of(wire, earlier), history_of(wire, later)
    if new[: len(old)] != old or len(new) <= len(old):
        return False
    name = "input" if wire is Wire.RESPONSES else "messages"
    shortened = json.dumps({**later, name: new[: len(old)]}, ensure_ascii=False, separators=(",", ":")).encode()
    return shortened == before


@pytest.mark.parametrize("wire", WIRES)
async def test_a_crash_between_write_and_result_leaves_one_intent_one_write_and_an_honest_unknown(
    tmp_path: Path, wire: Wire
) -> None:
    steps = [
        Step(answers.tool(wire, "call_1")),
        Step(answers.tool(wire, "call_2")),
        Step(answers.text(wire, "it is there")),
    ]
    writes: list[str] = []

    def killing(point: str) -> None:
        writes.append(point)
        if point == "written":
            raise Killed

    async with ScriptedServer(steps) as server, HttpTransport() as transport:
        endpoint = endpoint_of(wire, server.base_url)
        house = House(tmp_path, killing)
        agent = opened(house, endpoint, transport, changes={"echo": EchoToFile(house.disk)})
        with pytest.raises(Killed):
            await agent.deliver("m1", "write it")
        agent.session.close()
        file = house.work / "new" / "a.txt"
        assert file.read_text() == "hi"
        inode = file.stat().st_ino

        writes.clear()
        house = House(tmp_path, writes.append)
        agent = opened(house, endpoint, transport, changes={"echo": EchoToFile(house.disk)})
        call, results = _call_and_results(agent.session, "call_1")
        assert len(call.tool_calls[0].intents) == 1
        assert results == []
        assert await agent.deliver("m2", "go on") == End(Outcome.COMPLETED)
        _, results = _call_and_results(agent.session, "call_1")
        _, repeated = _call_and_results(agent.session, "call_2")
        agent.session.close()
    assert [each.state for each in results] == [RunState.UNKNOWN]
    assert [(each.state, each.is_error) for each in repeated] == [(RunState.COMPLETED, False)]
    assert "renamed" not in writes
    assert file.stat().st_ino == inode
    _no_intent_was_sent([heard.body for heard in server.heard], call)
    assert b"Postcondition satisfied, do not repeat" in server.heard[1].body
    assert b"outcome of this call is unknown" in server.heard[1].body


def _call_and_results(session: Session, call_id: str) -> tuple[AssistantMessage, list[ToolResult]]:
    transcript = session.history.transcript
    (call,) = (
        each
        for each in transcript
        if isinstance(each, AssistantMessage) and [call.call_id for call in each.tool_calls] == [call_id]
    )
    return call, [each for each in transcript if isinstance(each, ToolResult) and each.call_id == call_id]


def _no_intent_was_sent(bodies: Sequence[bytes], call: AssistantMessage) -> None:
    intent = decode(call.tool_calls[0].intents[0])
    assert intent is not None
    for body in bodies:
        assert intent.after.encode() not in body
        assert b"resolved_path" not in body


@pytest.mark.parametrize("wire", WIRES)
async def test_an_intent_of_a_later_version_survives_and_is_never_sent(tmp_path: Path, wire: Wire) -> None:
    steps = [Step(answers.tool(wire, "call_1")), Step(answers.text(wire)), Step(answers.text(wire))]
    raw = '{"version":99,"future":"unheard"}'
    async with ScriptedServer(steps) as server, HttpTransport() as transport:
        endpoint = endpoint_of(wire, server.base_url)
        agent = opened(House(tmp_path), endpoint, transport, plain={"echo": Echo()})
        await agent.deliver("m1", "go")
        await agent.session.append(("intent", {"call_id": "call_1", "intent": raw}, None))
        agent.session.close()
        agent = opened(House(tmp_path), endpoint, transport, plain={"echo": Echo()})
        call, _ = _call_and_results(agent.session, "call_1")
        assert call.tool_calls[0].intents == (raw,)
        await agent.deliver("m2", "more")
        agent.session.close()
    assert b"unheard" in agent.session.path.read_bytes()
    assert all(b"unheard" not in heard.body for heard in server.heard)


@pytest.mark.parametrize("wire", WIRES)
async def test_a_repair_is_kept_with_the_session_and_holds_after_a_reload(tmp_path: Path, wire: Wire) -> None:
    """Tool, refusal, repaired answer, a turn after a reload: four requests, one execution, and the last has no old call."""
    steps = [
        Step(answers.tool(wire, "call_1")),
        answers.replay_refusal(wire),
        Step(answers.text(wire, "recovered")),
        Step(answers.text(wire, "plain")),
    ]
    echo = Echo()
    async with ScriptedServer(steps) as server, HttpTransport() as transport:
        endpoint = endpoint_of(wire, server.base_url)
        agent = opened(House(tmp_path), endpoint, transport, plain={"echo": echo})
        assert await agent.deliver("m1", "go") == End(Outcome.COMPLETED)
        agent.session.close()
        agent = opened(House(tmp_path), endpoint, transport, plain={"echo": echo})
        assert agent.session.history.repairs
        assert await agent.deliver("m2", "more") == End(Outcome.COMPLETED)
        stored = agent.session.history.transcript
        agent.session.close()
    assert (len(server.heard), echo.executions) == (4, 1)
    last = server.heard[3].body
    assert b"echoed: hi" in last
    assert b'"call_id":"call_1"' not in last.replace(b'tool_call_id\\":\\"call_1', b"")
    assert any(isinstance(each, AssistantMessage) and each.tool_calls for each in stored), (
        "what is stored is not repaired"
    )
    assert [each.text for each in stored if isinstance(each, UserMessage)] == ["go", "more"]
