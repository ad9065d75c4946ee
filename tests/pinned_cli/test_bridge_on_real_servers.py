"""The bridge's rules with the pinned servers themselves: a recorded stream proves only that it is read right."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from deploy.release.npm_package import unpacked_member
from deploy.release.pins import chosen_pins
from standfast_lab.provider import LabProvider
from tests.conftest import CACHE
from tests.pinned_cli.bridge_desk import BridgeDesk, end_of, is_gone, texts_of

pytestmark = [pytest.mark.full, pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]
BASH = '[[lab:tool=bash {"command":"echo from-a-tool; env | grep -c SERVER_PASSWORD","description":"say"}]] act'


@pytest.fixture(scope="module", params=["opencode", "kilo"])
def agent(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def executable(agent: str) -> Path:
    return unpacked_member(chosen_pins([agent])[0], CACHE)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lab() -> AsyncIterator[LabProvider]:
    async with LabProvider() as provider:
        yield provider


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def asking(
    agent: str, executable: Path, lab: LabProvider, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[BridgeDesk]:
    """A bridge in mode `ask` with an open session, shared by the module's tests."""
    folder = tmp_path_factory.mktemp("desk")
    async with BridgeDesk(agent, executable, folder, lab.base_url, "ask") as desk:
        assert (await desk.open())["ev"] == "opened"
        yield desk


def answer(desk: BridgeDesk, *, allow: bool) -> Any:
    return lambda ask: desk.write("permission", id=ask["id"], allow=allow, message="not now")


async def test_a_permission_goes_to_the_client_and_the_tool_never_sees_the_servers_secret(asking: BridgeDesk) -> None:
    lines = await asking.turn(BASH, answer(asking, allow=True))
    assert end_of(lines) == ("completed", None)
    (result,) = [line["text"] for line in lines if line["ev"] == "tool_result"]
    assert result.split() == ["from-a-tool", "0"]
    assert [line["how"] for line in lines if line["ev"] == "asked"] == ["allowed"]


async def test_a_refused_permission_is_told_to_the_model(asking: BridgeDesk) -> None:
    lines = await asking.turn(BASH, answer(asking, allow=False))
    (result,) = [line for line in lines if line["ev"] == "tool_result"]
    assert result["is_error"]
    assert "not now" in result["text"]
    assert [line["how"] for line in lines if line["ev"] == "asked"] == ["denied"]


async def test_a_question_is_answered_one_to_one_and_wrong_numbers_are_refused(asking: BridgeDesk) -> None:
    question = {"question": "Which?", "header": "Pick", "options": [{"label": "A", "description": "a"}]}
    words = "[[lab:tool=question " + json.dumps({"questions": [question, question]}) + "]] ask"
    asked = 0

    def reply(ask: dict[str, Any]) -> None:
        nonlocal asked
        asked += 1
        asking.write("answers", id=ask["id"], answers=[["A"]])
        asking.write("answers", id=ask["id"], answers=[["A"], ["free text"]])

    lines = await asking.turn(words, reply)
    assert end_of(lines) == ("completed", None)
    assert asked == 1
    assert [line["cause"] for line in lines if line["ev"] == "refused"] == ["ANSWER_SHAPE"]
    (result,) = [line["text"] for line in lines if line["ev"] == "tool_result"]
    assert '"A"' in result
    assert "free text" in result


async def test_an_abort_with_a_permission_open_cancels_and_the_next_turn_is_clean(asking: BridgeDesk) -> None:
    lines = await asking.turn(BASH, lambda ask: asking.write("abort", id="a"))
    assert end_of(lines)[0] == "cancelled"
    assert [line["how"] for line in lines if line["ev"] == "asked"] == ["gone"]
    after = await asking.turn("remember: the word is plum")
    assert (end_of(after), texts_of(after)) == (("completed", None), ["noted: plum"])


async def test_an_abort_while_streaming_cancels_and_a_second_prompt_is_refused_meanwhile(asking: BridgeDesk) -> None:
    await asking.turn("remember: the colour is blue")
    start = await asking.prompt("[[lab:slow=200x100ms]] talk")
    await asking.until(lambda line: line["ev"] == "delta", start)
    second = await asking.prompt("me too")
    refused = await asking.until(lambda line: line["ev"] == "refused", second)
    assert refused["cause"] == "TURN_RUNNING"
    asking.write("abort", id="a")
    settled = await asking.until(lambda line: line["ev"] == "settled", start)
    assert (settled["outcome"], settled["id"]) == ("cancelled", f"message-{asking._turns - 1}")
    after = await asking.turn("what is the colour?")
    assert texts_of(after) == ["the colour is blue"]


async def test_failures_are_judged_by_what_the_server_keeps(asking: BridgeDesk, agent: str) -> None:
    await asking.turn("remember: the number is seven")
    refused = await asking.turn("[[lab:status=401]] a")
    assert (end_of(refused)[0], refused[-1]["status"]) == ("failed", 401)
    cut = await asking.turn("[[lab:end=mid-text]] b")
    assert end_of(cut) == ("failed", "STREAM_CUT")
    short = await asking.turn("[[lab:max_tokens]] c")
    assert end_of(short) == ("failed", "OUTPUT_LENGTH")
    after = await asking.turn("what is the number?")
    assert (end_of(after), texts_of(after)) == (("completed", None), ["the number is seven"])


async def test_a_child_is_answered_for_and_its_text_is_not_the_roots(asking: BridgeDesk) -> None:
    task = {"description": "child", "prompt": BASH, "subagent_type": "general"}
    lines = await asking.turn(f"[[lab:tool=task {json.dumps(task)}]] delegate", answer(asking, allow=True))
    assert end_of(lines) == ("completed", None)
    (ask,) = [line for line in lines if line["ev"] == "ask"]
    assert ask["session"] != lines[-1]["session"]
    assert ask["parent"] in {line["call"] for line in lines if line["ev"] == "tool" and line["parent"] is None}
    assert {line["parent"] for line in lines if line["ev"] == "tool_result" and line["session"] == ask["session"]} == {
        ask["parent"]
    }


async def test_a_session_is_resumed_by_id_and_directory_or_not_at_all_and_a_lost_server_breaks_the_turn(
    asking: BridgeDesk, agent: str, executable: Path, lab: LabProvider
) -> None:
    opened = next(line for line in asking.lines if line["ev"] == "opened")
    (server,) = asking.servers()
    assert await asking.close() == 0
    assert is_gone(server), "the server outlived its bridge"
    folder = asking._folder
    async with BridgeDesk(agent, executable, folder, lab.base_url) as elsewhere:
        refused = await elsewhere.open("ses_0000000000000000000000000a")
        assert (refused["ev"], refused["cause"]) == ("refused", "NO_SUCH_SESSION")
    async with BridgeDesk(agent, executable, folder, lab.base_url) as again:
        resumed = await again.open(opened["session"])
        assert (resumed["session"], resumed["is_new"]) == (opened["session"], False)
        assert resumed["messages"] > 0
        assert texts_of(await again.turn("what is the word?")) == ["the word is plum"]
        start = await again.prompt("[[lab:slow=200x100ms]] talk")
        await again.until(lambda line: line["ev"] == "delta", start)
        (server,) = again.servers()
        os.kill(server, signal.SIGKILL)
        broken = await again.until(lambda line: line["ev"] in ("broken", "settled"), start)
        assert (broken["ev"], broken["cause"]) == ("broken", "SUBSCRIPTION_LOST")
        assert await again.process.wait() != 0
