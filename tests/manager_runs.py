"""A real manager on a temporary state folder, and a runner's side of its calls. For tests of the manager and of its neighbours.

async with running_manager(tmp_path) as manager, FakeHost(manager.address) as host:
    await host.register()
    runner = RunnerCalls(manager.address, host)
    turn = await runner.settled("c1", "t1", "hello")
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from sandbox_manager.policy import ManagerPolicy
from sandbox_manager.server import Manager
from sandbox_manager.settings import ManagerSettings
from standfast.host.v1 import host_registry_pb2, host_registry_pb2_grpc
from standfast.sandbox.v1 import sandbox_manager_pb2 as pb
from standfast.sandbox.v1 import sandbox_manager_pb2_grpc
from standfast.types.v1 import types_pb2 as types
from standfast_chassis.build_info import build_info
from standfast_chassis.grpc_channel import open_channel
from standfast_chassis.rpc_status import RemoteError, remote_errors
from standfast_chassis.tracing import Tracing
from tests.fake_host import AGENT, FakeHost, manifest


def release() -> str:
    """The release that a manager of this checkout calls its own."""
    return build_info().release_sha or "unknown"


def write_manifest(folder: Path, **changes: object) -> Path:
    """A manifest file for the fake host's image."""
    path = folder / "manifest.json"
    path.write_text(json.dumps(manifest(**changes)))
    return path


def manager_settings(folder: Path, **changes: Any) -> ManagerSettings:
    """Settings of a manager whose state is in `folder`, on a free port."""
    values: dict[str, Any] = {
        "state": folder / "manager",
        "manifest": folder / "manifest.json",
        "listen": "127.0.0.1:0",
        "reconcile_s": 0.05,
        "stop_grace_s": 0.0,
        "heartbeat_s": 0.5,
        "host_answer_timeout_s": 3.0,
    }
    if not (folder / "manifest.json").exists():
        write_manifest(folder)
    return ManagerSettings(**(values | changes))


@asynccontextmanager
async def running_manager(
    folder: Path, policy: ManagerPolicy | None = None, *, tracing: Tracing | None = None, **changes: Any
) -> AsyncIterator[Manager]:
    """A manager that serves until the block ends."""
    async with Manager(manager_settings(folder, **changes), policy or ManagerPolicy(), tracing=tracing) as manager:
        yield manager


def refused(reason: str) -> pytest.RaisesExc[RemoteError]:
    """`with refused("CONVERSATION_BUSY") as error:` the call inside must be refused with that reason."""
    return pytest.raises(RemoteError, check=lambda error: error.reason == reason)


async def until(holds: Callable[[], Awaitable[bool]], *, for_s: float = 10.0) -> None:
    """Asks until it is so. Fails when that takes too long."""
    async with asyncio.timeout(for_s):
        while not await holds():  # noqa: ASYNC110 - what another process does has no event here
            await asyncio.sleep(0.02)


def key(conversation_id: str) -> types.ConversationKey:
    return types.ConversationKey(conversation_id=conversation_id)


@dataclass
class Prepared:
    """A prepared turn, as a runner holds it."""

    conversation_id: str
    turn_id: str
    message: bytes
    grant: pb.PrepareTurnResponse
    admitted: pb.AdmitTurnResponse | None = None

    @property
    def request_id(self) -> str:
        return f"{self.turn_id}:{self.grant.activation_id}"


