"""A host agent that cannot be registered says why, once and without a fault's traceback, and tries again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc
from structlog.testing import capture_logs

from sandbox_manager.host.adapters.engine_errors import ImageMissingError
from sandbox_manager.host.conductor.registration import Registration
from standfast.host.v1 import host_registry_pb2 as pb
from standfast.host.v1 import host_registry_pb2_grpc
from standfast_chassis.grpc_channel import open_channel
from standfast_chassis.keys import SigningKey


class Registry(host_registry_pb2_grpc.HostRegistryServiceServicer):
    """Challenges, and waits for the evidence."""

    async def AttestHost(  # noqa: N802 - the RPC's name
        self,
        request_iterator: AsyncIterator[pb.AttestHostRequest],
        context: grpc.aio.ServicerContext[pb.AttestHostRequest, pb.AttestHostResponse],
    ) -> AsyncIterator[pb.AttestHostResponse]:
        await anext(request_iterator)
        key = SigningKey.generate().public.jwk_text()
        yield pb.AttestHostResponse(challenge=pb.AttestChallenge(nonce="n", manager_public_key_jwk=key))
        async for _ in request_iterator:
            return


async def test_an_image_that_is_not_there_is_named_once_and_looked_for_again() -> None:
    server = grpc.aio.server()
    host_registry_pb2_grpc.add_HostRegistryServiceServicer_to_server(
        Registry(),  # type: ignore[abstract]  # the other calls are not made here
        server,
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    measured = asyncio.Semaphore(0)

    async def evidence() -> Mapping[str, Any]:
        measured.release()
        raise ImageMissingError("docker: expected the image standfast/sandbox:none, found none of that name")

    async def heartbeat() -> pb.HeartbeatRequest:
        return pb.HeartbeatRequest()

    async def on_state(_: bool) -> None:
        return

    async with open_channel(f"127.0.0.1:{port}") as channel:
        registration = Registration(
            channel=channel,
            manager=f"127.0.0.1:{port}",
            host_id="h",
            key=SigningKey.generate(),
            address="127.0.0.1:1",
            engine="docker",
            evidence=evidence,
            heartbeat=heartbeat,
        )
        with capture_logs() as logs:
            running = asyncio.get_running_loop().create_task(registration.run(on_state))
            async with asyncio.timeout(20):
                for _ in range(3):
                    await measured.acquire()
            running.cancel()
            await asyncio.wait({running})
    await server.stop(0)
    errors = [entry for entry in logs if entry["log_level"] == "error"]
    assert [entry.get("reason") for entry in errors] == ["IMAGE_MISSING"]
    assert "standfast/sandbox:none" in errors[0]["message"]
    assert not [entry for entry in logs if entry.get("exc_info")]


async def test_a_manager_that_does_not_answer_is_named_once() -> None:
    tries = asyncio.Semaphore(0)

    async def evidence() -> Mapping[str, Any]:
        return {}

    async def heartbeat() -> pb.HeartbeatRequest:
        return pb.HeartbeatRequest()

    async def on_state(registered: bool) -> None:
        assert not registered
        tries.release()

    async with open_channel("127.0.0.1:1") as channel:
        registration = Registration(
            channel=channel,
            manager="127.0.0.1:1",
            host_id="h",
            key=SigningKey.generate(),
            address="127.0.0.1:2",
            engine="local",
            evidence=evidence,
            heartbeat=heartbeat,
        )
        with capture_logs() as logs:
            running = asyncio.get_running_loop().create_task(registration.run(on_state))
            async with asyncio.timeout(20):
                for _ in range(3):
                    await tries.acquire()
            running.cancel()
            await asyncio.wait({running})
    (said,) = [entry for entry in logs if entry["log_level"] == "warning"]
    assert said["manager"] == "127.0.0.1:1"
