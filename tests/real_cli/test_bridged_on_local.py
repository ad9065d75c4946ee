"""OpenCode and Kilo through the whole product on `local`: their sessions are kept, proved, and refused when they cannot be."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from deploy.release.manifest import manifest_of, write_manifest
from deploy.release.measure import measured_tools
from deploy.release.pins import chosen_pins
from deploy.release.tool_folder import laid_out_tools, local_image_id
from standfast.runner.v1 import runner_pb2 as pb
from standfast_lab.fleet.fleet import Parts
from tests.conftest import CACHE
from tests.real_cli.site import Site, command_lines
from tests.real_cli.talk import CONFIRMED, Talk

pytestmark = [pytest.mark.engine("local"), pytest.mark.timeout(1200)]
LOOP = "module"


@pytest.fixture(scope="module", params=["opencode", pytest.param("kilo", marks=pytest.mark.full)])
def agent(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(agent: str, short_folder: Callable[[], Path]) -> AsyncIterator[Site]:
    """The product on `local` with a tool folder of the one CLI, shared by the module's tests."""
    folder = short_folder()
    pins = chosen_pins([agent])
    tools = folder / "tools"
    laid = laid_out_tools(pins, CACHE) / agent
    (tools / agent).mkdir(parents=True)
    (tools / agent / agent).hardlink_to(laid / agent)
    measured = measured_tools(tools, pins)
    manifest = folder / "manifest.json"
    write_manifest(manifest, manifest_of(local_image_id(measured), measured, "unknown", None))
    async with Site(folder / "f", Parts("local", manifest, tools=tools)) as made:
        yield made


def talk_of(site: Site, agent: str, **options: str) -> Talk:
    return Talk(site.client, agent=agent, model="lab-1", options=options)


def databases(site: Site, agent: str, session: str) -> list[Path]:
    """The session's database files below the fleet's folder."""
    found = [path for path in site.fleet.folder.rglob(f"{agent}.db") if session.encode() in _bytes_with_wal(path)]
    assert len(found) == 1, f"expected one database with {session}, found {found}"
    return [found[0], found[0].with_name(f"{agent}.db-wal")]


def _bytes_with_wal(path: Path) -> bytes:
    wal = path.with_name(path.name + "-wal")
    return path.read_bytes() + (wal.read_bytes() if wal.exists() else b"")


@pytest.mark.asyncio(loop_scope=LOOP)
async def test_a_session_is_new_live_restored_and_lost_when_its_log_is_gone(site: Site, agent: str) -> None:
    talk = talk_of(site, agent)
    first = await talk.begin()
    assert first.session.startswith("ses_")
    live = await talk.turn("what is the word?")
    assert live.words == ("LIVE", "COMPLETED", CONFIRMED), live.turn
    assert live.answer == "the word is plum"
    assert live.process == first.process
    assert live.session == first.session
    await talk.stop()
    servers = [
        words for words in command_lines().values() if "serve" in words and str(site.fleet.folder) in " ".join(words)
    ]
    assert servers == [], "the server outlived its bridge"
    restored = await talk.turn("what is the word?")
    assert restored.words == ("RESTORED", "COMPLETED", CONFIRMED), restored.turn
    assert (restored.answer, restored.session) == ("the word is plum", first.session)
    failed = await talk.turn("[[lab:status=401]] fail")
    assert failed.words == ("LIVE", "FAILED", CONFIRMED), failed.turn
    assert failed.turn.locator_saved
    after = await talk.turn("what is the word?")
    assert after.words == ("LIVE", "COMPLETED", CONFIRMED), after.turn
    assert after.answer == "the word is plum"
    await talk.stop()
    database, wal = databases(site, agent, first.session)
    assert wal.exists(), "the CLI kept everything in the database alone: this test shows nothing"
    wal.unlink()
    error, refused = await talk.refusal("what is the word?")
    assert error.reason == "CONTEXT_LOST", error
    assert error.metadata["cause"] in ("STORE_MISSING", "HISTORY_CHANGED_OUTSIDE_TURN"), error.metadata
    assert pb.Turn.Name if refused is None else refused.locator.native_session_id in ("", first.session)
    assert database.exists()


@pytest.mark.full
@pytest.mark.asyncio(loop_scope=LOOP)
async def test_a_cancelled_turn_ends_natively_and_the_session_goes_on(site: Site, agent: str) -> None:
    talk = talk_of(site, agent)
    await talk.begin()
    cancelled = await talk.cancelled("[[lab:slow=200x100ms]] talk", lambda event: event.HasField("text_delta"))
    assert (cancelled.outcome, cancelled.verdicts) == ("CANCELLED", CONFIRMED), cancelled.turn
    after = await talk.turn("what is the word?")
    assert after.words == ("RESTORED", "COMPLETED", CONFIRMED), after.turn
    assert after.answer == "the word is plum"


@pytest.mark.full
@pytest.mark.asyncio(loop_scope=LOOP)
async def test_a_reported_childs_permission_is_answered_and_its_text_is_no_output(site: Site, agent: str) -> None:
    talk = talk_of(site, agent)
    await talk.begin()
    child = '[[lab:tool=bash {"command":"echo from-the-child","description":"say"}]] work'
    delegated = await talk.turn(
        '[[lab:tool=task {"description":"child","prompt":' + _quoted(child) + ',"subagent_type":"general"}]] delegate'
    )
    assert delegated.words == ("LIVE", "COMPLETED", CONFIRMED), delegated.turn
    of_child = [
        event.tool_result.text for event in delegated.events if event.HasField("tool_result") and event.parent_id
    ]
    assert any("from-the-child" in text for text in of_child), delegated.events
    assert not any("from-the-child" in text for text in delegated.replies)
    assert delegated.session == (await talk.turn("count")).session


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
