"""The commands as their users run them: a process, its streams, its exit code."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from standfast.runner.v1 import runner_pb2 as pb
from standfast.types.v1 import types_pb2 as types
from tests.wire.client_fake_runner import Script, ScriptedError, events_of, fake_runner, key, turn_record


@dataclass
class Done:
    code: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


def argv(*words: str | bytes) -> list[str | bytes]:
    return [sys.executable, "-m", "standfast_client", *words]


@asynccontextmanager
async def started(*words: str | bytes) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *argv(*words),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def finish(process: asyncio.subprocess.Process, stdin: bytes = b"") -> Done:
    out, err = await asyncio.wait_for(process.communicate(stdin), 60)
    assert process.returncode is not None
    return Done(process.returncode, out, err.decode())


async def run(*words: str | bytes, stdin: bytes = b"") -> Done:
    async with started(*words) as process:
        return await finish(process, stdin)


async def test_a_turn_prints_its_answer_on_stdout_and_the_rest_on_stderr() -> None:
    script = Script(events=events_of("the answer"))
    async with fake_runner(script) as address:
        done = await run("turn", "--runner", address, "hello")
    assert (done.code, done.out) == (0, b"the answer\n")
    assert all(word in done.err for word in ("NEW", "COMPLETED", "conversation c-"))
    assert script.started[0].expect == types.EXPECT_NEW


@pytest.mark.parametrize("how", ["argument", "stdin", "file"])
async def test_a_message_goes_out_byte_for_byte(how: str, tmp_path: Path) -> None:
    text = "  /clear --x\r\n\ttrailing \u200b😀\n\n"
    script = Script()
    async with fake_runner(script) as address:
        words: tuple[str | bytes, ...]
        if how == "argument":
            words = ("--", text)
        elif how == "stdin":
            words = ("-",)
        else:
            (tmp_path / "m").write_bytes(text.encode())
            words = ("--file", str(tmp_path / "m"))
        done = await run("turn", "--runner", address, *words, stdin=text.encode() if how == "stdin" else b"")
    assert done.code == 0
    assert script.started[0].message == text


async def test_with_an_id_a_known_conversation_is_expected_and_new_must_be_said() -> None:
    script = Script()
    async with fake_runner(script) as address:
        await run("turn", "--runner", address, "-c", "c-9", "x")
        await run("turn", "--runner", address, "-c", "c-9", "--new", "x")
        refused = await run("turn", "--runner", address, "--continue", "x")
    assert [request.expect for request in script.started] == [types.EXPECT_CONTINUE, types.EXPECT_NEW]
    assert refused.code == 2


@pytest.mark.parametrize(
    "words",
    [
        ("turn", "-"),
        ("turn",),
        ("turn", "x", "--file", "y"),
        ("turn", "--file", "/does/not/exist"),
        ("turn", "x", "--set", "no-equals"),
        ("turn", b"\xff"),
        ("nonsense",),
    ],
)
async def test_wrong_usage_ends_with_2_and_asks_nobody(words: tuple[str | bytes, ...]) -> None:
    script = Script()
    async with fake_runner(script) as address:
        done = await run(*words, *(("--runner", address) if words[0] == "turn" else ()), stdin=b"\xff\xfe")
    assert done.code == 2
    assert done.err
    assert script.started == []


async def test_a_turn_as_json_is_one_object_a_line_with_words_for_enums() -> None:
    async with fake_runner(Script(events=events_of("hi"))) as address:
        done = await run("turn", "--runner", address, "--json", "-c", "c-1", "--turn-id", "t-1", "x")
    assert done.code == 0
    assert [line["event"] for line in done.lines] == [
        "sending",
        "accepted",
        "context",
        "forwarded",
        "text_delta",
        "text_delta",
        "assistant_message",
        "ended",
        "settled",
    ]
    assert done.lines[0] == {"event": "sending", "conversation_id": "c-1", "turn_id": "t-1"}
    assert done.lines[2]["state"] == "NEW"
    turn = done.lines[-1]["turn"]
    assert (turn["outcome"], turn["runner_verdict"], turn["store_verdict"]) == ("COMPLETED", "CONFIRMED", "CONFIRMED")
    assert turn["generations"] == {"container": 1, "process": 2, "activation": 3}
    assert turn["failure"] is None


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        ("COMPLETED", 0),
        ("FAILED", 1),
        ("CANCELLED", 4),
        ("INTERRUPTED", 4),
        ("TIMED_OUT", 4),
        ("UNANSWERED_QUESTION", 4),
        ("NOT_SENT", 4),
        ("REFUSED", 3),
    ],
)
async def test_the_exit_code_is_the_turns_outcome(outcome: str, code: int) -> None:
    turn = turn_record(outcome=types.Outcome.Value(f"OUTCOME_{outcome}"), output_unconfirmed=outcome == "FAILED")
    async with fake_runner(Script(events=events_of("x", turn))) as address:
        done = await run("watch", "--runner", address, "c-1", "t-1")
    assert done.code == code
    assert outcome in done.err
    assert ("UNCONFIRMED" in done.err) == (outcome == "FAILED")


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("CONTEXT_LOST", 3),
        ("LEGACY_CONVERSATION", 3),
        ("CONVERSATION_BUSY", 3),
        ("CAPABILITY_NOT_BUILT", 3),
        ("MESSAGE_EMPTY", 2),
        ("MANAGER_UNAVAILABLE", 5),
        ("TURN_UNKNOWN", 6),
        ("INTERNAL", 7),
    ],
)
async def test_a_refusal_prints_its_reason_and_what_would_cure_it(reason: str, code: int) -> None:
    refusal = ScriptedError(reason, "told why", cause="CONTAINER_GONE", cure="bring it back")
    async with fake_runner(Script(refusal=refusal)) as address:
        text, as_json = await asyncio.gather(
            run("turn", "--runner", address, "-c", "c", "x"),
            run("turn", "--runner", address, "-c", "c", "--json", "x"),
        )
    assert (text.code, as_json.code) == (code, code)
    assert all(word in text.err for word in (reason, "told why", "CONTAINER_GONE", "bring it back"))
    assert text.out == b""
    error = as_json.lines[-1]
    assert (error["event"], error["reason"], error["metadata"]["cause"]) == ("error", reason, "CONTAINER_GONE")


async def test_nobody_there_is_5_and_no_state_folder_says_what_to_start(tmp_path: Path) -> None:
    gone, nowhere = await asyncio.gather(
        run("ls", "--runner", "127.0.0.1:9"), run("ls", "--state", str(tmp_path / "none"))
    )
    assert (gone.code, nowhere.code) == (5, 5)
    assert "standfast up" in nowhere.err


async def test_the_endpoints_file_of_a_house_is_read_by_default(tmp_path: Path) -> None:
    async with fake_runner(Script(conversations=[pb.Conversation(conversation=key("c-7"))])) as address:
        (tmp_path / "endpoints.json").write_text(
            json.dumps(
                {"runner": address, "manager": "", "host_agent": "", "engine": "", "provider_url": "", "pids": {}}
            )
        )
        done = await run("ls", "--state", str(tmp_path), "--json")
    assert done.code == 0
    assert done.lines[0]["conversation"]["conversation_id"] == "c-7"


async def test_show_tells_per_turn_what_its_context_rests_on() -> None:
    conversation = pb.Conversation(
        conversation=key("c-1"), agent="claude-code", sandbox_state="RUNNING", settled_turns=1
    )
    finding = types.Finding(code="NATIVE_SESSION_MISMATCH", expected="s-1", observed="s-2")
    script = Script(conversations=[conversation], turns=[turn_record(findings=[finding])])
    async with fake_runner(script) as address:
        text, as_json, one = await asyncio.gather(
            run("show", "--runner", address, "c-1"),
            run("show", "--runner", address, "c-1", "--json"),
            run("show", "--runner", address, "c-1", "t-1", "--json"),
        )
    shown = text.out.decode()
    for word in (
        "NEW",
        "FIRST_TURN",
        "s-1",
        "/workspace",
        "box",
        "generation 1",
        "generation 2",
        "KEPT",
        "completed",
        "sha256:00",
        "runner CONFIRMED, manager CONFIRMED",
        "NATIVE_SESSION_MISMATCH",
    ):
        assert word in shown
    assert [line["kind"] for line in as_json.lines] == ["conversation", "turn"]
    assert [line["kind"] for line in one.lines] == ["turn"]


async def test_stop_rm_agents_cancel_and_version_answer() -> None:
    script = Script()
    async with fake_runner(script) as address:
        stop, rm, agents, cancel, version = await asyncio.gather(
            run("stop", "--runner", address, "c-1", "--json"),
            run("rm", "--runner", address, "c-1", "--json"),
            run("agents", "--runner", address),
            run("cancel", "--runner", address, "c-1", "t-1", "--json"),
            run("version", "--runner", address, "--json"),
        )
    assert [done.code for done in (stop, rm, agents, cancel, version)] == [0, 0, 0, 0, 0]
    assert stop.lines[0]["sandbox_state"] == "STOPPED"
    assert script.removed == ["c-1"]
    assert [row.split() for row in agents.out.decode().splitlines()] == [
        ["agent", "version", "capability", "can", "why"],
        ["claude-code", "2.1.220", "resume", "yes"],
        ["steer", "no", "it", "joins", "messages"],
    ]
    assert script.cancelled == ["t-1"]
    assert [line["component"] for line in version.lines] == ["client", "runner"]


async def test_ctrl_c_leaves_the_view_and_the_turn_runs_on() -> None:
    script = Script(hold_after=3)
    async with fake_runner(script) as address, started("turn", "--runner", address, "-c", "c", "x") as process:
        await asyncio.wait_for(script.held.wait(), 30)
        process.send_signal(signal.SIGINT)
        done = await finish(process)
        script.release.set()
    assert done.code == 130
    assert "The turn runs on" in done.err
    assert script.cancelled == []


async def test_a_second_ctrl_c_cancels_the_turn_and_shows_its_end() -> None:
    cancelled = turn_record(outcome=types.OUTCOME_CANCELLED)
    script = Script(events=events_of("x", cancelled), hold_after=3)
    async with fake_runner(script) as address, started("turn", "--runner", address, "-c", "c", "x") as process:
        await asyncio.wait_for(script.held.wait(), 30)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        while b"The turn runs on" not in await asyncio.wait_for(process.stderr.readline(), 30):
            pass
        process.send_signal(signal.SIGINT)
        done = await finish(process)
    assert done.code == 4
    assert len(script.cancelled) == 1


async def test_cancel_on_interrupt_cancels_at_the_first_press() -> None:
    cancelled = turn_record(outcome=types.OUTCOME_CANCELLED)
    script = Script(events=events_of("x", cancelled), hold_after=3)
    async with (
        fake_runner(script) as address,
        started("turn", "--runner", address, "-c", "c", "--cancel-on-interrupt", "x") as process,
    ):
        await asyncio.wait_for(script.held.wait(), 30)
        process.send_signal(signal.SIGINT)
        done = await finish(process)
    assert (done.code, len(script.cancelled)) == (4, 1)


async def test_chat_sends_what_is_typed_line_by_line_in_one_conversation() -> None:
    script = Script(events=events_of("reply"))
    async with fake_runner(script) as address:
        done = await run("chat", "--runner", address, stdin=b"first \n\n/clear\n  last")
    assert done.code == 0
    assert [request.message for request in script.started] == ["first ", "/clear", "  last"]
    assert [request.expect for request in script.started] == [
        types.EXPECT_NEW,
        types.EXPECT_CONTINUE,
        types.EXPECT_CONTINUE,
    ]
    assert len({request.conversation.conversation_id for request in script.started}) == 1
    assert len({request.turn_id for request in script.started}) == 3
    assert done.out == b"reply\nreply\nreply\n"


async def test_chat_stays_new_until_a_turn_was_accepted() -> None:
    script = Script(refusal=ScriptedError("NO_HOST", "none is ready"))
    async with fake_runner(script) as address:
        done = await run("chat", "--runner", address, stdin=b"a\nb\n")
    assert done.code == 3
    assert [request.expect for request in script.started] == [types.EXPECT_NEW, types.EXPECT_NEW]


async def test_a_text_cannot_steer_a_terminal_but_a_file_gets_its_bytes() -> None:
    text = "a\x1b]0;owned\x07b"
    async with fake_runner(Script(events=events_of(text))) as address:
        done = await run("turn", "--runner", address, "x")
    assert done.out == text.encode() + b"\n"
    assert "\x1b]" not in done.err
