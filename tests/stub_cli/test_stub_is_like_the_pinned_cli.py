"""What the scenarios and the kill matrix rest on, tried on the stub and on Claude Code 2.1.220 by the same tests."""

from __future__ import annotations

import signal
import subprocess
import uuid

import pytest

from standfast_lab.bare_claude import BareTurn, transcript_path
from standfast_lab.claude_texts import is_added
from standfast_lab.provider import Row
from tests.pinned_cli.desk import Desk, tool_results


def said(row: Row) -> list[tuple[str, str]]:
    """What user and assistant said in a request."""
    return [(m["role"], text) for m in row["messages"] for text in m["texts"] if not is_added(m["role"], text)]


def shape(turn: BareTurn) -> list[str]:
    """The kinds of a turn's events in order, what only the real program prints apart."""
    kinds = []
    for event in turn.events:
        names = ("type",) if event["type"] == "result" else ("type", "subtype", "state")
        kind = "/".join(str(event[name]) for name in names if name in event)
        if kind not in ("system/status", "rate_limit_event", "system/thinking_tokens"):
            kinds.append(kind)
    return kinds


async def test_two_turns_in_one_process_have_their_events_in_order(desk: Desk) -> None:
    async with desk.start() as claude:
        first = await desk.ask(claude, "remember: the colour is green")
        second = await desk.ask(claude, "what is the colour?")
        assert await claude.close() == 0
    for turn in (first, second):
        assert shape(turn) == [
            "command_lifecycle/queued",
            "command_lifecycle/started",
            "system/init",
            "assistant",
            "result",
            "command_lifecycle/completed",
        ]
    assert second.texts == ("the colour is green",)
    assert desk.verdict().is_complete


async def test_a_resume_sends_the_whole_history(desk: Desk) -> None:
    async with desk.start() as claude:
        await desk.ask(claude, "remember: the colour is green")
        await claude.close()
    turn = await desk.resumed("what is the colour?")
    assert turn.texts == ("the colour is green",)
    assert desk.verdict().is_complete
    kinds = [record["type"] for record in desk.records()]
    assert kinds[:6] == ["queue-operation", "queue-operation", "user", "attachment", "attachment", "assistant"]
    assert "last-prompt" in kinds


async def test_the_handshake_is_answered_on_a_resume_and_refused_for_a_missing_session(desk: Desk) -> None:
    async with desk.start() as claude:
        await desk.ask(claude, "hello")
        await claude.close()
    async with desk.start(is_resume=True) as claude:
        answer = await claude.control("initialize")
        assert "commands" in answer["response"]["response"]
        assert await claude.close() == 0
    desk.session_id = str(uuid.uuid4())
    async with desk.start(is_resume=True) as claude:
        event = await claude.until(lambda e: e["type"] == "result")
        assert event["is_error"]
        assert event["errors"] == [f"No conversation found with session ID: {desk.session_id}"]
        assert await claude.close() == 1


@pytest.mark.parametrize("status", [400, 403])
async def test_a_refusing_status_ends_the_turn_and_not_the_process(desk: Desk, status: int) -> None:
    async with desk.start() as claude:
        failed = await desk.ask(claude, f"one [[lab:status={status}]]")
        good = await desk.ask(claude, "two")
        await claude.close()
    assert failed.result is not None
    assert (failed.result["is_error"], failed.result["subtype"]) == (True, "success")
    assert (failed.result["terminal_reason"], failed.result["api_error_status"]) == ("api_error", status)
    assert failed.events[-1]["state"] == "cancelled"
    assert len(desk.roots()) == 2
    assert good.result is not None
    assert not good.result["is_error"]
    told_of = {e["uuid"] for e in [*failed.of("assistant"), *good.of("assistant")]}
    assert told_of <= {record.get("uuid") for record in desk.records()}
    turn = await desk.resumed()
    assert turn.texts == ("count: 3",)


async def test_a_turn_after_a_retry_in_the_same_process_loses_the_reply_on_resume(desk: Desk) -> None:
    async with desk.start() as claude:
        retried = await desk.ask(claude, "one [[lab:status=500 times=1]]")
        assert retried.of("system", "api_retry")
        await desk.ask(claude, "two")
        await claude.close()
    await desk.resumed("three")
    assert not desk.verdict().is_complete
    assert [text for role, text in said(desk.roots()[-1]) if role == "user"][-1] == "three"


async def test_a_process_that_leaves_after_a_retry_keeps_the_reply(desk: Desk) -> None:
    async with desk.start() as claude:
        await desk.ask(claude, "one [[lab:status=529 times=1]]")
        assert await claude.close() == 0
    await desk.resumed("two")
    assert desk.verdict().is_complete


