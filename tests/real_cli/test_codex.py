"""The pinned Codex in the product: its four states, its failures, its interrupt, and a rollout that is not as it was left."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from standfast.runner.v1 import runner_pb2 as pb
from standfast_client.errors import ContextLostError
from standfast_lab.fleet.fleet import Parts
from tests.real_cli.site import Site, command_lines, until
from tests.real_cli.talk import CONFIRMED, Talk, Told

pytestmark = [pytest.mark.engine("local"), pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(short_folder: Callable[[], Path], local_parts: Parts) -> AsyncIterator[Site]:
    async with Site(short_folder(), local_parts) as made:
        yield made


def talk_with(site: Site, model: str | None = "lab-model") -> Talk:
    return Talk(site.client, agent="codex", model=model, options={"max_retries": "1"})


def rollout(site: Site, told: Told) -> Path:
    """The file on `local`, from the locator that was saved."""
    locator = told.turn.locator
    return Path(locator.cwd).parent / "members" / "1" / "home" / locator.store


async def asked(site: Site, talk: Talk, state: str, message: str = "what is the word?") -> Told:
    told = await talk.turn(message)
    assert told.words == (state, "COMPLETED", CONFIRMED), told.turn
    assert told.answer == "the word is plum"
    assert str(site.history(talk, told.session)) == "COMPLETE"
    return told


async def test_a_conversation_is_new_then_live_then_restored(site: Site) -> None:
    talk = talk_with(site)
    first = await talk.begin()
    assert first.turn.locator.native_session_id in first.turn.locator.store
    assert first.disposition == "KEPT"
    second = await asked(site, talk, "LIVE")
    assert (second.session, second.process) == (first.session, first.process)
    await talk.stop()
    third = await asked(site, talk, "RESTORED")
    assert (third.session, third.turn.locator) == (first.session, first.turn.locator)
    assert third.process > first.process
    await asked(site, talk, "LIVE")


async def test_a_model_that_the_program_knows_keeps_its_tool_host_over_the_turns(site: Site) -> None:
    """Its tools run in a process beside the program. Ended after each turn, the next turn's first call would fail."""
    talk = talk_with(site, None)
    first = await talk.turn("remember: the word is plum")
    assert (first.words, first.disposition) == (("NEW", "COMPLETED", CONFIRMED), "KEPT")
    (request,) = site.roots(first.session)
    assert request["model"] == "gpt-6.2-sol"
    hosts = _hosts_of(_pid_of(site, first))
    assert len(hosts) == 1
    assert (await talk.turn("what is the word?")).words == ("LIVE", "COMPLETED", CONFIRMED)
    assert _hosts_of(_pid_of(site, first)) == hosts
    await talk.stop()
    assert (await talk.turn("what is the word?")).words == ("RESTORED", "COMPLETED", CONFIRMED)


@pytest.mark.parametrize(
    "text",
    [
        "/compact",
        "- [ ] tidy\r\n  \u2028 🎉\n",
        *(pytest.param(text, marks=pytest.mark.full) for text in ("!ls", "@notes.txt", "$imagegen a cat", "#x")),
    ],
)
async def test_a_text_reaches_the_model_as_it_is_once(site: Site, text: str) -> None:
    talk = talk_with(site)
    told = await talk.turn(text)
    assert told.words == ("NEW", "COMPLETED", CONFIRMED)
    (request,) = site.roots(told.session)
    assert request["messages"][-1] == {**request["messages"][-1], "role": "user", "texts": [text]}


@pytest.mark.full
async def test_a_failed_call_settles_and_the_session_goes_on(site: Site) -> None:
    talk = talk_with(site)
    await talk.begin()
    failed = await talk.turn("[[lab:status=400]] this fails")
    assert failed.words == ("LIVE", "FAILED", CONFIRMED)
    assert (failed.reason, failed.turn.locator_saved, failed.disposition) == ("NATIVE_ERROR", True, "KEPT")
    await asked(site, talk, "LIVE")
    await talk.stop()
    await asked(site, talk, "RESTORED")


@pytest.mark.full
async def test_a_retry_keeps_the_process_and_the_reply(site: Site) -> None:
    talk = talk_with(site)
    await talk.begin()
    retried = await talk.turn("[[lab:cut=mid-text times=1]] tell me something")
    assert (retried.words, retried.disposition) == (("LIVE", "COMPLETED", CONFIRMED), "KEPT")
    assert "retry" in retried.kinds or "provider_retry" in retried.kinds
    await talk.stop()
    await asked(site, talk, "RESTORED")


@pytest.mark.full
async def test_a_tool_runs_and_what_it_left_running_ends_with_the_turn(site: Site) -> None:
    talk = talk_with(site)
    await talk.begin()
    call = json.dumps({"cmd": "echo hi; sleep 3217", "yield_time_ms": 500})
    told = await talk.turn(f"[[lab:tool=exec_command {call}]] use it")
    assert (told.words, told.disposition) == (("LIVE", "COMPLETED", CONFIRMED), "KEPT")
    assert "tool_call" in told.kinds
    await until(lambda: ["sleep", "3217"] not in _commands(), "what the tool left running still runs")
    # The command's end is written into the rollout after the turn: bookkeeping, at any time.
    await asked(site, talk, "LIVE")
    await talk.stop()
    await asked(site, talk, "RESTORED")


