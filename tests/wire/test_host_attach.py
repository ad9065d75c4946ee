"""The stream that carries a turn's work, before anything is attached."""

from __future__ import annotations

from typing import Any, cast

import grpc
import pytest

from sandbox_manager.host.conductor.agent import HostAgent
from sandbox_manager.host.service import HostAgentService
from sandbox_manager.host.status import CODES
from standfast.host.v1 import host_agent_pb2 as pb
from standfast.host.v1 import host_agent_pb2_grpc
from standfast_chassis.grpc_channel import open_channel
from standfast_chassis.grpc_server import GrpcServer
from standfast_chassis.rpc_status import RemoteError, remote_errors


@pytest.mark.parametrize("first", [None, pb.AttachRequest(frame=b"{}\n")])
async def test_a_stream_that_does_not_begin_with_its_grant_is_ended(first: pb.AttachRequest | None) -> None:
    """Also one that says nothing: it must not be held for ever."""
    async with GrpcServer(codes=CODES, stop_grace_s=0) as server:
        # Nothing is asked of the agent before the grant is there.
        service = HostAgentService(cast(HostAgent, None), open_wait_s=0.2)
        host_agent_pb2_grpc.add_HostAgentServiceServicer_to_server(service, server.grpc)
        port = server.listen("127.0.0.1:0")
        await server.start(["standfast.host.v1.HostAgentService"])
        async with open_channel(f"127.0.0.1:{port}") as channel:
            call: Any = host_agent_pb2_grpc.HostAgentServiceStub(channel).Attach(timeout=20)
            if first is not None:
                await call.write(first)
            with pytest.raises(RemoteError) as ended, remote_errors():
                await call.read()
    assert (ended.value.code, ended.value.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "REQUEST_INVALID")
