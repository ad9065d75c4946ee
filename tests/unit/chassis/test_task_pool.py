"""Tasks of a pool: a crash is logged and contained, the bound holds, close is bounded."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import pytest

from standfast_chassis.errors import TaskPoolClosedError, TaskPoolFullError
from standfast_chassis.logs import configure_logs
from standfast_chassis.secret_mask import SecretMask
from standfast_chassis.task_pool import TaskPool


@pytest.fixture
def log() -> io.StringIO:
    out = io.StringIO()
    configure_logs("test", SecretMask(), stream=out, pretty=False)
    return out


def _lines(log: io.StringIO) -> list[dict[str, Any]]:
    """Ours: a library's thread of another test may still be reporting."""
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    return [line for line in lines if line["logger"].startswith("standfast")]


async def _forever() -> None:
    await asyncio.Event().wait()


async def test_a_crash_is_logged_once_and_the_others_go_on(log: io.StringIO) -> None:
    crashes: list[tuple[str, str]] = []
    async with TaskPool("turns", on_crash=lambda name, error: crashes.append((name, str(error)))) as pool:
        other = pool.start(_forever, name="other")

        async def crash() -> None:
            raise RuntimeError("gone")

        crashed = pool.start(crash, name="t1")
        await crashed
        assert not other.done()
        assert len(pool) == 1
    (line,) = _lines(log)
    assert (line["pool"], line["task"]) == ("turns", "t1")
    assert "RuntimeError: gone" in line["exception"]
    assert crashes == [("t1", "gone")]
    assert other.cancelled()


async def test_more_tasks_than_the_bound_are_refused_until_one_ends(log: io.StringIO) -> None:
    async with TaskPool("turns", tasks_max=1) as pool:
        first = pool.start(_forever, name="1")
        with pytest.raises(TaskPoolFullError) as caught:
            pool.start(_forever, name="2")
        assert caught.value.metadata == {"pool": "turns", "tasks_max": "1"}
        first.cancel()
        await asyncio.wait([first])
        pool.start(_forever, name="3")


async def test_close_waits_for_tasks_to_clean_up_and_refuses_new_ones(log: io.StringIO) -> None:
    cleaned = asyncio.Event()

    async def careful() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            cleaned.set()

    pool = TaskPool("turns")
    task = pool.start(careful, name="1")
    await asyncio.sleep(0)
    await pool.close()
    assert cleaned.is_set()
    assert task.cancelled()
    with pytest.raises(TaskPoolClosedError):
        pool.start(_forever, name="late")
    await pool.close()
    assert _lines(log) == []


async def test_close_is_bounded_and_names_who_did_not_end(log: io.StringIO) -> None:
    release = asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    pool = TaskPool("turns", close_timeout_s=0.05)
    task = pool.start(stubborn, name="1")
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await pool.close()
    assert [line["tasks"] for line in _lines(log)] == [["turns:1"]]
    release.set()
    await asyncio.wait([task], timeout=5)


async def test_a_task_may_close_its_own_pool(log: io.StringIO) -> None:
    pool = TaskPool("turns")
    other = pool.start(_forever, name="other")
    task = pool.start(pool.close, name="closer")
    async with asyncio.timeout(5):
        await task
    assert other.cancelled()
