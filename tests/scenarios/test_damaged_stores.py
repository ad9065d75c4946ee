"""A native store that is not as it was left: LOST by the right name, nothing sent, nothing repaired; put back: RESTORED."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.scenarios.stage import Stage, Told

pytestmark = [pytest.mark.engine("local"), pytest.mark.asyncio(loop_scope="module")]


@dataclass
class Kept:
    """A conversation with two settled turns, and its transcript as it was left."""

    stage: Stage
    conversation: str
    last: Told
    path: Path
    content: bytes


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kept(stage: Stage) -> AsyncIterator[Kept]:
    await stage.begin("kept")
    last = await stage.ask("kept", "what is the colour?")
    await stage.client.stop_conversation("kept")
    path = stage.transcript(last)
    yield Kept(stage, "kept", last, path, path.read_bytes())


def record(kind: str, parent: str | None, text: str, **more: Any) -> bytes:
    message = {"role": kind, "content": [{"type": "text", "text": text}], "id": "msg_x", "model": "m"}
    made = {"parentUuid": parent, "isSidechain": False, "type": kind, "message": message, **more}
    return json.dumps({"uuid": "0badc0de-0000-4000-8000-000000000001", **made}).encode() + b"\n"


def leaf(content: bytes) -> str:
    records = [json.loads(line) for line in content.splitlines()]
    return str([one["uuid"] for one in records if one["type"] == "assistant"][-1])


def one_byte(content: bytes) -> bytes:
    at = content.index(b"green")
    return content[:at] + b"G" + content[at + 1 :]


def without_the_last_reply(content: bytes) -> bytes:
    return b"".join(line for line in content.splitlines(keepends=True) if leaf(content).encode() not in line)


def other_writer(content: bytes) -> bytes:
    """A second process has written a branch of its own beside the last reply."""
    first = json.loads(next(line for line in content.splitlines() if b'"assistant"' in line))["uuid"]
    return content + record("user", first, "from elsewhere")


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "one byte of an old record": (one_byte, "HISTORY_CHANGED_OUTSIDE_TURN"),
    "half a record at the end": (lambda c: c + record("user", leaf(c), "half")[:40], "HISTORY_TORN"),
    "two records glued": (lambda c: c + b'{"type":"user","uu{"type":"mode","mode":"normal"}\n', "HISTORY_TORN"),
    "a half record after the settled ones": (lambda c: c[:-20], "HISTORY_TORN"),
    "the last reply cut": (lambda c: c[: c.index(leaf(c).encode())], "STORE_MISSING"),
    "the last reply taken out": (without_the_last_reply, "STORE_MISSING"),
    "another writer's branch": (other_writer, "HISTORY_CHANGED_OUTSIDE_TURN"),
    "a kind nobody knows": (lambda c: c + b'{"type":"memory-edit","text":"x"}\n', "HISTORY_CHANGED_OUTSIDE_TURN"),
    "an assistant's text": (lambda c: c + record("assistant", leaf(c), "said?"), "HISTORY_CHANGED_OUTSIDE_TURN"),
    "a parent that is nowhere": (
        lambda c: (
            c + record("assistant", "0badc0de-ffff-4000-8000-000000000001", "e").replace(b'"m"', b'"<synthetic>"')
        ),
        "HISTORY_BROKEN",
    ),
    "another session's record": (
        lambda c: c + b'{"type":"mode","mode":"normal","sessionId":"0badc0de-1111-4000-8000-000000000001"}\n',
        "NATIVE_SESSION_MISMATCH",
    ),
    "an empty file": (lambda c: b"", "STORE_MISSING"),
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_store_is_lost_by_name_and_restored_when_it_is_put_back(kept: Kept, damage: str) -> None:
    change, reason = DAMAGES[damage]
    stage, content = kept.stage, kept.path.read_bytes()
    times = os.stat(kept.path)
    damaged = change(content)
    kept.path.write_bytes(damaged)
    os.utime(kept.path, ns=(times.st_atime_ns, times.st_mtime_ns))
    sent = len(stage.requests())
    try:
        told = await stage.ask(kept.conversation, "what is the colour?")
        assert (told.state, told.outcome, told.reason) == ("LOST", "REFUSED", reason)
        assert len(stage.requests()) == sent
        assert kept.path.read_bytes() == damaged
        # The same turn says so again; it is not tried anew.
        again = await stage.ask(kept.conversation, "what is the colour?", turn_id=told.turn.turn_id)
        assert again.reason == reason
    finally:
        kept.path.write_bytes(content)
    told = await stage.ask(kept.conversation, "what is the colour?")
    assert (told.state, told.text, told.session) == ("RESTORED", "the colour is green", kept.last.session)
    await stage.client.stop_conversation(kept.conversation)


async def test_a_changed_byte_is_seen_while_the_process_lives(stage: Stage, conversation: str) -> None:
    told = await stage.begin(conversation)
    path = stage.transcript(told)
    content = path.read_bytes()
    path.write_bytes(one_byte(content))
    lost = await stage.ask(conversation, "what is the colour?")
    assert (lost.state, lost.reason) == ("LOST", "HISTORY_CHANGED_OUTSIDE_TURN")
    path.write_bytes(content)
    assert (await stage.ask(conversation, "what is the colour?")).text == "the colour is green"


async def test_a_link_in_place_of_the_store_is_not_followed(stage: Stage, conversation: str) -> None:
    told = await stage.begin(conversation)
    await stage.client.stop_conversation(conversation)
    path = stage.transcript(told)
    real = path.with_name("elsewhere")
    path.rename(real)
    path.symlink_to(real)
    lost = await stage.ask(conversation, "what is the colour?")
    assert (lost.state, lost.reason) == ("LOST", "HISTORY_CHANGED_OUTSIDE_TURN")


async def test_bookkeeping_at_any_time_is_no_change(stage: Stage, conversation: str) -> None:
    told = await stage.begin(conversation)
    await stage.client.stop_conversation(conversation)
    path = stage.transcript(told)
    path.write_bytes(
        path.read_bytes() + json.dumps({"type": "mode", "mode": "normal", "sessionId": told.session}).encode() + b"\n"
    )
    after = await stage.ask(conversation, "what is the colour?")
    assert (after.state, after.text) == ("RESTORED", "the colour is green")


async def test_another_container_in_the_place_of_the_recorded_one_is_lost(stage: Stage, conversation: str) -> None:
    told = await stage.begin(conversation)
    await stage.client.stop_conversation(conversation)
    nonce = stage.transcript(told).parents[5].parent / "sf" / "nonce"
    content = nonce.read_bytes()
    nonce.write_bytes(content[::-1])
    lost = await stage.ask(conversation, "what is the colour?")
    assert (lost.state, lost.reason) == ("LOST", "CONTAINER_CHANGED")
    await stage.client.stop_conversation(conversation)  # the supervisor reads its nonce when it starts
    nonce.write_bytes(content)
    after = await stage.ask(conversation, "what is the colour?")
    assert (after.state, after.reason) == ("RESTORED", "")
