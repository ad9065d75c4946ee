"""Waits until a process says by gRPC health that it serves."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from standfast_chassis.grpc_channel import open_channel
from standfast_client.house.child import Child
from standfast_client.house.errors import HouseBrokeError

POLL_S = 0.05
CALL_TIMEOUT_S = 2.0


async def wait_until_serving(child: Child, address: str, timeout_s: float) -> None:
    """Returns when `address` is SERVING. Raises HouseBrokeError when the child ends first, or the time is up."""
    deadline = time.monotonic() + timeout_s
    seen = "no answer"
    async with open_channel(address) as channel:
        # The package's stubs know the service but not the stub's methods.
        stub: Any = health_pb2_grpc.HealthStub(channel)
        while child.exit_code is None and time.monotonic() < deadline:
            try:
                answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=CALL_TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                seen = error.code().name
            else:
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return
                seen = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
            await asyncio.sleep(POLL_S)
    if child.exit_code is not None:
        raise HouseBrokeError(
            f"{child.name} ended with code {child.exit_code} before it was ready; its own lines above say why.",
            {"process": child.name, "exit_code": child.exit_code},
        )
    raise HouseBrokeError(
        f"{child.name} was not ready within {timeout_s:g} s (health at {address}: {seen}); its own lines above say why.",
        {"process": child.name, "health": seen},
    )
