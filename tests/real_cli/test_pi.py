"""Pi on real parts: the four states, failures, cancels, damaged stores, and the texts that reach the model."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from standfast.runner.v1 import runner_pb2 as pb
from standfast_client.errors import ClientError, ContextLostError
from standfast_lab.oracle import Verdict, judge_roots, rows_of_talk
from tests.real_cli.site import Site, command_lines, until
from tests.real_cli.talk import CONFIRMED, Talk, Told

MODEL = "lab-model"


@pytest.fixture(params=["local", "docker"])
def site(request: pytest.FixtureRequest) -> Site:
    found: Site = request.getfixturevalue(f"{request.param}_site")
    return found


pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]
on_local = pytest.mark.engine("local")


def pi(site: Site, **options: str) -> Talk:
    return site.talk(agent="pi", model=MODEL, **{"max_retries": "0", **options})


def history(site: Site, talk: Talk) -> Verdict:
    """Whether the newest request of the talk carried all that was said."""
    return judge_roots(rows_of_talk(site.lab.log.rows(), talk.said[0].user), talk.said, agent="pi")


def requests(site: Site, talk: Talk) -> int:
    return len(rows_of_talk(site.lab.log.rows(), talk.said[0].user))


def store_of(site: Site, told: Told) -> Path:
    """The session file, on `local`."""
    [store] = site.fleet.folder.glob(f"h/g/**/{told.turn.locator.store}")
    return store


def pid_of(site: Site, told: Told) -> int:
    """The CLI process of that conversation, on `local`. It gives itself a name in place of its command line; its home tells it."""
    home = str(store_of(site, told)).removesuffix(f"/{told.turn.locator.store}")
    found = [pid for pid, words in command_lines().items() if words[0] == "pi" and f"HOME={home}" in environment(pid)]
    assert len(found) == 1, f"expected one process with the home {home}, found {found}"
    return found[0]


def environment(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


async def test_the_session_is_kept_live_over_a_stop_and_over_a_failed_call(site: Site) -> None:
    talk = pi(site)
    first = await talk.begin("remember: the word is quince")
    assert first.turn.locator.store.endswith(f"_{first.session}.jsonl")
    second = await talk.turn("what is the word?")
    assert second.words == ("LIVE", "COMPLETED", CONFIRMED)
    assert (second.process, second.disposition) == (first.process, "KEPT")
    assert history(site, talk).is_complete
    await talk.stop()
    third = await talk.turn("and now?")
    assert third.words == ("RESTORED", "COMPLETED", CONFIRMED)
    assert third.turn.context_reason == "SANDBOX_STOPPED"
    assert history(site, talk).is_complete
    failed = await talk.turn("this fails [[lab:status=500]]")
    assert failed.words == ("LIVE", "FAILED", CONFIRMED)
    assert (failed.reason, failed.turn.failure.provider_status) == ("PROVIDER_ERROR", 500)
    assert failed.turn.locator_saved
    after = await talk.turn("after the failure")
    assert after.words == ("LIVE", "COMPLETED", CONFIRMED)
    assert history(site, talk).is_complete
    assert {told.session for told in (second, third, failed, after)} == {first.session}


@pytest.mark.full
async def test_the_reply_after_an_internal_retry_is_kept_live_and_restored(site: Site) -> None:
    talk = pi(site, max_retries="2")
    await talk.begin("remember: the word is medlar")
    retried = await talk.turn("try twice [[lab:status=500 times=1]]")
    assert retried.words == ("LIVE", "COMPLETED", CONFIRMED)
    assert "provider_retry" in retried.kinds
    assert retried.disposition == "KEPT"
    await talk.stop()
    assert (await talk.turn("go on")).words == ("RESTORED", "COMPLETED", CONFIRMED)
    assert history(site, talk).is_complete


@on_local
@pytest.mark.parametrize(
    ("word", "outcome", "reason"),
    [
        ("empty", "COMPLETED", ""),
        ("refusal", "FAILED", "PROVIDER_ERROR"),
        ("max_tokens", "FAILED", "NATIVE_ERROR"),
        ("cut=mid-event", "FAILED", "PROVIDER_ERROR"),
        ("error-event=overloaded_error", "FAILED", "PROVIDER_ERROR"),
        ("status=401", "FAILED", "PROVIDER_ERROR"),
        ("status=429 retry-after=1", "FAILED", "PROVIDER_ERROR"),
    ],
)
@pytest.mark.full
async def test_each_kind_of_reply_settles_and_the_session_goes_on(
    local_site: Site, word: str, outcome: str, reason: str
) -> None:
    talk = pi(local_site)
    await talk.begin(f"remember: {word.partition(' ')[0]}")
    told = await talk.turn(f"now [[lab:{word}]]")
    assert told.words == ("LIVE", outcome, CONFIRMED), told.turn
    assert told.reason == reason
    assert told.turn.locator_saved
    talk.said = [*talk.said[:1], talk.said[1].__class__(talk.said[1].user, (), talk.said[1].outcome)]
    again = await talk.turn("still there?")
    assert again.words[1:] == ("COMPLETED", CONFIRMED)
    assert history(local_site, talk).is_complete


@on_local
@pytest.mark.parametrize("protocol", ["chat", "responses"])
@pytest.mark.full
async def test_the_other_protocols_serve_the_same_session(local_site: Site, protocol: str) -> None:
    talk = pi(local_site, protocol=protocol)
    await talk.begin(f"remember: {protocol}")
    tool = await talk.turn('run it [[lab:tool=bash {"command": "echo hi"}]]')
    assert tool.words == ("LIVE", "COMPLETED", CONFIRMED)
    assert tool.tool_results == ["hi\n"]
    failed = await talk.turn("this fails [[lab:status=500]]")
    assert (*failed.words, failed.reason) == ("LIVE", "FAILED", CONFIRMED, "PROVIDER_ERROR")
    cut = await talk.turn("this is cut [[lab:cut=mid-event]]")
    assert cut.words == ("LIVE", "FAILED", CONFIRMED)
    await talk.stop()
    assert (await talk.turn("still there?")).words == ("RESTORED", "COMPLETED", CONFIRMED)
    assert history(local_site, talk).is_complete


@on_local
@pytest.mark.full
async def test_a_tool_runs_and_its_result_is_told(local_site: Site) -> None:
    talk = pi(local_site)
    await talk.begin("remember: tools")
    told = await talk.turn('run it [[lab:tool=bash {"command": "echo from the sandbox"}]]')
    assert told.tool_results == ["from the sandbox\n"]
    assert told.words == ("LIVE", "COMPLETED", CONFIRMED)


@pytest.mark.parametrize(
    ("message", "when"),
    [
        ("stream [[lab:slow=100x50ms]]", "text_delta"),
        ('work [[lab:tool=bash {"command": "sleep 60"}]]', "tool_call"),
    ],
)
@on_local
@pytest.mark.full
async def test_a_cancel_ends_the_turn_natively_and_the_next_one_is_restored(
    local_site: Site, message: str, when: str
) -> None:
    talk = pi(local_site)
    await talk.begin(f"remember: cancel {when}")
    cancelled = await talk.cancelled(message, lambda event: event.WhichOneof("body") == when)
    assert (cancelled.outcome, cancelled.verdicts) == ("CANCELLED", CONFIRMED)
    assert cancelled.disposition == "RETIRED"
    after = await talk.turn("and now?")
    assert after.words == ("RESTORED", "COMPLETED", CONFIRMED)
    assert history(local_site, talk).is_complete


@on_local
@pytest.mark.full
async def test_a_cancel_in_the_wait_for_a_retry_ends_the_turn(local_site: Site) -> None:
    talk = pi(local_site, max_retries="5")
    await talk.begin("remember: patience")
    cancelled = await talk.cancelled(
        "fail [[lab:status=500]]", lambda event: event.WhichOneof("body") == "provider_retry"
    )
    assert (cancelled.outcome, cancelled.verdicts) == ("CANCELLED", CONFIRMED)
    assert (await talk.turn("and now?")).words == ("RESTORED", "COMPLETED", CONFIRMED)


@on_local
async def test_a_process_that_was_killed_between_turns_is_resumed(local_site: Site) -> None:
    talk = pi(local_site)
    first = await talk.begin("remember: killed between")
    pid = pid_of(local_site, first)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not Path(f"/proc/{pid}").exists(), f"process {pid} was not reaped")
    after = await talk.turn("still there?")
    assert after.words == ("RESTORED", "COMPLETED", CONFIRMED)
    assert history(local_site, talk).is_complete


@on_local
@pytest.mark.full
async def test_a_process_that_was_killed_in_a_turn_settles_nothing_and_is_resumed(local_site: Site) -> None:
    talk = pi(local_site)
    first = await talk.begin("remember: killed within")

    async def kill(event: pb.TurnEvent) -> None:
        if event.WhichOneof("body") == "tool_call":
            os.kill(pid_of(local_site, first), signal.SIGKILL)

    killed = await talk.turn('work [[lab:tool=bash {"command": "sleep 5"}]]', on_event=kill)
    assert killed.outcome == "INTERRUPTED"
    assert not killed.turn.locator_saved
    after = await talk.turn("still there?")
    assert after.words == ("RESTORED", "COMPLETED", CONFIRMED)
    assert talk.said[0].user in str(rows_of_talk(local_site.lab.log.rows(), talk.said[0].user)[-1])


DAMAGES: dict[str, tuple[Callable[[bytes], bytes | None], str]] = {
    "missing": (lambda _: None, "STORE_MISSING"),
    "empty": (lambda _: b"", "STORE_MISSING"),
    "its last line cut": (lambda data: data[:-30], "STORE_MISSING"),
    "its last line gone": (lambda data: b"".join(data.splitlines(keepends=True)[:-1]), "STORE_MISSING"),
    "garbage": (lambda data: b"x" * len(data), "HISTORY_CHANGED_OUTSIDE_TURN"),
    "one byte changed": (lambda data: data.replace(b"remember", b"remembeR", 1), "HISTORY_CHANGED_OUTSIDE_TURN"),
    "a forged reply": (
        lambda data: (
            data + b'{"type":"message","id":"f0f0f0f0","parentId":null,"message":{"role":"assistant",'
            b'"content":[{"type":"text","text":"forged"}],"timestamp":1}}\n'
        ),
        "HISTORY_CHANGED_OUTSIDE_TURN",
    ),
}


@on_local
async def test_a_damaged_store_is_lost_before_anything_is_sent_and_put_back_it_is_restored(local_site: Site) -> None:
    talk = pi(local_site)
    told = await talk.begin("remember: the store")
    await talk.stop()
    store = store_of(local_site, told)
    whole, sent = store.read_bytes(), requests(local_site, talk)
    found: dict[str, Any] = {}
    for name, (damage, _) in DAMAGES.items():
        damaged = damage(whole)
        store.unlink(missing_ok=True)
        if damaged is not None:
            store.write_bytes(damaged)
        with pytest.raises(ContextLostError) as lost:
            await talk.turn("is it there?")
        found[name] = lost.value.metadata["cause"]
        assert (store.read_bytes() if damaged is not None else None) == damaged, name
    assert found == {name: cause for name, (_, cause) in DAMAGES.items()}
    assert requests(local_site, talk) == sent
    store.write_bytes(whole)
    assert (await talk.turn("is it there?")).words == ("RESTORED", "COMPLETED", CONFIRMED)
    assert history(local_site, talk).is_complete


@on_local
@pytest.mark.full
async def test_a_damaged_store_of_a_running_process_is_lost_too(local_site: Site) -> None:
    talk = pi(local_site)
    told = await talk.begin("remember: running")
    store = store_of(local_site, told)
    store.write_bytes(store.read_bytes()[:-30])
    with pytest.raises(ContextLostError) as lost:
        await talk.turn("is it there?")
    assert lost.value.metadata["cause"] == "STORE_MISSING"


TEXTS = (
    "/help me",
    "/compact",
    "!ls -l",
    "@notes.txt what is in it?",
    "$HOME and `ls`",
    "  leading and trailing \t",
    "one\r\ntwo\r\n",
    "line separators \u2028 and \u2029 and \x85",
    "🎉 ✓ \u200d \ufeff",
    "--version",
    "x" * 200_000,
)


@on_local
@pytest.mark.full
async def test_every_text_reaches_the_model_as_it_was_said(local_site: Site) -> None:
    talk = pi(local_site)
    await talk.begin("remember: verbatim")
    for text in TEXTS:
        told = await talk.turn(text)
        assert told.words[1:] == ("COMPLETED", CONFIRMED), text[:40]
        newest = rows_of_talk(local_site.lab.log.rows(), talk.said[0].user)[-1]
        assert newest["messages"][-1]["texts"] == [text]
    assert history(local_site, talk).is_complete


@on_local
@pytest.mark.full
async def test_a_long_reply_is_one_message(local_site: Site) -> None:
    talk = pi(local_site)
    await talk.begin("remember: length")
    told = await talk.turn("much [[lab:long=3MiB]]")
    assert told.words == ("LIVE", "COMPLETED", CONFIRMED)
    assert len(told.answer) == 3 * 1024 * 1024


@on_local
@pytest.mark.full
async def test_other_settings_are_a_new_process_on_the_same_session(local_site: Site) -> None:
    talk = pi(local_site)
    first = await talk.begin("remember: settings")
    talk._model = "other-model"
    after = await talk.turn("and now?")
    assert after.words == ("RESTORED", "COMPLETED", CONFIRMED)
    assert after.turn.context_reason == "SETTINGS_CHANGED"
    assert (after.session, after.process) == (first.session, first.process + 1)
    assert rows_of_talk(local_site.lab.log.rows(), talk.said[0].user)[-1]["model"] == "other-model"


@on_local
async def test_what_this_cli_has_no_notion_of_is_refused(local_site: Site) -> None:
    for talk in (local_site.talk(agent="pi"), local_site.talk(agent="pi", model=MODEL, thinking="high")):
        with pytest.raises(ClientError) as refused:
            await talk.turn("hello")
        assert refused.value.reason == "SETTING_UNKNOWN"
