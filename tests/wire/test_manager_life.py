"""Sandboxes over time: stopped in order, found exited, idle, removed; and what a manager that was killed goes on with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from standfast.sandbox.v1 import sandbox_manager_pb2 as pb
from standfast.types.v1 import types_pb2 as types
from tests.fake_host import FakeHost, HostSaysError
from tests.manager_runs import RunnerCalls, refused, release, running_manager, until

World = tuple[FakeHost, RunnerCalls]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A host and a runner. The conversation `c` has one settled turn, and its sandbox runs."""
    async with (
        running_manager(tmp_path) as manager,
        FakeHost(manager.address, release_sha=release()) as host,
        RunnerCalls(manager.address, host) as runner,
    ):
        await host.register()
        await runner.settled("c", "t1")
        yield host, runner


async def becomes(runner: RunnerCalls, state: str) -> None:
    """Waits until the group of `c` is in that state."""

    async def is_so() -> bool:
        return (await runner.conversation("c")).group_state == state

    await until(is_so)


async def test_a_stop_is_recorded_and_said_again(world: World) -> None:
    host, runner = world
    assert (await runner.stop("c")).group_state == "STOPPED"
    assert (await runner.stop("c")).group_state == "STOPPED"
    assert host.calls.count("StopSandbox") == 1
    assert host.container_of("c").state == "exited"


async def test_a_stop_that_was_not_orderly_is_unclean_and_the_next_turn_is_restored_by_proof(world: World) -> None:
    host, runner = world
    host.orderly = False
    assert (await runner.stop("c")).group_state == "UNCLEAN"
    after = await runner.settled("c", "t2")
    assert after.admitted is not None
    assert after.admitted.context_state == types.CONTEXT_STATE_RESTORED


async def test_a_running_turn_is_not_stopped_without_force(world: World) -> None:
    host, runner = world
    await runner.admitted("c", "t2")
    with refused("CONVERSATION_BUSY"):
        await runner.stop("c")
    assert host.container_of("c").state == "running"
    assert (await runner.stop("c", force=True)).group_state == "STOPPED"


async def test_what_is_not_known_cannot_be_stopped_or_removed(world: World) -> None:
    _, runner = world
    with refused("CONVERSATION_UNKNOWN"):
        await runner.stop("nobody")
    with refused("CONVERSATION_UNKNOWN"):
        await runner.remove("nobody")


async def test_a_container_that_exited_by_itself_is_unclean_whatever_its_exit_code(world: World) -> None:
    host, runner = world
    container = host.container_of("c")
    container.state, container.exit_code = "exited", 0
    await host.beat()
    await becomes(runner, "UNCLEAN")
    after = await runner.settled("c", "t2")
    assert after.admitted is not None
    assert (after.admitted.context_state, after.grant.container_id) == (
        types.CONTEXT_STATE_RESTORED,
        container.container_id,
    )


async def test_a_process_of_a_former_run_of_the_container_is_not_granted_even_at_the_second_try(world: World) -> None:
    host, runner = world
    container = host.container_of("c")
    container.starts += 1  # somebody else restarted it
    host.failing["ReadStore"] = HostSaysError("SUPERVISOR_UNAVAILABLE")
    await runner.claim("c", "t2")
    with refused("SUPERVISOR_UNAVAILABLE"):
        await runner.prepare("c", "t2")
    host.failing.clear()
    prepared = await runner.prepare("c", "t2")
    assert host.grant(prepared.grant.activation_token)["reuse_process_generation"] is None


async def test_an_old_heartbeat_does_not_make_a_running_container_unclean(world: World) -> None:
    """The heartbeat raises the question; the inspect, which is newer, answers it."""
    host, runner = world
    container = host.container_of("c")
    container.state = "exited"

    def is_back(name: str) -> None:
        if name == "InspectSandbox":
            container.state = "running"

    host.on_call = is_back
    await host.beat()

    async def was_inspected() -> bool:
        return host.calls.count("InspectSandbox") >= 2

    await until(was_inspected)
    assert (await runner.conversation("c")).group_state == "RUNNING"


async def test_a_container_that_is_no_longer_listed_is_gone_and_unclean_when_it_is_back(world: World) -> None:
    host, runner = world
    container = host.containers.pop(host.container_of("c").group_id)
    await host.beat()
    await becomes(runner, "GONE")
    container.state = "exited"
    host.containers[container.group_id] = container
    await host.beat()
    await becomes(runner, "UNCLEAN")


async def test_an_idle_sandbox_is_stopped_and_a_busy_one_is_not(tmp_path: Path) -> None:
    async with (
        running_manager(tmp_path, idle_stop_s=0.3) as manager,
        FakeHost(manager.address, release_sha=release()) as host,
        RunnerCalls(manager.address, host) as runner,
    ):
        await host.register()
        busy = await runner.admitted("busy", "t1")
        await runner.settled("c", "t1")
        await becomes(runner, "STOPPED")
        assert (await runner.conversation("busy")).group_state == "RUNNING"
        runner.play(busy)
        assert (await runner.settle(busy)).saved


async def test_with_idle_stop_off_a_sandbox_runs_on(tmp_path: Path) -> None:
    async with (
        running_manager(tmp_path, idle_stop_s=0) as manager,
        FakeHost(manager.address, release_sha=release()) as host,
        RunnerCalls(manager.address, host) as runner,
    ):
        await host.register()
        await runner.settled("c", "t1")
        for _ in range(5):
            await manager.reconciler.pass_once()
        assert (await runner.conversation("c")).group_state == "RUNNING"


