"""Calls to host agents: deadlines, signatures, and the difference between a host that says no and one that says nothing.

A statement is taken only when the key that the host registered with has signed it as the right kind. A host, engine or supervisor that
does not answer is unavailable; that says nothing about any container.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import grpc

from sandbox_manager.core import codec
from sandbox_manager.core.host_statements import (
    SandboxStatement,
    StoreStatement,
    sandbox_statement,
    store_statement,
)
from sandbox_manager.core.records import GroupRecord, HostRecord
from sandbox_manager.core.refusals import HostAnsweredError, HostUnavailableError, SignatureInvalidError
from sandbox_manager.core.values import NativeLocator
from standfast.host.v1 import host_agent_pb2 as pb
from standfast.host.v1 import host_agent_pb2_grpc
from standfast.types.v1 import types_pb2
from standfast_chassis.errors import TokenRejectedError
from standfast_chassis.grpc_channel import open_channel
from standfast_chassis.keys import PublicKey, TokenKind, verify, verify_claims
from standfast_chassis.rpc_status import RemoteError, remote_errors
from standfast_chassis.tracing import Tracing

T = TypeVar("T")

# Codes that a dead or overloaded peer gives; without a reason of ours in them the host has said nothing.
_SILENCE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


@dataclass(frozen=True, slots=True)
class HostTimeouts:
    """How long each kind of call may take, in seconds. Starting and stopping a container are bounded by the host itself, too."""

    ensure_s: float = 60.0
    stop_s: float = 45.0
    remove_s: float = 45.0
    read_store_s: float = 30.0
    answer_s: float = 10.0


@dataclass(frozen=True, slots=True)
class JournalledActivation:
    """How far an activation came on its host. `observation_jws` is None while it is open."""

    state: str
    forwarded: bool
    native_end_seen: bool
    observation_jws: str | None


class HostCalls(Protocol):
    """What the manager asks of a host agent. Raises HostUnavailableError, HostAnsweredError, SignatureInvalidError."""

    async def ensure_sandbox(
        self, host: HostRecord, group: GroupRecord, conversation: str, image_id: str
    ) -> SandboxStatement:
        """Makes or starts the group's container, or finds it running. `image_id` may be empty: the host's own."""

    async def inspect_sandbox(
        self, host: HostRecord, group: GroupRecord, *, with_measured: bool = False
    ) -> SandboxStatement:
        """What the engine says. `with_measured`: and what the supervisor measured at this start; waits until that is known."""

    async def stop_sandbox(self, host: HostRecord, group: GroupRecord, *, force: bool) -> SandboxStatement:
        """Stops it in order, and says what the engine says after."""

    async def remove_sandbox(self, host: HostRecord, group: GroupRecord) -> None:
        """Removes the container with its writable layer."""

    async def read_store(
        self, host: HostRecord, group: GroupRecord, slot: int, locator: NativeLocator, prefix_length: int
    ) -> StoreStatement:
        """Reads a native store."""

    async def journalled(self, host: HostRecord, activation_id: str) -> JournalledActivation | None:
        """What the host's journal holds of an activation; None when it knows none of that id."""

    def signed(self, host: HostRecord, token: str, kind: TokenKind) -> bytes:
        """The bytes that this host signed as that kind."""