@pytest.mark.parametrize("where", ["in the reply", pytest.param("in a tool", marks=pytest.mark.full)])
async def test_an_interrupt_settles_as_cancelled_and_leaves_no_command(site: Site, where: str) -> None:
    talk = talk_with(site)
    await talk.begin()
    if where == "in the reply":
        message, kind = "[[lab:slow=200x100ms]] a long story", "text_delta"
    else:
        message, kind = f"[[lab:tool=exec_command {json.dumps({'cmd': 'sleep 3218'})}]] wait", "tool_call"

    def now(event: pb.TurnEvent) -> bool:
        return event.WhichOneof("body") == kind

    told = await talk.cancelled(message, now)
    assert told.words == ("LIVE", "CANCELLED", CONFIRMED)
    assert told.disposition == "RETIRED"
    await until(lambda: ["sleep", "3218"] not in _commands(), "the interrupted command still runs")
    await asked(site, talk, "RESTORED")


@pytest.mark.full
async def test_a_killed_process_is_restored_from_its_rollout(site: Site) -> None:
    talk = talk_with(site)
    told = await talk.begin()
    pid = _pid_of(site, told)
    os.kill(pid, 9)
    await until(lambda: not Path(f"/proc/{pid}").exists(), "the killed process was not reaped")
    await asked(site, talk, "RESTORED")


@pytest.mark.full
async def test_a_thread_whose_first_turn_never_ended_is_not_lost_but_begun_anew(site: Site) -> None:
    """Case identity-zero-turn-thread: before its first turn has ended there is no history to lose, and no pointer to keep."""
    talk = talk_with(site)
    before = set(_running())

    async def kill(event: pb.TurnEvent) -> None:
        if event.WhichOneof("body") == "text_delta":
            for pid in set(_running()) - before:
                os.kill(pid, 9)

    killed = await talk.turn("[[lab:slow=200x100ms]] remember: the word is figs", on_event=kill)
    assert killed.outcome == "INTERRUPTED"
    assert not killed.turn.locator_saved
    again = await talk.turn("remember: the word is plum")
    assert again.words == ("NEW", "COMPLETED", CONFIRMED)
    await asked(site, talk, "LIVE")


# --- a rollout that is not as it was left ---------------------------------------------------------------------------------
def _without(content: bytes, word: bytes) -> bytes:
    """Without the last record of the model's history that holds this word. `thread/resume` does not notice."""
    lines = content.splitlines(keepends=True)
    at = max(index for index, line in enumerate(lines) if word in line and b'"response_item"' in line)
    return b"".join(lines[:at] + lines[at + 1 :])


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "the last reply taken out": (lambda c: _without(c, b'"role":"assistant"'), "STORE_MISSING"),
    "one byte of an old record": (lambda c: c.replace(b"plum", b"plUm", 1), "HISTORY_CHANGED_OUTSIDE_TURN"),
    "the last line truncated": (lambda c: c[:-20], "STORE_MISSING"),
    "an empty file": (lambda _: b"", "STORE_MISSING"),
    "another record at the end": (
        lambda c: c + b'{"ordinal":9999,"type":"response_item","payload":{"type":"message","role":"assistant"}}\n',
        "HISTORY_CHANGED_OUTSIDE_TURN",
    ),
    "a rollback": (
        lambda c: c + b'{"ordinal":9999,"type":"event_msg","payload":{"type":"thread_rolled_back","num_turns":1}}\n',
        "HISTORY_CHANGED_OUTSIDE_TURN",
    ),
    "half a record at the end": (lambda c: c + b'{"ordinal":', "HISTORY_TORN"),
}


@pytest.mark.parametrize(
    "damage", [pytest.param(name, marks=pytest.mark.full if at else ()) for at, name in enumerate(DAMAGES)]
)
async def test_a_damaged_rollout_is_lost_before_anything_is_sent_and_restored_when_it_is_put_back(
    site: Site, damage: str
) -> None:
    change, reason = DAMAGES[damage]
    talk = talk_with(site)
    told = await talk.begin()
    await talk.stop()
    path, sent = rollout(site, told), len(site.lab.log.rows())
    content = path.read_bytes()
    damaged = change(content)
    assert damaged != content
    path.write_bytes(damaged)
    with pytest.raises(ContextLostError) as lost:
        await talk.turn("what is the word?")
    assert lost.value.metadata["cause"] == reason
    assert len(site.lab.log.rows()) == sent
    assert path.read_bytes() == damaged
    path.write_bytes(content)
    await asked(site, talk, "RESTORED")


@pytest.mark.full
async def test_a_missing_rollout_is_lost(site: Site) -> None:
    talk = talk_with(site)
    told = await talk.begin()
    await talk.stop()
    path = rollout(site, told)
    path.rename(path.with_suffix(".kept"))
    with pytest.raises(ContextLostError) as lost:
        await talk.turn("what is the word?")
    assert lost.value.metadata["cause"] == "STORE_MISSING"


def _commands() -> list[list[str]]:
    return [[word for word in words if word] for words in command_lines().values()]


def _pid_of(site: Site, told: Told) -> int:
    """The process that serves this conversation now."""
    (found,) = [pid for pid in _running() if _home_of(pid) in str(rollout(site, told))]
    return found


def _running() -> list[int]:
    return [pid for pid, words in command_lines().items() if words[0].endswith("/codex") and "app-server" in words]


def _hosts_of(pid: int) -> list[int]:
    """Its children of that name; a thread of it has started them, so they stand under no one task of it."""
    named = [one for one, words in command_lines().items() if words[0].endswith("/codex-code-mode-host")]
    return [one for one in named if f"\nPPid:\t{pid}\n" in (Path("/proc") / str(one) / "status").read_text()]


def _home_of(pid: int) -> str:
    environment = (Path("/proc") / str(pid) / "environ").read_bytes().split(b"\0")
    return next(word for word in environment if word.startswith(b"HOME="))[5:].decode()
