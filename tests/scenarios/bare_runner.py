"""A runner by hand: the calls of one turn, one at a time, so that a test can break them off or say something false in one of them."""

from __future__ import annotations

import asyncio
import hashlib
from types import TracebackType
from typing import Any, Self

import grpc

from runner.drivers.claude_code.driver import ClaudeCodeDriver
from standfast.host.v1 import host_agent_pb2 as host_pb
from standfast.host.v1.host_agent_pb2_grpc import HostAgentServiceStub
from standfast.sandbox.v1 import sandbox_manager_pb2 as sandbox_pb
from standfast.sandbox.v1.sandbox_manager_pb2_grpc import SandboxManagerServiceStub
from standfast.types.v1 import types_pb2 as types
from standfast_chassis.grpc_channel import open_channel

AGENT = "claude-code"
_CALL_TIMEOUT_S = 30.0


class BareRunner:
    """One turn. Use as an async context manager; the calls in their order: claim, prepare, attach, admit, send."""

    def __init__(self, manager: str, conversation: str, turn_id: str, text: str, *, runner_id: str = "bare") -> None:
        self.key = types.ConversationKey(tenant="local", conversation_id=conversation)
        self.turn_id = turn_id
        self.text = text
        self.runner_id = runner_id
        self._manager_channel = open_channel(manager)
        self.manager = SandboxManagerServiceStub(self._manager_channel)
        self._host_channel: grpc.aio.Channel | None = None
        self.driver = ClaudeCodeDriver()
        self.output = b""
        self.observed: host_pb.AttachObserved | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._manager_channel.close()
        if self._host_channel is not None:
            await self._host_channel.close()

    @property
    def _digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    async def claim(self, expect: types.Expect.ValueType = types.EXPECT_NEW) -> sandbox_pb.ClaimTurnResponse:
        return await self.manager.ClaimTurn(
            sandbox_pb.ClaimTurnRequest(
                conversation=self.key,
                turn_id=self.turn_id,
                message_digest=self._digest,
                message_length=len(self.text.encode()),
                agent=AGENT,
                expect=expect,
                runner_id=self.runner_id,
                runner_address="127.0.0.1:1",
            ),
            timeout=_CALL_TIMEOUT_S,
        )

    async def prepare(self) -> sandbox_pb.PrepareTurnResponse:
        self.grant = await self.manager.PrepareTurn(
            sandbox_pb.PrepareTurnRequest(
                conversation=self.key, turn_id=self.turn_id, runner_id=self.runner_id, agent=AGENT
            ),
            timeout=_CALL_TIMEOUT_S,
        )
        return self.grant

    async def attach(self, *, timeout_s: float | None = None, address: str | None = None) -> None:
        """Opens the stream and does the handshake, until the report is there. `timeout_s`: the call's deadline."""
        self._host_channel = open_channel(address or self.grant.host_address)
        self.call: Any = HostAgentServiceStub(self._host_channel).Attach(timeout=timeout_s)
        await self.call.write(
            host_pb.AttachRequest(open=host_pb.AttachOpen(activation_token=self.grant.activation_token))
        )
        self.report_jws = ""
        while not self.report_jws:
            said = await self._next()
            if said.HasField("ready"):
                for frame in self.driver.handshake_frames(process_is_new=said.ready.process_is_new):
                    await self.call.write(host_pb.AttachRequest(frame=frame))
            elif said.HasField("report_jws"):
                self.report_jws = said.report_jws

    async def admit(self) -> sandbox_pb.AdmitTurnResponse:
        self.admission = await self.manager.AdmitTurn(
            sandbox_pb.AdmitTurnRequest(
                activation_id=self.grant.activation_id,
                runner_id=self.runner_id,
                report_jws=self.report_jws,
                message_digest=self._digest,
                message_length=len(self.text.encode()),
            ),
            timeout=_CALL_TIMEOUT_S,
        )
        return self.admission

    async def send(self) -> None:
        """The admission and the message."""
        await self.call.write(host_pb.AttachRequest(admission_jws=self.admission.admission_jws))
        for frame in self.driver.user_frames(self.text, message_id=self.grant.message_id):
            await self.call.write(host_pb.AttachRequest(frame=frame))

    async def until_sent(self) -> None:
        """Reads until the host agent has written the message."""
        while not (await self._next()).HasField("forwarded"):
            continue

    async def until_observed(self) -> host_pb.AttachObserved:
        while True:
            said = await self._next()
            if said.HasField("observed"):
                return said.observed

    async def to_the_message(self) -> None:
        """From the claim to the message's way to the CLI."""
        await self.claim()
        await self.prepare()
        await self.attach()
        await self.admit()
        await self.send()

    async def settle(self, claim: sandbox_pb.RunnerClaim) -> sandbox_pb.Settlement:
        answer = await self.manager.SettleTurn(
            sandbox_pb.SettleTurnRequest(
                request_id=self.grant.activation_id,
                conversation=self.key,
                turn_id=self.turn_id,
                activation_id=self.grant.activation_id,
                runner_id=self.runner_id,
                claim=claim,
            ),
            timeout=_CALL_TIMEOUT_S,
        )
        return answer.settlement

    async def abandon(self, outcome: types.Outcome.ValueType) -> sandbox_pb.ManagedTurn:
        answer = await self.manager.AbandonTurn(
            sandbox_pb.AbandonTurnRequest(
                conversation=self.key, turn_id=self.turn_id, runner_id=self.runner_id, outcome=outcome
            ),
            timeout=_CALL_TIMEOUT_S,
        )
        return answer.turn

    async def journal(self) -> host_pb.JournalEntry:
        """What the host agent's journal says of the activation."""
        async with open_channel(self.grant.host_address) as channel:
            answer = await HostAgentServiceStub(channel).ListJournal(
                host_pb.ListJournalRequest(activation_ids=[self.grant.activation_id]), timeout=_CALL_TIMEOUT_S
            )
        entry: host_pb.JournalEntry = answer.entries[0]
        return entry

    async def _next(self) -> host_pb.AttachResponse:
        async with asyncio.timeout(_CALL_TIMEOUT_S):
            said = await self.call.read()
        assert isinstance(said, host_pb.AttachResponse), f"the stream ended: {self.call}"
        if said.HasField("output"):
            self.output += said.output.data
        return said
