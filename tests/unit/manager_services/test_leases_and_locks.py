"""Leases are elapsed time; a conversation's work is done one after the other."""

from __future__ import annotations

import asyncio

import pytest

from sandbox_manager.conductor.host_book import Heartbeat, HostBook, SeenContainer
from sandbox_manager.conductor.leases import Leases
from sandbox_manager.conductor.locks import KeyedLocks


class Clock:
    """Monotonic seconds, moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_lease_lives_for_its_length_and_not_a_moment_longer() -> None:
    clock = Clock()
    leases: Leases[str] = Leases(30.0, clock)
    assert not leases.is_live("a")
    assert leases.renew("a") == 30_000
    clock.now += 29.9
    assert leases.is_live("a")
    clock.now += 0.1
    assert not leases.is_live("a")
    assert leases.left_s("a") == 0
    leases.renew("a")
    assert leases.is_live("a")
    leases.end("a")
    leases.end("a")
    assert not leases.is_live("a")


async def test_two_tasks_of_one_key_work_one_after_the_other_and_of_two_keys_at_once() -> None:
    locks = KeyedLocks()
    order: list[str] = []
    first_is_in = asyncio.Event()
    may_leave = asyncio.Event()

    async def first() -> None:
        async with locks.holding("a"):
            first_is_in.set()
            await may_leave.wait()
            order.append("first")

    async def second() -> None:
        async with locks.holding("a"):
            order.append("second")

    async def other() -> None:
        async with locks.holding("b"):
            order.append("other")

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        group.create_task(first())
        await first_is_in.wait()
        waiting = group.create_task(second())
        await group.create_task(other())
        assert not waiting.done()
        assert locks.is_held("a")
        may_leave.set()
    assert order == ["other", "first", "second"]
    assert not locks.is_held("a")
    assert not locks.is_held("b")


async def test_a_cancelled_wait_leaves_the_lock_to_the_next() -> None:
    locks = KeyedLocks()
    entered = asyncio.Event()

    async def hold() -> None:
        async with locks.holding("a"):
            entered.set()
            await asyncio.Event().wait()

    holder = asyncio.create_task(hold())
    async with asyncio.timeout(5):
        await entered.wait()
    waiter = asyncio.create_task(hold())
    await asyncio.sleep(0)
    waiter.cancel()
    holder.cancel()
    await asyncio.gather(waiter, holder, return_exceptions=True)
    async with asyncio.timeout(5), locks.holding("a"):
        pass
    assert not locks.is_held("a")


def seen(conversation: str = "local/c1") -> SeenContainer:
    return SeenContainer("k1", "g1", 1, "running", conversation)


async def test_labels_are_searched_in_hosts_with_a_lease_only() -> None:
    clock = Clock()
    book = HostBook(20.0, clock)
    book.registered("h1")
    await book.beat("h1", Heartbeat(1, (seen(), seen("local/c2")), None))
    assert book.labelled("local/c1") == {"h1": [seen()]}
    clock.now += 21
    assert book.labelled("local/c1") == {}
    assert book.leased() == []


async def test_an_engine_that_does_not_answer_keeps_the_last_word_on_its_containers() -> None:
    book = HostBook(20.0, Clock())
    book.registered("h1")
    await book.beat("h1", Heartbeat(1, (seen(),), 5))
    await book.beat("h1", Heartbeat(1, None, 4))
    assert book.labelled("local/c1") == {"h1": [seen()]}
    found = book.last("h1")
    assert found is not None
    assert (found.disk_free_bytes, found.containers_by_id()) == (4, {"k1": "running"})


async def test_a_wait_for_heartbeats_ends_when_all_have_come_and_never_blocks_for_a_dead_host() -> None:
    book = HostBook(20.0, Clock())
    book.registered("h1")
    book.registered("h2")
    waiting = asyncio.create_task(book.heard_all(10.0))
    await book.beat("h1", Heartbeat(1, (), None))
    assert book.silent() == ["h2"]
    assert not waiting.done()
    await book.beat("h2", Heartbeat(1, None, None))
    assert book.silent() == ["h2"], "an engine that does not answer has listed nothing"
    assert not waiting.done()
    await book.beat("h2", Heartbeat(1, (), None))
    async with asyncio.timeout(5):
        await waiting
    book.registered("h3")
    async with asyncio.timeout(5):
        await book.heard_all(0.05)
    assert book.silent() == ["h3"]


@pytest.mark.parametrize("generation", [1, 2])
async def test_a_new_registration_forgets_the_former_containers(generation: int) -> None:
    book = HostBook(20.0, Clock())
    book.registered("h1")
    await book.beat("h1", Heartbeat(generation, (seen(),), None))
    book.registered("h1")
    assert book.last("h1") is None
    assert book.silent() == ["h1"]