async def test_a_kill_at_the_result_loses_the_reply(desk: Desk) -> None:
    async with desk.start() as claude:
        await desk.ask(claude, "one")
        await claude.close()
    async with desk.start(is_resume=True) as claude:
        turn = await claude.send("two")
        await claude.until(lambda e: e["type"] == "result", turn)
        await claude.end(signal.SIGKILL)
    await desk.resumed("three")
    assert all(role != "assistant" or "two" not in text for role, text in said(desk.roots()[-1]))


async def test_an_interrupt_ends_the_stream_and_keeps_the_session(desk: Desk) -> None:
    flags = ("--include-partial-messages",)
    async with desk.start(flags=flags) as claude:
        turn = await claude.send("one [[lab:hang=mid-text]]")
        await claude.until(lambda e: e["type"] == "stream_event" and e["event"]["type"] == "content_block_delta", turn)
        answer = await claude.control("interrupt")
        assert answer["response"]["response"] == {"still_queued": []}
        result = await claude.until(lambda e: e["type"] == "result", turn)
        assert (result["is_error"], result["terminal_reason"]) == (True, "aborted_streaming")
        await claude.until(lambda e: e["type"] == "command_lifecycle" and e["state"] == "cancelled", turn)
        good = await claude.ask("two")
        assert good.result is not None
        assert not good.result["is_error"]
        await claude.close()
    users = [text.rstrip("\n") for role, text in said(desk.roots()[-1]) if role == "user"]
    assert users == ["one [[lab:hang=mid-text]]", "two"]


async def test_a_cut_stream_is_retried_and_its_closing_events_are_invented(desk: Desk) -> None:
    async with desk.start(flags=("--include-partial-messages",)) as claude:
        turn = await desk.ask(claude, "one [[lab:cut=mid-text times=1]]")
        await claude.close()
    assert turn.of("system", "api_retry")[0]["error_status"] is None
    stops = [e for e in turn.of("stream_event") if e["event"]["type"] == "message_stop"]
    assert len(stops) == 2
    assert len(turn.texts) == 1


async def test_the_same_uuid_is_dropped_after_a_resume(desk: Desk) -> None:
    name = str(uuid.uuid4())
    async with desk.start() as claude:
        await claude.ask("one", message_uuid=name)
        await claude.close()
    async with desk.start(is_resume=True) as claude:
        again = await claude.ask("one", message_uuid=name)
        assert "command_lifecycle/started" not in shape(again)
        await claude.close()
    assert len(desk.roots()) == 1


async def test_slash_text_is_text_with_an_empty_block_and_a_command_without(desk: Desk) -> None:
    async with desk.start() as claude:
        turn = await desk.ask(claude, "/clear me")
        assert turn.of("system", "init")[0]["session_id"] == desk.session_id
        assert said(desk.roots()[-1])[-1] == ("user", "/clear me")
        name = str(uuid.uuid4())
        block = {"type": "text", "text": "/clear"}
        await claude.write({"type": "user", "uuid": name, "message": {"role": "user", "content": [block]}})
        reset = await claude.until(lambda e: e["type"] == "conversation_reset")
        result = await claude.until(lambda e: e["type"] == "result")
        assert result["session_id"] not in (reset["new_conversation_id"], desk.session_id)
        await claude.close()
    assert transcript_path(desk.home, result["session_id"]) is not None


async def test_a_tool_runs_in_the_workspace_and_its_result_goes_to_the_model(desk: Desk) -> None:
    async with desk.start() as claude:
        turn = await desk.ask(claude, 'one [[lab:tool=Bash {"command": "pwd", "description": "where"}]]')
        await claude.close()
    assert tool_results(turn) == [str(desk.workspace)]
    assert [e["type"] for e in turn.events if e["type"] in ("assistant", "user")] == ["assistant", "user", "assistant"]


async def test_the_first_message_of_a_new_session_cannot_take_a_session_that_exists(desk: Desk) -> None:
    async with desk.start() as claude:
        await desk.ask(claude, "one")
        await claude.close()
    async with desk.start() as claude:
        assert await claude.close() == 1
    assert b"already in use" in claude.stderr


def test_both_print_the_pinned_version(desk: Desk) -> None:
    done = subprocess.run(
        [str(desk.executable), "--version"], capture_output=True, text=True, timeout=60, check=True, env={"HOME": "/"}
    )
    assert done.stdout == "2.1.220 (Claude Code)\n"
