"""One turn, one run: claims over real gRPC, by one runner and by two, before and after a restart of the manager."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from standfast.sandbox.v1 import sandbox_manager_pb2 as pb
from standfast.types.v1 import types_pb2 as types
from standfast_chassis.rpc_status import RemoteError
from tests.fake_host import FakeHost
from tests.manager_runs import Prepared, RunnerCalls, refused, release, running_manager, until


@pytest.fixture
async def neighbours(tmp_path: Path) -> AsyncIterator[tuple[FakeHost, RunnerCalls, RunnerCalls]]:
    """A host and two runners of one manager, whose leases are short."""
    async with (
        running_manager(tmp_path, activation_lease_s=3.0) as manager,
        FakeHost(manager.address, release_sha=release()) as host,
        RunnerCalls(manager.address, host, "runner-1") as one,
        RunnerCalls(manager.address, host, "runner-2") as two,
    ):
        await host.register()
        yield host, one, two


Neighbours = tuple[FakeHost, RunnerCalls, RunnerCalls]


async def test_case_rpc_double_submission(tmp_path: Path) -> None:
    """The same key is one native turn: while it runs, when it has ended, and after a restart of the manager."""
    async with running_manager(tmp_path) as manager, FakeHost(manager.address, release_sha=release()) as host:
        await host.register()
        async with RunnerCalls(manager.address, host) as runner:
            first = await runner.claim("c", "k1", "charge the card")
            again = await runner.claim("c", "k1", "charge the card")
            assert (first.disposition, again.disposition) == ("CLAIMED", "CLAIMED")
            prepared = await runner.prepare("c", "k1", "charge the card")
            assert (await runner.prepare("c", "k1", "charge the card")).grant == prepared.grant
            await runner.admit(prepared)
            admission = prepared.admitted
            assert (await runner.admit(prepared)) == admission
            running = await runner.claim("c", "k1", "charge the card")
            assert (running.disposition, running.turn.state) == ("RESUME", "ADMITTED")
            runner.play(prepared)
            settled = await runner.settle(prepared)
            ended = await runner.claim("c", "k1", "charge the card")
            assert (ended.disposition, ended.turn.settlement) == ("ENDED", settled)
        container = host.container_of("c")
        stored = container.stores[prepared.grant.locator.store]
    async with (
        running_manager(tmp_path, listen=manager.address) as manager,
        RunnerCalls(manager.address, host) as runner,
    ):
        after = await runner.claim("c", "k1", "charge the card")
        assert (after.disposition, after.turn.settlement) == ("ENDED", settled)
        assert container.stores[prepared.grant.locator.store] == stored
        assert stored.count(b'"type":"user"') == 1


async def test_of_two_runners_that_claim_at_once_one_wins(neighbours: Neighbours) -> None:
    _, one, two = neighbours
    answers = await asyncio.gather(one.claim("c", "k2"), two.claim("c", "k2"), return_exceptions=True)
    won = [answer for answer in answers if isinstance(answer, pb.ClaimTurnResponse)]
    lost = [answer for answer in answers if isinstance(answer, RemoteError)]
    assert len(won) == 1
    assert [error.reason for error in lost] == ["TURN_ELSEWHERE"]
    assert lost[0].metadata["address"] == f"{won[0].turn.runner_id}:7400"


async def test_two_calls_of_one_runner_at_once_are_one_claim_and_one_grant(neighbours: Neighbours) -> None:
    _, one, _ = neighbours
    claims = await asyncio.gather(*(one.claim("c", "k2") for _ in range(8)))
    grants = await asyncio.gather(*(one.prepare("c", "k2") for _ in range(4)))
    assert {claim.disposition for claim in claims} == {"CLAIMED"}
    assert len({prepared.grant.activation_id for prepared in grants}) == 1


async def test_the_same_turn_with_another_message_is_refused(neighbours: Neighbours) -> None:
    _, one, _ = neighbours
    await one.claim("c", "t1", "hello")
    with refused("MESSAGE_CHANGED"):
        await one.claim("c", "t1", "hello!")


async def test_case_file_two_writers(neighbours: Neighbours) -> None:
    """One session, one writer: the second turn is refused while the first runs, and runs when it has ended."""
    host, one, two = neighbours
    first = await one.admitted("c", "t1")
    with refused("CONVERSATION_BUSY") as error:
        await two.claim("c", "t2")
    assert error.value.metadata["address"] == "runner-1:7400"
    one.play(first)
    await one.settle(first)
    second = await two.admitted("c", "t2")
    assert second.grant.locator == first.grant.locator
    assert host.container_of("c").process is not None


async def test_a_runner_that_has_lost_sight_of_its_own_turn_is_told_to_resolve_it_first(neighbours: Neighbours) -> None:
    _, one, _ = neighbours
    lost = await one.admitted("c", "t1")
    claim = await one.claim("c", "t2")
    assert (claim.disposition, claim.unresolved.turn_id, claim.unresolved.state) == ("CLAIMED", "t1", "ADMITTED")
    with refused("CONVERSATION_BUSY"):
        await one.prepare("c", "t2")
    one.play(lost, ends=False)
    assert (await one.abandon("c", "t1", "NOT_SENT")).outcome == types.OUTCOME_INTERRUPTED
    assert (await one.prepare("c", "t2")).grant.interrupted_turn_id == "t1"


async def test_a_turn_whose_runner_is_gone_is_taken_over_after_its_lease(neighbours: Neighbours) -> None:
    host, one, two = neighbours
    left = await one.admitted("c", "t1")
    one.play(left)
    with refused("TURN_ELSEWHERE"):
        await two.claim("c", "t1")

    async def taken_over() -> bool:
        try:
            return (await two.claim("c", "t1")).turn.runner_id == "runner-2"
        except RemoteError:
            return False

    await until(taken_over)
    settlement = await two.settle(Prepared("c", "t1", b"hello", left.grant))
    assert settlement.saved
    assert host.calls.count("ListJournal") >= 1


async def test_case_lease_lost_while_loop_blocked(neighbours: Neighbours) -> None:
    """A worker that was blocked for longer than its lease does not also report the turn as completed."""
    _, one, two = neighbours
    blocked = await one.admitted("c", "t1")
    one.play(blocked, ends=False)

    async def given_up() -> bool:
        return (await two.turn("c", "t1")).state == "ABANDONED"

    await until(given_up)
    claim = await two.claim("c", "t2")
    assert claim.disposition == "CLAIMED"
    assert not claim.HasField("unresolved")
    with refused("ACTIVATION_EXPIRED"):
        await one.renew(blocked)
    with refused("GENERATION_STALE"):
        await one.settle(blocked)
    assert (await two.turn("c", "t1")).outcome == types.OUTCOME_INTERRUPTED


async def test_a_lease_that_is_renewed_does_not_run_out(neighbours: Neighbours) -> None:
    _, one, two = neighbours
    prepared = await one.admitted("c", "t1")
    for _ in range(5):
        await asyncio.sleep(0.8)  # the lease is 3 s: without renewals it would be over after four rounds
        assert await one.renew(prepared) == 3000
    with refused("TURN_ELSEWHERE"):
        await two.claim("c", "t1")


async def test_a_grant_that_nobody_used_is_freed_at_the_end_of_its_lease(neighbours: Neighbours) -> None:
    _, one, two = neighbours
    await one.claim("c", "t1")
    prepared = await one.prepare("c", "t1")

    async def freed() -> bool:
        return (await two.turn("c", "t1")).state == "ABANDONED"

    await until(freed)
    turn = await two.turn("c", "t1")
    assert (turn.outcome, turn.reason) == (types.OUTCOME_NOT_SENT, "ACTIVATION_EXPIRED")
    with refused("ACTIVATION_EXPIRED"):
        await one.admit(prepared)
    assert (await two.admitted("c", "t2")).admitted is not None


async def test_a_claim_without_a_grant_outlives_its_lease_for_a_while_and_is_then_given_up(tmp_path: Path) -> None:
    """Its runner may still be resolving the turn before it; nothing renews a claim."""
    async with (
        running_manager(tmp_path, activation_lease_s=0.2) as manager,
        FakeHost(manager.address, release_sha=release()) as host,
        RunnerCalls(manager.address, host) as runner,
    ):
        await host.register()
        await runner.claim("c", "t1")

        async def is_over() -> bool:
            return not manager.parts.leases.is_live(("local", "c", "t1"))

        await until(is_over)
        await manager.reconciler.pass_once()
        assert (await runner.prepare("c", "t1")).grant.activation_id
        await runner.claim("d", "t1")

        async def is_given_up() -> bool:
            return (await runner.turn("d", "t1")).state == "ABANDONED"

        await until(is_given_up)
        assert (await runner.turn("d", "t1")).outcome == types.OUTCOME_NOT_SENT


async def test_nothing_is_admitted_after_the_lease_whether_or_not_the_turn_was_freed(tmp_path: Path) -> None:
    async with (
        running_manager(tmp_path, activation_lease_s=0.2, reconcile_s=3600.0) as manager,
        FakeHost(manager.address, release_sha=release()) as host,
        RunnerCalls(manager.address, host) as runner,
    ):
        await host.register()
        await runner.claim("c", "t1")
        prepared = await runner.prepare("c", "t1")
        report = host.report(prepared.grant.activation_token)

        async def is_over() -> bool:
            return not manager.parts.leases.is_live(("local", "c", "t1"))

        await until(is_over)
        with refused("ACTIVATION_EXPIRED"):
            await runner.admit(prepared, report)
        assert (await runner.turn("c", "t1")).state == "PREPARED"


async def test_a_restarted_manager_gives_each_open_turn_one_full_lease(tmp_path: Path) -> None:
    async with (
        running_manager(tmp_path, activation_lease_s=3.0) as manager,
        FakeHost(manager.address, release_sha=release()) as host,
    ):
        await host.register()
        async with RunnerCalls(manager.address, host) as runner:
            prepared = await runner.admitted("c", "t1")
    await asyncio.sleep(3.2)  # longer than the lease: the clock of a process that is gone says nothing
    async with (
        running_manager(tmp_path, activation_lease_s=3.0, listen=manager.address) as manager,
        RunnerCalls(manager.address) as runner,
    ):
        assert await runner.renew(prepared) == 3000


async def test_another_runner_does_not_give_up_a_turn_while_its_runner_lives(neighbours: Neighbours) -> None:
    host, one, two = neighbours
    prepared = await one.admitted("c", "t1")
    host.never_forwarded(prepared.grant.activation_token)
    with refused("TURN_ELSEWHERE"):
        await two.abandon("c", "t1", "NOT_SENT")
    assert (await one.turn("c", "t1")).state == "ADMITTED"


async def test_a_grant_that_was_attached_and_came_to_nothing_is_replaced(neighbours: Neighbours) -> None:
    """An activation can be attached once: a runner that lost its stream before the admission needs another one."""
    host, one, _ = neighbours
    await one.claim("c", "t1")
    first = await one.prepare("c", "t1")
    host.report(first.grant.activation_token)
    assert (await one.prepare("c", "t1")).grant == first.grant  # the stream may still be open
    host.never_forwarded(first.grant.activation_token)
    second = await one.prepare("c", "t1")
    assert second.grant.activation_id != first.grant.activation_id
    assert second.grant.generations.activation == first.grant.generations.activation + 1
    with refused("ACTIVATION_EXPIRED"):
        await one.admit(first, host.sign_report(host.report_of(first.grant.activation_token)))
    with refused("ACTIVATION_EXPIRED"):
        await one.renew(first)
    assert (await one.admit(second)).context_state == types.CONTEXT_STATE_NEW


async def test_another_runner_is_admitted_to_nothing(neighbours: Neighbours) -> None:
    host, one, two = neighbours
    await one.claim("c", "t1")
    prepared = await one.prepare("c", "t1")
    report = host.report(prepared.grant.activation_token)
    with refused("TURN_ELSEWHERE"):
        await two.admit(prepared, report)
    assert (await one.admit(prepared, report)).context_state == types.CONTEXT_STATE_NEW


async def test_a_stale_generation_renews_nothing(neighbours: Neighbours) -> None:
    _, one, _ = neighbours
    prepared = await one.admitted("c", "t1")
    with refused("GENERATION_STALE"):
        await one.renew(prepared, activation_generation=7)
    one.runner_id = "runner-9"
    with refused("TURN_ELSEWHERE"):
        await one.renew(prepared)
