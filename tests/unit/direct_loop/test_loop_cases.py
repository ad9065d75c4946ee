"""The failure cases that concern the agent's loop and session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from direct_agent.intents.record import encode
from direct_agent.session.errors import SessionError
from direct_agent.session.records import message_data
from direct_agent.transcript import AssistantMessage, Finish, RunState, ToolCall, ToolResult, UserMessage
from tests.unit.direct_loop.house import SESSION_ID, House
from tests.unit.direct_loop.scripted_model import Goal, ScriptedModel

INPUTS = Path(__file__).parents[2] / "cases" / "inputs"


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


async def test_hist_tool_call_without_result(house: House) -> None:
    """The read keeps its real result, the write is an honest unknown, the target is looked at, and nothing is written again."""
    messages: list[dict[str, Any]] = json.loads((INPUTS / "hist-tool-call-without-result.json").read_text())["messages"]
    read, write = messages[1]["content"]
    path, text = write["input"]["path"], write["input"]["text"]
    goal = Goal.of("write", path=path, content=text)
    calls = (ToolCall(read["id"], "read", '{"path":"note"}'), ToolCall(write["id"], goal.tool, goal.arguments))
    agent = house.agent(ScriptedModel(()))
    intent = encode(agent._witness.intent(house.disk.change(path, text)))
    await agent.session.append(
        ("message", message_data(UserMessage(messages[0]["content"])), "m1"),
        ("message", message_data(AssistantMessage(tool_calls=calls, finish=Finish.TOOL_CALLS)), None),
        ("message", message_data(ToolResult(read["id"], "read", "n", RunState.COMPLETED)), None),
        ("intent", {"call_id": write["id"], "intent": intent}, None),
    )
    (house.work / path).write_text(text)
    stored, inode = agent.session.path.read_bytes(), (house.work / path).stat().st_ino
    agent.session.close()

    model = ScriptedModel(((goal,),))
    again = house.agent(model)
    await again.deliver("m2", "go on")
    results = {each.call_id: each for each in model.asked[0] if isinstance(each, ToolResult)}
    assert (results["toolu_r"].output, results["toolu_r"].state) == ("n", RunState.COMPLETED)
    assert results["toolu_w"].state is RunState.UNKNOWN
    assert "unknown" in results["toolu_w"].output
    assert (house.work / path).stat().st_ino == inode
    assert again.session.path.read_bytes().startswith(stored)


async def test_input_dash_slash_and_large(house: House) -> None:
    given = json.loads((INPUTS / "input-dash-slash-and-large.json").read_text())
    texts = [*given["messages"], given["generated"]["repeat"] * given["generated"]["count"]]
    model = ScriptedModel(())
    agent = house.agent(model)
    for number, text in enumerate(texts):
        await agent.deliver(f"m{number}", text)
    agent.session.close()
    for transcript in (model.asked[-1], house.agent(model).session.history.transcript):
        assert [each.text for each in transcript if isinstance(each, UserMessage)] == texts


async def test_file_glued_records(house: House) -> None:
    """The line is named, the file is left as it is, and the session is not opened."""
    agent = house.agent(ScriptedModel(()))
    for number in range(2):
        await agent.deliver(f"m{number}", "hello")
    agent.session.close()
    lines = agent.session.path.read_bytes().splitlines(keepends=True)
    glued = b"".join([*lines[:2], lines[2].rstrip(b"\n") + lines[3], *lines[4:]])
    agent.session.path.write_bytes(glued)
    with pytest.raises(SessionError, match="line 3") as refused:
        house.folder.open(SESSION_ID)
    assert refused.value.cause == "SESSION_DAMAGED"
    assert agent.session.path.read_bytes() == glued
