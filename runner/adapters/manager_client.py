"""Calls to the sandbox manager, each with its deadline, each failing with an error of ours. It retries nothing."""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from runner.adapters.peer_errors import errors_of_manager
from standfast.sandbox.v1 import sandbox_manager_pb2 as sandbox_pb
from standfast.sandbox.v1.sandbox_manager_pb2_grpc import SandboxManagerServiceStub


@dataclass(frozen=True, slots=True)
class ManagerDeadlines:
    """Seconds a call may take. Prepare may start or restore a container; settle may wait for a store to be written."""

    quick_s: float = 10.0
    prepare_s: float = 180.0
    admit_s: float = 30.0
    settle_s: float = 90.0
    stop_s: float = 90.0


class ManagerClient:
    """The manager at one address. The channel belongs to the caller."""

    def __init__(self, channel: grpc.aio.Channel, address: str, deadlines: ManagerDeadlines | None = None) -> None:
        self.address = address
        self._stub = SandboxManagerServiceStub(channel)
        self._deadlines = deadlines or ManagerDeadlines()

    async def claim_turn(self, request: sandbox_pb.ClaimTurnRequest) -> sandbox_pb.ClaimTurnResponse:
        with errors_of_manager(self.address):
            return await self._stub.ClaimTurn(request, timeout=self._deadlines.quick_s)

    async def prepare_turn(self, request: sandbox_pb.PrepareTurnRequest) -> sandbox_pb.PrepareTurnResponse:
        with errors_of_manager(self.address):
            return await self._stub.PrepareTurn(request, timeout=self._deadlines.prepare_s)

    async def admit_turn(self, request: sandbox_pb.AdmitTurnRequest) -> sandbox_pb.AdmitTurnResponse:
        with errors_of_manager(self.address):
            return await self._stub.AdmitTurn(request, timeout=self._deadlines.admit_s)

    async def renew_activation(self, request: sandbox_pb.RenewActivationRequest) -> sandbox_pb.RenewActivationResponse:
        with errors_of_manager(self.address):
            return await self._stub.RenewActivation(request, timeout=self._deadlines.quick_s)

    async def settle_turn(self, request: sandbox_pb.SettleTurnRequest) -> sandbox_pb.SettleTurnResponse:
        with errors_of_manager(self.address):
            return await self._stub.SettleTurn(request, timeout=self._deadlines.settle_s)

    async def abandon_turn(self, request: sandbox_pb.AbandonTurnRequest) -> sandbox_pb.AbandonTurnResponse:
        with errors_of_manager(self.address):
            return await self._stub.AbandonTurn(request, timeout=self._deadlines.settle_s)

    async def lookup_turn(self, request: sandbox_pb.LookupTurnRequest) -> sandbox_pb.LookupTurnResponse:
        with errors_of_manager(self.address):
            return await self._stub.LookupTurn(request, timeout=self._deadlines.quick_s)

    async def get_conversation(self, request: sandbox_pb.GetConversationRequest) -> sandbox_pb.GetConversationResponse:
        with errors_of_manager(self.address):
            return await self._stub.GetConversation(request, timeout=self._deadlines.quick_s)

    async def list_conversations(
        self, request: sandbox_pb.ListConversationsRequest
    ) -> sandbox_pb.ListConversationsResponse:
        with errors_of_manager(self.address):
            return await self._stub.ListConversations(request, timeout=self._deadlines.quick_s)

    async def stop_conversation(
        self, request: sandbox_pb.StopConversationRequest
    ) -> sandbox_pb.StopConversationResponse:
        with errors_of_manager(self.address):
            return await self._stub.StopConversation(request, timeout=self._deadlines.stop_s)

    async def remove_conversation(
        self, request: sandbox_pb.RemoveConversationRequest
    ) -> sandbox_pb.RemoveConversationResponse:
        with errors_of_manager(self.address):
            return await self._stub.RemoveConversation(request, timeout=self._deadlines.stop_s)

    async def get_build_info(self, *, timeout_s: float) -> sandbox_pb.GetBuildInfoResponse:
        with errors_of_manager(self.address):
            return await self._stub.GetBuildInfo(sandbox_pb.GetBuildInfoRequest(), timeout=timeout_s)