async def test_a_stop_that_the_host_did_not_answer_is_gone_on_with(world: World) -> None:
    """STOPPING is durable before the first action: whoever comes next finishes it."""
    host, runner = world
    host.failing["StopSandbox"] = HostSaysError("ENGINE_UNAVAILABLE")
    with refused("ENGINE_UNAVAILABLE"):
        await runner.stop("c")
    assert (await runner.conversation("c")).group_state == "STOPPING"
    host.failing.clear()
    await becomes(runner, "STOPPED")


async def test_a_turn_that_meets_a_half_done_stop_finishes_it_first(world: World) -> None:
    host, runner = world
    host.failing["StopSandbox"] = HostSaysError("ENGINE_UNAVAILABLE")
    with refused("ENGINE_UNAVAILABLE"):
        await runner.stop("c")
    host.failing.clear()
    after = await runner.settled("c", "t2")
    assert after.admitted is not None
    assert after.admitted.context_state == types.CONTEXT_STATE_RESTORED
    assert host.calls.index("StopSandbox") < len(host.calls) - 1 - host.calls[::-1].index("EnsureSandbox")


async def test_a_restarted_manager_goes_on_with_a_half_done_stop(tmp_path: Path) -> None:
    async with running_manager(tmp_path) as manager, FakeHost(manager.address, release_sha=release()) as host:
        await host.register()
        async with RunnerCalls(manager.address, host) as runner:
            await runner.settled("c", "t1")
            host.failing["StopSandbox"] = HostSaysError("ENGINE_UNAVAILABLE")
            with refused("ENGINE_UNAVAILABLE"):
                await runner.stop("c")
    host.failing.clear()
    async with running_manager(tmp_path, listen=manager.address), host:
        await host.beat()
        async with RunnerCalls(manager.address, host) as runner:
            await becomes(runner, "STOPPED")


async def test_a_start_that_failed_is_tried_again_with_the_same_container(world: World) -> None:
    host, runner = world
    await runner.stop("c")
    host.failing["EnsureSandbox"] = HostSaysError("STORAGE_FULL")
    await runner.claim("c", "t2")
    with refused("STORAGE_FULL"):
        await runner.prepare("c", "t2")
    assert (await runner.conversation("c")).group_state == "UNCLEAN"
    host.failing.clear()
    assert (await runner.prepare("c", "t2")).grant.container_id == host.container_of("c").container_id


async def test_the_clean_stop_is_void_before_the_container_starts_again(tmp_path: Path) -> None:
    async with (
        running_manager(tmp_path) as manager,
        FakeHost(manager.address, release_sha=release()) as host,
        RunnerCalls(manager.address, host) as runner,
    ):
        await host.register()
        group_id = (await runner.settled("c", "t1")).grant.group_id
        await runner.stop("c")
        stopped = await manager.parts.store.group(group_id)
        assert stopped is not None
        assert stopped.stopped_finished_at == host.container_of("c").finished_at
        host.failing["EnsureSandbox"] = HostSaysError("ENGINE_UNAVAILABLE")
        await runner.claim("c", "t2")
        with refused("ENGINE_UNAVAILABLE"):
            await runner.prepare("c", "t2")
        starting = await manager.parts.store.group(group_id)
        assert starting is not None
        assert (starting.state, starting.stopped_container_id, starting.stopped_finished_at) == ("STARTING", None, None)


async def test_a_first_turns_container_that_is_gone_is_made_anew_with_the_next_generation(world: World) -> None:
    host, runner = world
    first = await runner.admitted("d", "t1")
    runner.play(first, ends=False)
    await runner.abandon("d", "t1", "INTERRUPTED")
    host.containers.pop(host.container_of("d").group_id)
    second = await runner.settled("d", "t2")
    assert second.grant.generations.container == first.grant.generations.container + 1
    assert second.grant.container_id != first.grant.container_id
    assert second.admitted is not None
    assert second.admitted.context_state == types.CONTEXT_STATE_NEW


async def test_a_removed_conversation_leaves_a_tombstone(world: World) -> None:
    host, runner = world
    await runner.remove("c")
    await runner.remove("c")
    assert host.containers == {}
    with refused("CONVERSATION_REMOVED"):
        await runner.claim("c", "t2")
    with refused("CONVERSATION_REMOVED"):
        await runner.claim("c", "t2", expect="NEW")


async def test_a_container_whose_host_was_away_is_removed_when_it_is_back(world: World) -> None:
    host, runner = world
    host.failing["RemoveSandbox"] = HostSaysError("ENGINE_UNAVAILABLE")
    await runner.remove("c")
    with refused("CONVERSATION_REMOVED"):
        await runner.claim("c", "t2")
    host.failing.clear()

    async def is_gone() -> bool:
        return not host.containers

    await until(is_gone)


async def test_a_busy_conversation_is_not_removed_without_force(world: World) -> None:
    host, runner = world
    running = await runner.admitted("c", "t2")
    with refused("CONVERSATION_BUSY"):
        await runner.remove("c")
    await runner.remove("c", force=True)
    assert host.containers == {}
    with refused("ACTIVATION_EXPIRED"):
        await runner.renew(running)


async def test_conversations_are_listed_in_pages_oldest_first(world: World) -> None:
    _, runner = world
    for name in ("d", "e", "f"):
        await runner.claim(name, "t1")
        await runner.prepare(name, "t1")
    await runner.remove("e", force=True)
    seen: list[str] = []
    token = ""
    while True:
        page = await runner.stub.ListConversations(
            pb.ListConversationsRequest(page_size=2, page_token=token), timeout=10
        )
        seen += [one.conversation.conversation_id for one in page.conversations]
        token = page.next_page_token
        if not token:
            break
    assert seen == ["c", "d", "f"]
