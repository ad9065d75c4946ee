"""HostRegistryService: hosts register by evidence and stay known by heartbeats. What evidence is worth: attestors/manifest.py."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc
import structlog

from sandbox_manager.adapters.store_port import Change, Insert, Update
from sandbox_manager.attestors.manifest import compare
from sandbox_manager.core.errors import StaleGenerationError
from sandbox_manager.core.evidence import evidence_items
from sandbox_manager.core.host import Attested, Host, HostState, LeaseOver, Probed, Refused, Registered
from sandbox_manager.core.host import Heartbeat as HeartbeatEvent
from sandbox_manager.core.judgement import Reason
from sandbox_manager.core.records import HostRecord, KeyRecord, Mark, Marks, Names
from sandbox_manager.core.refusals import (
    AttestationRefusedError,
    CapabilityNotBuiltError,
    HostUnknownError,
    RequestInvalidError,
    SignatureInvalidError,
)
from sandbox_manager.services.host_book import Heartbeat, SeenContainer
from sandbox_manager.services.manifest import pins_digest
from sandbox_manager.services.messages import host_message
from sandbox_manager.services.parts import Parts
from sandbox_manager.services.requests import checked_id, checked_text
from standfast.host.v1 import host_registry_pb2 as pb
from standfast.host.v1 import host_registry_pb2_grpc
from standfast_chassis.errors import TokenRejectedError
from standfast_chassis.keys import PublicKey, TokenKind, verify_claims

_log = structlog.get_logger("standfast.manager.hosts")

_EVIDENCE_WAIT_S = 120.0
_ENGINES = ("docker", "local")
_CONTAINERS_MAX = 10_000
_LEASED = (HostState.READY.value, HostState.DRAINING.value)


class HostRegistry(host_registry_pb2_grpc.HostRegistryServiceServicer):
    """The service."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

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
        host = await self._judged(hello, key, claims)
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
        if host is None or host.state not in _LEASED:
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
            leased = host.state in _LEASED
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

    async def _judged(self, hello: pb.HostHello, key: PublicKey, claims: dict[str, Any]) -> HostRecord:
        """The host's record after its evidence was compared. Raises AttestationRefusedError, after that was recorded."""
        reasons = [*_own_words(hello, key, claims), *self._release(claims)]
        reasons += compare(self._parts.manifest.pins, evidence_items(claims))
        async with self._parts.locks.holding(("host", hello.host_id)):
            former = await self._parts.store.host(hello.host_id)
            machine = Host(
                HostState(former.state) if former is not None else HostState.REGISTERING,
                lease_generation=former.lease_generation if former is not None else 0,
            )
            machine.step(Registered())
            if reasons:
                machine.step(Refused())
            else:
                machine.step(Attested())
                # The reverse probe comes with host identity; until then the evidence alone makes a host READY.
                machine.step(Probed())
            host = HostRecord(
                host_id=hello.host_id,
                state=machine.state.value,
                public_key_jwk=key.jwk_text(),
                address=hello.address,
                engine=hello.engine,
                release_sha=str(claims.get("release_sha") or "unknown"),
                image_id=str(claims.get("image_id") or ""),
                boot_id=str(claims.get("boot_id") or ""),
                agents=Names(tuple(pin.name for pin in self._parts.manifest.pins.clis)),
                lease_generation=machine.lease_generation,
                attested_by=pins_digest(self._parts.manifest, self._parts.build),
                findings=Marks(tuple(Mark(one.code, one.expected, one.found) for one in reasons)),
                revision=former.revision if former is not None else 0,
            )
            changes: list[Change] = [Insert(host) if former is None else Update(host)]
            known = {one.key_id for one in await self._parts.store.keys()}
            if key.thumbprint not in known:
                changes.append(Insert(KeyRecord(key.thumbprint, f"host:{host.host_id}", key.jwk_text())))
            await self._parts.store.commit(changes)
            if reasons:
                self._parts.book.leases.end(host.host_id)
                raise _refused(hello.host_id, reasons)
        return host

    async def expire_old_attestations(self) -> None:
        """At start: hosts that were compared with other pins must attest anew before they are given anything."""
        digest = pins_digest(self._parts.manifest, self._parts.build)
        for host in await self._parts.store.hosts():
            if host.attested_by != digest and host.state in _LEASED:
                machine = Host(HostState(host.state), lease_generation=host.lease_generation)
                machine.step(LeaseOver(host.lease_generation))
                await self._parts.store.commit([Update(replace(host, state=machine.state.value))])

    def _release(self, claims: dict[str, Any]) -> list[Reason]:
        expected = self._parts.build.release_sha or "unknown"
        found = claims.get("release_sha") or "unknown"
        if found == expected:
            return []
        return [Reason("EVIDENCE_CONTRADICTED", f"release_sha = {expected}", f"release_sha = {str(found)[:80]}")]


async def _next(requests: AsyncIterator[pb.AttestHostRequest], step: str) -> pb.AttestHostRequest:
    try:
        async with asyncio.timeout(_EVIDENCE_WAIT_S):
            request = await anext(requests)
    except StopAsyncIteration:
        raise RequestInvalidError("step", step, "the end of the stream") from None
    except TimeoutError:
        raise RequestInvalidError("step", f"{step} within {_EVIDENCE_WAIT_S:.0f} s", "nothing") from None
    if not request.HasField(step):  # type: ignore[arg-type]
        raise RequestInvalidError("step", step, str(request.WhichOneof("step")))
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


def _own_words(hello: pb.HostHello, key: PublicKey, claims: dict[str, Any]) -> list[Reason]:
    """That the evidence is of the host that said hello."""
    pairs = [("host_id", hello.host_id, claims.get("host_id")), ("engine", hello.engine, claims.get("engine"))]
    reasons = []
    for item, expected, found in pairs:
        if found is None:
            reasons.append(Reason("EVIDENCE_MISSING", f"{item} = {expected}", f"{item} is missing"))
        elif found != expected:
            reasons.append(Reason("EVIDENCE_CONTRADICTED", f"{item} = {expected}", f"{item} = {str(found)[:80]}"))
    named = claims.get("host_key")
    if named is not None:
        try:
            found_key = PublicKey.from_jwk(named).thumbprint
        except TokenRejectedError:
            found_key = str(named)[:80]
        if found_key != key.thumbprint:
            reasons.append(Reason("EVIDENCE_CONTRADICTED", f"host_key = {key.thumbprint}", f"host_key = {found_key}"))
    return reasons


def _refused(host_id: str, reasons: list[Reason]) -> AttestationRefusedError:
    first = reasons[0]
    # At a registration an image that is not accepted is one more item that differs; no container is meant.
    code = "EVIDENCE_CONTRADICTED" if first.code == "IMAGE_RETIRED" else first.code
    listed = "; ".join(f"expected {one.expected}, found {one.found}" for one in reasons[:8])
    _log.warning("host refused", host_id=host_id, reason=code, differences=listed)
    return AttestationRefusedError(
        code,
        f"host {host_id} is not READY: {listed}. Start it from the same release and image as the manager's manifest names, or "
        "give the manager the manifest of that image.",
        {
            "host_id": host_id,
            "item": first.expected.split(" = ")[0],
            "expected": first.expected.partition(" = ")[2] or first.expected,
            "found": first.found.partition(" = ")[2] or first.found,
            "differences": len(reasons),
        },
    )


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