class RunnerCalls:
    """What a runner calls, with the host's part played by the fake. Failed calls raise RemoteError."""

    def __init__(
        self,
        address: str,
        host: FakeHost | None = None,
        runner_id: str = "runner-1",
        *,
        tracing: Tracing | None = None,
    ) -> None:
        self.host = host
        self.runner_id = runner_id
        self._channel = open_channel(address, tracing=tracing)
        self.stub: sandbox_manager_pb2_grpc.SandboxManagerServiceAsyncStub = (
            sandbox_manager_pb2_grpc.SandboxManagerServiceStub(self._channel)
        )
        self.hosts: host_registry_pb2_grpc.HostRegistryServiceAsyncStub = (
            host_registry_pb2_grpc.HostRegistryServiceStub(self._channel)
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close()

    async def claim(
        self, conversation_id: str, turn_id: str, message: str = "hello", *, expect: str = "UNSPECIFIED", **fields: Any
    ) -> pb.ClaimTurnResponse:
        raw = message.encode()
        with remote_errors():
            return await self.stub.ClaimTurn(
                pb.ClaimTurnRequest(
                    conversation=key(conversation_id),
                    turn_id=turn_id,
                    message_digest=hashlib.sha256(raw).hexdigest(),
                    message_length=len(raw),
                    agent=fields.pop("agent", AGENT),
                    expect=types.Expect.Value(f"EXPECT_{expect}"),
                    runner_id=self.runner_id,
                    runner_address=f"{self.runner_id}:7400",
                    **fields,
                ),
                timeout=20,
            )

    async def prepare(self, conversation_id: str, turn_id: str, message: str = "hello", **fields: Any) -> Prepared:
        with remote_errors():
            grant = await self.stub.PrepareTurn(
                pb.PrepareTurnRequest(
                    conversation=key(conversation_id),
                    turn_id=turn_id,
                    runner_id=self.runner_id,
                    agent=fields.pop("agent", AGENT),
                    **fields,
                ),
                timeout=30,
            )
        return Prepared(conversation_id, turn_id, message.encode(), grant)

    async def admit(self, prepared: Prepared, report_jws: str | None = None) -> pb.AdmitTurnResponse:
        assert self.host is not None
        report = report_jws if report_jws is not None else self.host.report(prepared.grant.activation_token)
        with remote_errors():
            answer = await self.stub.AdmitTurn(
                pb.AdmitTurnRequest(
                    activation_id=prepared.grant.activation_id,
                    runner_id=self.runner_id,
                    report_jws=report,
                    message_digest=hashlib.sha256(prepared.message).hexdigest(),
                    message_length=len(prepared.message),
                ),
                timeout=20,
            )
        prepared.admitted = answer
        return answer

    def play(self, prepared: Prepared, **how: Any) -> None:
        """Lets the fake host run the admitted turn to its end."""
        assert self.host is not None
        assert prepared.admitted is not None
        self.host.play(prepared.grant.activation_token, prepared.admitted.admission_jws, prepared.message, **how)

    async def settle(
        self,
        prepared: Prepared,
        *,
        verdict: str = "CONFIRMED",
        native_session_id: str | None = None,
        failed: bool = False,
        request_id: str | None = None,
    ) -> pb.Settlement:
        with remote_errors():
            answer = await self.stub.SettleTurn(
                pb.SettleTurnRequest(
                    request_id=request_id or prepared.request_id,
                    conversation=key(prepared.conversation_id),
                    turn_id=prepared.turn_id,
                    activation_id=prepared.grant.activation_id,
                    runner_id=self.runner_id,
                    claim=pb.RunnerClaim(
                        verdict=types.Verdict.Value(f"VERDICT_{verdict}"),
                        native_session_id=native_session_id or prepared.grant.locator.native_session_id,
                        failed=failed,
                    ),
                ),
                timeout=20,
            )
        return answer.settlement

    async def abandon(self, conversation_id: str, turn_id: str, outcome: str, reason: str = "") -> pb.ManagedTurn:
        with remote_errors():
            answer = await self.stub.AbandonTurn(
                pb.AbandonTurnRequest(
                    conversation=key(conversation_id),
                    turn_id=turn_id,
                    runner_id=self.runner_id,
                    outcome=types.Outcome.Value(f"OUTCOME_{outcome}"),
                    reason=reason,
                ),
                timeout=20,
            )
        return answer.turn

    async def renew(self, prepared: Prepared, activation_generation: int | None = None) -> int:
        generation = activation_generation or prepared.grant.generations.activation
        with remote_errors():
            answer = await self.stub.RenewActivation(
                pb.RenewActivationRequest(
                    activation_id=prepared.grant.activation_id,
                    runner_id=self.runner_id,
                    activation_generation=generation,
                ),
                timeout=20,
            )
        return answer.lease_ms

    async def turn(self, conversation_id: str, turn_id: str) -> pb.ManagedTurn:
        with remote_errors():
            answer = await self.stub.LookupTurn(
                pb.LookupTurnRequest(conversation=key(conversation_id), turn_id=turn_id), timeout=20
            )
        return answer.turn

    async def conversation(self, conversation_id: str) -> pb.ManagedConversation:
        with remote_errors():
            answer = await self.stub.GetConversation(
                pb.GetConversationRequest(conversation=key(conversation_id)), timeout=20
            )
        return answer.conversation

    async def stop(self, conversation_id: str, *, force: bool = False) -> pb.ManagedConversation:
        with remote_errors():
            answer = await self.stub.StopConversation(
                pb.StopConversationRequest(conversation=key(conversation_id), force=force), timeout=30
            )
        return answer.conversation

    async def remove(self, conversation_id: str, *, force: bool = False) -> None:
        with remote_errors():
            await self.stub.RemoveConversation(
                pb.RemoveConversationRequest(conversation=key(conversation_id), force=force), timeout=30
            )

    async def list_hosts(self) -> list[host_registry_pb2.Host]:
        with remote_errors():
            answer = await self.hosts.ListHosts(host_registry_pb2.ListHostsRequest(), timeout=20)
        return list(answer.hosts)

    async def admitted(self, conversation_id: str, turn_id: str, message: str = "hello", **fields: Any) -> Prepared:
        """A turn that was claimed, prepared and admitted."""
        await self.claim(conversation_id, turn_id, message)
        prepared = await self.prepare(conversation_id, turn_id, message, **fields)
        await self.admit(prepared)
        return prepared

    async def settled(self, conversation_id: str, turn_id: str, message: str = "hello", **how: Any) -> Prepared:
        """A whole turn, settled and saved."""
        prepared = await self.admitted(conversation_id, turn_id, message)
        self.play(prepared, **how)
        settlement = await self.settle(prepared, failed=how.get("is_error", False))
        assert settlement.saved, settlement
        return prepared
