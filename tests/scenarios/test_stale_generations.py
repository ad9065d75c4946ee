"""What was decided on an older generation of a group is refused by the host that knows a newer one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from standfast.host.v1 import host_agent_pb2 as pb
from standfast.host.v1.host_agent_pb2_grpc import HostAgentServiceStub
from standfast_chassis.grpc_channel import open_channel
from standfast_chassis.rpc_status import RemoteError, remote_errors
from tests.scenarios.stage import Stage

pytestmark = [pytest.mark.engine("local"), pytest.mark.asyncio(loop_scope="module")]

CALLS: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "stop": lambda stub, group: stub.StopSandbox(pb.StopSandboxRequest(**group, force=True), timeout=20),
    "remove": lambda stub, group: stub.RemoveSandbox(pb.RemoveSandboxRequest(**group), timeout=20),
    "ensure": lambda stub, group: stub.EnsureSandbox(pb.EnsureSandboxRequest(**group, nonce="n"), timeout=20),
}


@pytest.mark.parametrize("call", CALLS)
async def test_an_older_generation_stops_removes_and_starts_nothing(stage: Stage, conversation: str, call: str) -> None:
    assert (await stage.begin(conversation)).outcome == "COMPLETED"
    (group,) = stage.rows("manager", "select * from groups where conversation_id = ?", conversation)
    wanted = {"group_id": group["group_id"], "container_id": group["container_id"], "container_generation": 0}
    async with open_channel(stage.fleet.host_agent.address) as channel:
        with pytest.raises(RemoteError) as refused, remote_errors():
            await CALLS[call](HostAgentServiceStub(channel), wanted)
    assert refused.value.reason == "GENERATION_STALE"
    assert (await stage.ask(conversation, "what is the colour?")).state == "LIVE"