class GrpcHostCalls:
    """HostCalls over gRPC, one channel an address. `await close()` at the end."""

    def __init__(self, tracing: Tracing, timeouts: HostTimeouts | None = None) -> None:
        self._tracing = tracing
        self._timeouts = timeouts or HostTimeouts()
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def ensure_sandbox(
        self, host: HostRecord, group: GroupRecord, conversation: str, image_id: str
    ) -> SandboxStatement:
        request = pb.EnsureSandboxRequest(
            group_id=group.group_id,
            container_generation=group.container_generation,
            nonce=group.nonce,
            container_id=group.container_id or "",
            conversation=conversation,
            image_id=image_id,
        )
        answer = await _asked(host, self._stub(host).EnsureSandbox(request, timeout=self._timeouts.ensure_s))
        return self._sandbox(host, answer.sandbox_jws)

    async def inspect_sandbox(
        self, host: HostRecord, group: GroupRecord, *, with_measured: bool = False
    ) -> SandboxStatement:
        request = pb.InspectSandboxRequest(
            group_id=group.group_id,
            container_generation=group.container_generation,
            container_id=group.container_id or "",
            with_measured=with_measured,
        )
        timeout_s = self._timeouts.ensure_s if with_measured else self._timeouts.answer_s
        answer = await _asked(host, self._stub(host).InspectSandbox(request, timeout=timeout_s))
        return self._sandbox(host, answer.inspect_jws)

    async def stop_sandbox(self, host: HostRecord, group: GroupRecord, *, force: bool) -> SandboxStatement:
        request = pb.StopSandboxRequest(
            group_id=group.group_id,
            container_generation=group.container_generation,
            container_id=group.container_id or "",
            force=force,
        )
        answer = await _asked(host, self._stub(host).StopSandbox(request, timeout=self._timeouts.stop_s))
        return self._sandbox(host, answer.inspect_jws)

    async def remove_sandbox(self, host: HostRecord, group: GroupRecord) -> None:
        request = pb.RemoveSandboxRequest(
            group_id=group.group_id,
            container_generation=group.container_generation,
            container_id=group.container_id or "",
        )
        await _asked(host, self._stub(host).RemoveSandbox(request, timeout=self._timeouts.remove_s))

    async def read_store(
        self, host: HostRecord, group: GroupRecord, slot: int, locator: NativeLocator, prefix_length: int
    ) -> StoreStatement:
        request = pb.ReadStoreRequest(
            group_id=group.group_id,
            container_generation=group.container_generation,
            slot=slot,
            locator=types_pb2.NativeLocator(
                agent=locator.agent,
                native_session_id=locator.native_session_id,
                cwd=locator.cwd,
                store=locator.store,
            ),
            prefix_length=prefix_length,
        )
        answer = await _asked(host, self._stub(host).ReadStore(request, timeout=self._timeouts.read_store_s))
        claims = _claims(host, answer.reading_jws, TokenKind.STORE_READING)
        return _readable(host, "store", lambda: store_statement(claims))

    async def journalled(self, host: HostRecord, activation_id: str) -> JournalledActivation | None:
        request = pb.ListJournalRequest(activation_ids=[activation_id])
        answer = await _asked(host, self._stub(host).ListJournal(request, timeout=self._timeouts.answer_s))
        for entry in answer.entries:
            if entry.activation_id == activation_id:
                return JournalledActivation(
                    state=entry.state,
                    forwarded=entry.forwarded,
                    native_end_seen=entry.native_end_seen,
                    observation_jws=entry.observation_jws or None,
                )
        return None

    def signed(self, host: HostRecord, token: str, kind: TokenKind) -> bytes:
        try:
            return verify(token, PublicKey.from_jwk(host.public_key_jwk), kind)
        except TokenRejectedError as error:
            raise SignatureInvalidError(error.message, error.metadata) from error

    async def close(self) -> None:
        """Closes all channels."""
        channels = list(self._channels.values())
        self._channels.clear()
        await asyncio.gather(*(channel.close() for channel in channels))

    def _stub(self, host: HostRecord) -> host_agent_pb2_grpc.HostAgentServiceAsyncStub:
        channel = self._channels.get(host.address)
        if channel is None:
            channel = self._channels[host.address] = open_channel(host.address, tracing=self._tracing)
        return host_agent_pb2_grpc.HostAgentServiceStub(channel)

    def _sandbox(self, host: HostRecord, token: str) -> SandboxStatement:
        claims = _claims(host, token, TokenKind.SANDBOX)
        return _readable(host, "sandbox", lambda: sandbox_statement(claims))


def _claims(host: HostRecord, token: str, kind: TokenKind) -> dict[str, Any]:
    try:
        return verify_claims(token, PublicKey.from_jwk(host.public_key_jwk), kind)
    except TokenRejectedError as error:
        raise SignatureInvalidError(error.message, error.metadata) from error


def _readable(host: HostRecord, what: str, read: Callable[[], T]) -> T:
    try:
        return read()
    except codec.CodecError as error:
        raise SignatureInvalidError(
            f"host {host.host_id}: its signed {what} statement cannot be read: {error.message}.",
            {"host_id": host.host_id, **error.metadata},
        ) from error


async def _asked(host: HostRecord, call: Awaitable[T]) -> T:
    try:
        with remote_errors():
            return await call
    except RemoteError as error:
        if error.has_error_info:
            raise HostAnsweredError(error.reason, error.message, error.metadata | {"host_id": host.host_id}) from error
        if error.code in _SILENCE:
            raise HostUnavailableError(
                f"host {host.host_id} at {host.address} does not answer ({error.code.name}). That says nothing about its "
                "containers; retry when it is back.",
                {"host_id": host.host_id, "address": host.address, "code": error.code.name},
            ) from error
        raise HostUnavailableError(
            f"host {host.host_id} at {host.address} answered {error.code.name} with no reason of ours: it may be of another "
            "release, or not a host agent at all.",
            {"host_id": host.host_id, "address": host.address, "code": error.code.name},
        ) from error
