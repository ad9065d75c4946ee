"""What reaches the disk and when, and what the CLI prints."""

from __future__ import annotations

import asyncio
import json
import signal
import time
import uuid

from standfast_lab.bare_claude import QUIET_FLAGS, BareTurn, Event, transcript_path
from standfast_lab.provider import LabProvider
from tests.pinned_cli.desk import Desk


def kinds(events: list[Event]) -> list[str]:
    """`type/subtype`, or `type/event type` for a stream event."""
    return [
        f"{e['type']}/{e.get('subtype') or e.get('state') or (e.get('event') or {}).get('type') or ''}" for e in events
    ]


async def test_initialize_on_a_resume_writes_nothing_and_names_no_session(desk: Desk) -> None:
    async with desk.start() as claude:
        await desk.ask(claude, "one")
        await claude.close()
    before = desk.transcript().read_bytes()
    async with desk.start(is_resume=True) as claude:
        answer = await claude.control("initialize")
        assert answer["response"]["subtype"] == "success"
        assert "pid" in answer["response"]["response"]
        assert desk.session_id not in json.dumps(answer)
        assert desk.transcript().read_bytes() == before
        await claude.close()
    # Leaving in order without a turn appends one bookkeeping record of 83 bytes.
    added = desk.transcript().read_bytes().removeprefix(before)
    assert len(added) == 83
    assert json.loads(added) == {"type": "mode", "mode": "normal", "sessionId": desk.session_id}


async def test_a_signal_to_a_resumed_process_without_a_turn_writes_at_most_bookkeeping(desk: Desk) -> None:
    async with desk.start() as claude:
        await desk.ask(claude, "one")
        await claude.close()
    before = desk.transcript().read_bytes()
    async with desk.start(is_resume=True) as claude:
        await claude.control("initialize")
        assert await claude.end(signal.SIGTERM) == 143
    assert desk.transcript().read_bytes().startswith(before)
    assert {record["type"] for record in desk.records()[before.count(b"\n") :]} <= {"mode"}


async def test_a_missing_session_ends_with_an_error_result_before_any_request(desk: Desk, lab: LabProvider) -> None:
    async with desk.start(is_resume=True) as claude:
        assert await claude.close() == 1
    assert claude.events[-1]["subtype"] == "error_during_execution"
    assert claude.events[-1]["errors"] == [f"No conversation found with session ID: {desk.session_id}"]
    assert lab.log.roots() == []


async def test_an_orderly_exit_and_sigterm_after_a_turn_leave_the_reply_and_a_last_prompt(desk: Desk) -> None:
    async with desk.start() as claude:
        first = await desk.ask(claude, "one")
        assert await claude.close() == 0
    assert [r["type"] for r in desk.records()] == [
        "queue-operation", "queue-operation", "user", "attachment", "attachment", "assistant", "last-prompt"
    ]  # fmt: skip
    async with desk.start(is_resume=True) as claude:
        second = await desk.ask(claude, "two")
        assert await claude.end(signal.SIGTERM) == 143
    records = desk.records()
    # Whether the mode record still follows is a race.
    assert "last-prompt" in [record["type"] for record in records[-2:]]
    said = [r["message"]["content"][0]["text"] for r in records if r["type"] == "assistant"]
    assert said == [*first.texts, *second.texts]
    assert desk.transcript().read_bytes().endswith(b"\n")


async def test_the_message_uuid_becomes_the_records_uuid_and_is_accepted_once(desk: Desk) -> None:
    chosen = str(uuid.uuid4())
    async with desk.start() as claude:
        await claude.ask("one", message_uuid=chosen)
        await claude.close()
    assert [r["uuid"] for r in desk.records() if r["type"] == "user"] == [chosen]
    async with desk.start(is_resume=True) as claude:
        again = await claude.ask("one", message_uuid=chosen)
        assert kinds(again.events) == ["command_lifecycle/completed"]
        await claude.close()
    assert len(desk.roots()) == 1


async def test_the_reply_is_on_disk_after_the_result_and_within_two_seconds(desk: Desk) -> None:
    async with desk.start() as claude:
        for number in range(3):
            turn = await claude.send(f"message {number}")
            await claude.until(lambda e: e["type"] == "result", turn)
            assert await on_disk_after_s(desk, turn) < 2.0
            await claude.until(lambda e: e["type"] == "command_lifecycle" and e["state"] == "completed", turn)
        await claude.close()


async def on_disk_after_s(desk: Desk, turn: BareTurn) -> float:
    """Seconds until the transcript holds the turn's reply. There is no file at all yet in a young session."""
    began = time.monotonic()
    for _ in range(400):
        path = transcript_path(desk.home, desk.session_id)
        if path is not None and turn.texts[-1].encode() in path.read_bytes():
            return time.monotonic() - began
        await asyncio.sleep(0.005)
    raise AssertionError(f"the reply {turn.texts[-1]!r} is not in the transcript 2 s after its result")


async def test_partial_messages_bring_the_raw_stream_and_the_assistant_event_before_its_blocks_stop(desk: Desk) -> None:
    async with desk.start(flags=(*QUIET_FLAGS, "--include-partial-messages")) as claude:
        turn = await desk.ask(claude, "one")
        assert kinds(turn.events) == [
            "command_lifecycle/queued", "command_lifecycle/started", "system/init", "system/status",
            "stream_event/message_start", "stream_event/content_block_start", "stream_event/content_block_delta",
            "stream_event/content_block_delta", "stream_event/content_block_delta", "assistant/",
            "stream_event/content_block_stop", "stream_event/message_delta", "stream_event/message_stop",
            "result/success", "command_lifecycle/completed",
        ]  # fmt: skip
        deltas = [
            e["event"]["delta"]["text"] for e in turn.of("stream_event") if e["event"]["type"] == "content_block_delta"
        ]
        assert ("".join(deltas),) == turn.texts
        await claude.close()


async def test_a_cut_stream_gets_closing_events_that_the_provider_never_sent(desk: Desk) -> None:
    async with desk.start(flags=(*QUIET_FLAGS, "--include-partial-messages")) as claude:
        turn = await desk.ask(claude, "one [[lab:cut=mid-text pause=300ms times=1]]")
        seen = kinds(turn.events)
        retry = seen.index("system/api_retry")
        # No message_delta came, so a message_stop alone does not show that a message is whole.
        assert seen[retry - 2 : retry] == ["stream_event/content_block_stop", "stream_event/message_stop"]
        assert "stream_event/message_delta" not in seen[:retry]
        assert len(turn.texts) == 1
        await claude.close()


async def test_the_cli_talks_to_nothing_but_the_model(desk: Desk, lab: LabProvider) -> None:
    async with desk.start() as claude:
        await desk.ask(claude, "one")
        await claude.close()
    assert [(row["method"], row["path"], row["kind"]) for row in lab.log.rows()] == [
        ("HEAD", "/api/hello", "hello"),
        ("POST", "/v1/messages?beta=true", "root"),
    ]
