"""The four states over real gRPC: a real manager, a host agent whose facts are scripted."""

from __future__ import annotations

from pathlib import Path

from standfast.types.v1 import types_pb2 as types
from tests.fake_host import FakeHost
from tests.manager_runs import RunnerCalls, release, running_manager


async def test_a_conversation_is_new_then_live_then_restored(tmp_path: Path) -> None:
    async with (
        running_manager(tmp_path) as manager,
        FakeHost(manager.address, release_sha=release()) as host,
        RunnerCalls(manager.address, host) as runner,
    ):
        await host.register()
        first = await runner.settled("c1", "t1", "remember: plum")
        second = await runner.settled("c1", "t2", "what was it?")
        stopped = await runner.stop("c1")
        third = await runner.settled("c1", "t3", "and again?")

        assert first.admitted is not None
        assert second.admitted is not None
        assert third.admitted is not None
        assert (first.admitted.context_state, first.admitted.context_reason) == (types.CONTEXT_STATE_NEW, "FIRST_TURN")
        assert (second.admitted.context_state, second.admitted.context_reason) == (
            types.CONTEXT_STATE_LIVE,
            "PROCESS_KEPT",
        )
        assert second.admitted.generations.process == first.admitted.generations.process
        assert stopped.group_state == "STOPPED"
        assert (third.admitted.context_state, third.admitted.context_reason) == (
            types.CONTEXT_STATE_RESTORED,
            "SANDBOX_STOPPED",
        )
        processes = [turn.generations.process for turn in (first.admitted, second.admitted, third.admitted)]
        assert processes == [1, 1, 2]
        assert third.grant.container_id == first.grant.container_id
        assert third.grant.locator == first.grant.locator
