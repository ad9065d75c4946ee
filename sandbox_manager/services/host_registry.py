"""HostRegistryService: hosts register by evidence and stay known by heartbeats. What evidence is worth: attestors/manifest.py."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any

import grpc
import structlog

from sandbox_manager.conductor.host_book import Heartbeat, SeenContainer
from sandbox_manager.conductor.parts import Parts
from sandbox_manager.conductor.registering import LEASED_STATES, Registering
from sandbox_manager.core.errors import StaleGenerationError
from sandbox_manager.core.host import Heartbeat as HeartbeatEvent
from sandbox_manager.core.host import Host, HostState
from sandbox_manager.core.refusals import (
    CapabilityNotBuiltError,
    HostUnknownError,
    RequestInvalidError,
    SignatureInvalidError,
)
from sandbox_manager.services.messages import host_message
from sandbox_manager.services.requests import checked_id, checked_text
from standfast.host.v1 import host_registry_pb2 as pb
from standfast.host.v1 import host_registry_pb2_grpc
from standfast_chassis.errors import TokenRejectedError
from standfast_chassis.keys import PublicKey, TokenKind, verify_claims

_log = structlog.get_logger("standfast.manager.hosts")

_EVIDENCE_WAIT_S = 120.0
_ENGINES = ("docker", "local")
_CONTAINERS_MAX = 10_000


class HostRegistry(host_registry_pb2_grpc.HostRegistryServiceServicer):
    """The service."""

    def __init__(self, parts: Parts, registering: Registering) -> None:
        self._parts = parts
        self._registering = registering

    async def AttestHost(
        self,
        request_iterator: AsyncIterator[pb.AttestHostRequest],
        context: grpc.aio.ServicerContext[pb.AttestHostRequest, pb.AttestHostResponse],
    ) -> AsyncIterator[pb.AttestHostResponse]:
        hello = (await _next(request_iterator, "hello")).hello
        key = _checked_hello(hello)
        nonce = secrets.token_urlsafe(32)
        yield pb.AttestHostResponse(
            challenge=pb.AttestChallenge(nonce=nonce, manager_public_key_jwk=self._parts.key.public.jwk_text())
        )
        evidence = (await _next(request_iterator, "evidence")).evidence
        claims = _verified(evidence.evidence_jws, key, nonce)
        host = await self._registering.judged(hello.host_id, hello.engine, hello.address, key, claims)
        lease_ms = self._parts.book.registered(host.host_id)
        _log.info("host accepted", host_id=host.host_id, address=host.address, engine=host.engine)
        yield pb.AttestHostResponse(
            accepted=pb.AttestAccepted(
                lease_generation=host.lease_generation, lease_ms=lease_ms, heartbeat_ms=self._parts.heartbeat_ms
            )
        )

    async def Heartbeat(
        self, request: pb.HeartbeatRequest, context: grpc.aio.ServicerContext[pb.HeartbeatRequest, pb.HeartbeatResponse]
    ) -> pb.HeartbeatResponse:
        host = await self._parts.store.host(request.host_id)
        if host is None or host.state not in LEASED_STATES:
            raise _unknown_host(request.host_id, "it is not registered")
        try:
            Host(HostState(host.state), lease_generation=host.lease_generation).step(
                HeartbeatEvent(request.lease_generation)
            )
        except StaleGenerationError as error:
            raise _unknown_host(request.host_id, "it has registered anew since") from error
        if len(request.containers) > _CONTAINERS_MAX:
            raise RequestInvalidError("containers", f"at most {_CONTAINERS_MAX}", str(len(request.containers)))
        beat = Heartbeat(
            lease_generation=request.lease_generation,
            containers=_containers(request) if request.engine_answers else None,
            disk_free_bytes=request.disk_free_bytes if request.HasField("disk_free_bytes") else None,
        )
        return pb.HeartbeatResponse(lease_ms=await self._parts.book.beat(request.host_id, beat))

    async def ListHosts(
        self, request: pb.ListHostsRequest, context: grpc.aio.ServicerContext[pb.ListHostsRequest, pb.ListHostsResponse]
    ) -> pb.ListHostsResponse:
        groups = await self._parts.store.groups()
        answer = pb.ListHostsResponse()
        for host in await self._parts.store.hosts():
            left_s = self._parts.book.leases.left_s(host.host_id)
            leased = host.state in LEASED_STATES
            answer.hosts.append(
                host_message(
                    host,
                    state=HostState.EXPIRED.value if leased and left_s <= 0 else host.state,
                    # A host that has no lease at all is at its end: the answer must not call that "unknown".
                    lease_left_ms=int(left_s * 1000) if left_s else -1,
                    groups=sum(group.host_id == host.host_id for group in groups),
                )
            )
        return answer

    async def DrainHost(
        self, request: pb.DrainHostRequest, context: grpc.aio.ServicerContext[pb.DrainHostRequest, pb.DrainHostResponse]
    ) -> pb.DrainHostResponse:
        raise CapabilityNotBuiltError("draining of hosts")

    async def BanHost(
        self, request: pb.BanHostRequest, context: grpc.aio.ServicerContext[pb.BanHostRequest, pb.BanHostResponse]
    ) -> pb.BanHostResponse:
        raise CapabilityNotBuiltError("banning of hosts")


async def _next(requests: AsyncIterator[pb.AttestHostRequest], step: str) -> pb.AttestHostRequest:
    try:
        async with asyncio.timeout(_EVIDENCE_WAIT_S):
            request = await anext(requests)
    except StopAsyncIteration:
        raise RequestInvalidError("step", step, "the end of the stream") from None
    except TimeoutError:
        raise RequestInvalidError("step", f"{step} within {_EVIDENCE_WAIT_S:.0f} s", "nothing") from None
    if (came := request.WhichOneof("step")) != step:
        raise RequestInvalidError("step", step, str(came))
    return request


def _checked_hello(hello: pb.HostHello) -> PublicKey:
    checked_id("hello.host_id", hello.host_id)
    checked_text("hello.address", hello.address)
    if hello.engine not in _ENGINES:
        raise RequestInvalidError("hello.engine", " or ".join(_ENGINES), repr(hello.engine)[:80])
    try:
        return PublicKey.from_jwk(hello.public_key_jwk)
    except TokenRejectedError as error:
        raise SignatureInvalidError(error.message, error.metadata) from error


def _verified(evidence_jws: str, key: PublicKey, nonce: str) -> dict[str, Any]:
    try:
        claims = verify_claims(evidence_jws, key, TokenKind.EVIDENCE)
    except TokenRejectedError as error:
        raise SignatureInvalidError(error.message, error.metadata) from error
    if claims.get("nonce") != nonce:
        raise SignatureInvalidError(
            "the evidence is not over this registration's nonce; expected a fresh one. Register again.",
            {"expected": "the nonce of this stream", "found": "another or none"},
        )
    return claims


def _unknown_host(host_id: str, found: str) -> HostUnknownError:
    return HostUnknownError(
        f"host {host_id[:128]}: expected one with a registration in force, found that {found}. Register again.",
        {"host_id": host_id[:128]},
    )


def _containers(request: pb.HeartbeatRequest) -> tuple[SeenContainer, ...]:
    return tuple(
        SeenContainer(
            container_id=one.container_id,
            group_id=one.group_id,
            container_generation=one.container_generation,
            state=one.state,
            conversation=one.conversation,
        )
        for one in request.containers
    )
