"""The built-in agent as a real process: handshake, turns, resume, kill -9, requests, leaving, and where the key is not."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from direct_agent.session.session import SessionFolder
from direct_agent.transcript import UserMessage
from standfast_lab.provider.server import LabProvider
from tests.scenarios.direct_process import KEY, SESSION_ID, DirectProcess

WRITE = '[[lab:tool=write {"path":"new/a.txt","content":"hi"}]]'
APPEND = '[[lab:tool=shell {"command":"echo x >> ledger; sleep 20"}]]'


@pytest_asyncio.fixture
async def provider() -> AsyncIterator[LabProvider]:
    async with LabProvider(host="127.0.0.1", port=0, log_path=None, api_keys=[KEY]) as made:
        yield made


async def begun(tmp_path: Path, provider: LabProvider, *options: str) -> DirectProcess:
    process = await DirectProcess.start(tmp_path, provider.base_url, *options, session="--session-id")
    await process.handshake()
    return process


async def test_the_session_and_its_store_are_named_before_any_prompt(tmp_path: Path, provider: LabProvider) -> None:
    process = await DirectProcess.start(tmp_path, provider.base_url, session="--session-id")
    answer = await process.handshake()
    assert answer["session_id"] == SESSION_ID
    assert await asyncio.to_thread(Path(answer["store"]).is_file)
    assert answer["last_turn"] is None
    assert await process.leave() == 0


async def test_a_session_goes_on_in_another_process_and_says_where_it_stands(
    tmp_path: Path, provider: LabProvider
) -> None:
    process = await begun(tmp_path, provider)
    end = await process.turn("m1", f"{WRITE} go")
    assert (end["outcome"], end["session_id"]) == ("completed", SESSION_ID)
    assert (tmp_path / "work" / "new" / "a.txt").read_text() == "hi"
    assert await process.leave() == 0
    again = await DirectProcess.start(tmp_path, provider.base_url)
    assert (await again.handshake())["last_turn"] == {"message_id": "m1", "outcome": "completed"}
    again.send(type="user", message_id="m1", text="go")
    assert (await again.heard("already_delivered"))["outcome"] == "completed"
    again.send(type="lookup", id="l1", message_id="m2")
    assert (await again.heard("looked_up"))["is_delivered"] is False
    end = await again.turn("m2", "and now")
    assert end["outcome"] == "completed"
    assert await again.leave() == 0


@pytest.mark.parametrize("session", ["--resume", "--session-id"])
async def test_a_session_that_is_not_there_or_is_there_already_is_refused(
    tmp_path: Path, provider: LabProvider, session: str
) -> None:
    if session == "--session-id":
        await (await begun(tmp_path, provider)).leave()
    process = await DirectProcess.start(tmp_path, provider.base_url, session=session)
    process.send(type="initialize", id="init-1")
    refused = await process.heard("initialize_failed")
    assert refused["cause"] == {"--resume": "NO_SUCH_SESSION", "--session-id": "SESSION_EXISTS"}[session]
    process.send(type="user", message_id="m1", text="go")
    assert "initialize" in (await process.heard("error"))["error"]
    assert await process.leave() == 0


async def test_a_second_process_on_the_same_session_is_refused(tmp_path: Path, provider: LabProvider) -> None:
    process = await begun(tmp_path, provider)
    second = await DirectProcess.start(tmp_path, provider.base_url)
    second.send(type="initialize", id="init-1")
    assert (await second.heard("initialize_failed"))["cause"] == "SESSION_IN_USE"
    await second.leave()
    await process.leave()


async def test_killed_while_a_command_runs_it_is_said_to_be_unknown_and_is_not_run_again(
    tmp_path: Path, provider: LabProvider
) -> None:
    process = await begun(tmp_path, provider)
    process.send(type="user", message_id="m1", text=f"{APPEND} go")
    ledger = tmp_path / "work" / "ledger"
    await process.heard("tool_started")
    await _until_there(ledger)
    await process.kill()
    again = await DirectProcess.start(tmp_path, provider.base_url)
    assert (await again.handshake())["last_turn"] == {"message_id": "m1", "outcome": None}
    end = await again.turn("m2", f"{APPEND} go on")
    assert end["outcome"] == "completed"
    assert ledger.read_text() == "x\n"
    (refused,) = [event for event in again.events if event["type"] == "tool_result"]
    assert refused["state"] == "not_started"
    assert await again.leave() == 0


async def test_an_interrupt_ends_the_turn_at_once_and_the_process_goes_on(
    tmp_path: Path, provider: LabProvider
) -> None:
    process = await begun(tmp_path, provider)
    process.send(type="user", message_id="m1", text=f"{APPEND} go")
    await process.heard("tool_started")
    process.send(type="interrupt", id="i1")
    assert (await process.heard("interrupting"))["is_running"] is True
    end = await process.heard("turn_end")
    assert end["outcome"] == "cancelled"
    process.send(type="interrupt", id="i2")
    assert (await process.heard("interrupting"))["is_running"] is False
    assert (await process.turn("m2", "plain"))["outcome"] == "completed"
    assert await process.leave() == 0


async def test_a_permission_is_asked_and_answered_one_to_one(tmp_path: Path, provider: LabProvider) -> None:
    process = await begun(tmp_path, provider, "--permission-mode=ask")
    process.send(type="user", message_id="m1", text=f"{WRITE} go")
    request = await process.heard("request")
    process.send(type="answer", request_id="another", allow=True)
    assert (await process.heard("error"))["request_id"] == "another"
    process.send(type="answer", request_id=request["request_id"], allow=True)
    assert (await process.heard("request_closed"))["how"] == "answered"
    assert (await process.heard("turn_end"))["outcome"] == "completed"
    assert (tmp_path / "work" / "new" / "a.txt").read_text() == "hi"
    await process.leave()


@pytest.mark.parametrize("how", ["stdin", "signal"])
async def test_it_leaves_in_order_in_the_middle_of_a_turn(tmp_path: Path, provider: LabProvider, how: str) -> None:
    process = await begun(tmp_path, provider)
    process.send(type="user", message_id="m1", text=f"{APPEND} go")
    await process.heard("tool_started")
    assert await (process.leave() if how == "stdin" else process.terminate()) == 0
    assert process.events[-1]["type"] == "turn_end"
    session = SessionFolder(tmp_path / "home").open(SESSION_ID)
    assert session.history.turns["m1"].outcome == "cancelled"
    session.close()


async def test_a_line_that_is_no_frame_is_answered_and_changes_nothing(tmp_path: Path, provider: LabProvider) -> None:
    process = await begun(tmp_path, provider)
    for line in (b"no json", b"[]", b'{"type":"clear"}', b'{"type":"user","message_id":"m","text":1}', b"\xff"):
        process.send_raw(line + b"\n")
        await process.heard("error")
    assert (await process.turn("m1", "plain"))["outcome"] == "completed"
    assert await process.leave() == 0


async def test_the_text_goes_byte_for_byte(tmp_path: Path, provider: LabProvider) -> None:
    texts = ["/clear", "--help", "- x\r\ny", " tab\t\u2028line\x85end ", "☃" * 100_000]
    process = await begun(tmp_path, provider)
    for number, text in enumerate(texts):
        assert (await process.turn(f"m{number}", text))["outcome"] == "completed"
    await process.leave()
    session = SessionFolder(tmp_path / "home").open(SESSION_ID)
    stored = [message.text for message in session.history.transcript if isinstance(message, UserMessage)]
    session.close()
    assert stored == texts


async def test_the_key_is_nowhere_but_in_its_own_variable(tmp_path: Path, provider: LabProvider) -> None:
    process = await begun(tmp_path, provider)
    command = json.dumps({"command": "env; cat /proc/self/environ"})
    end = await process.turn("m1", f"[[lab:tool=shell {command}]] [[lab:status=401]] go")
    assert end["outcome"] == "failed"
    assert end["reason"] == "auth"
    assert "STANDFAST_MODEL_KEY" in end["error"]
    command_line = await asyncio.to_thread(Path(f"/proc/{process.pid}/cmdline").read_bytes)
    await process.leave()
    kept = await asyncio.to_thread(_all_bytes_below, tmp_path)
    for place in (command_line, process.printed, kept, (await process.errors()).encode()):
        assert KEY.encode() not in place


async def test_without_a_key_it_says_where_one_is_expected(tmp_path: Path, provider: LabProvider) -> None:
    process = await DirectProcess.start(tmp_path, provider.base_url, "--key-env=NOT_THERE", session="--session-id")
    assert await process.leave() == 2
    assert "NOT_THERE" in await process.errors()


# --- standfast direct ------------------------------------------------------------------------------------------------------------------
async def direct(tmp_path: Path, provider: LabProvider, *words: str) -> tuple[int, bytes, bytes]:
    (tmp_path / "key").write_text(KEY + "\n")
    (tmp_path / "work").mkdir(exist_ok=True)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "standfast_client",
        "direct",
        f"--home={tmp_path / 'home'}",
        f"--workspace={tmp_path / 'work'}",
        f"--base-url={provider.base_url}",
        "--model=lab",
        f"--key-file={tmp_path / 'key'}",
        *words,
        cwd=Path(__file__).parents[2],
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        out, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out, errors


async def test_standfast_direct_works_alone_for_a_person_and_for_a_program(
    tmp_path: Path, provider: LabProvider
) -> None:
    code, out, errors = await direct(tmp_path, provider, "--json", f"{WRITE} go")
    assert (code, errors) == (0, b"")
    events = [json.loads(line) for line in out.splitlines()]
    assert events[-1]["outcome"] == "completed"
    assert (tmp_path / "work" / "new" / "a.txt").read_text() == "hi"
    code, out, _ = await direct(tmp_path, provider, f"--resume={events[-1]['session_id']}", "again")
    assert code == 0
    assert "again" in out.decode()
    assert KEY.encode() not in out


async def test_standfast_direct_tells_failure_and_wrong_usage_by_its_exit_code(
    tmp_path: Path, provider: LabProvider
) -> None:
    code, out, _ = await direct(tmp_path, provider, "--json", "[[lab:status=401]] go")
    assert (code, json.loads(out.splitlines()[-1])["reason"]) == (1, "auth")
    code, _, errors = await direct(tmp_path, provider, "--json")
    assert (code, b"TEXT" in errors) == (2, True)
    code, _, errors = await direct(tmp_path, provider, "--resume=nobody", "go")
    assert (code, b"nobody" in errors or b"expected a session" in errors) == (2, True)


async def _until_there(path: Path) -> None:
    for _ in range(1000):
        if await asyncio.to_thread(path.exists):
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"{path} did not appear within 10 s")


def _all_bytes_below(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())
