"""SandboxManagerService: checks a request, hands it to its noun, and puts the result into a message. It decides nothing itself."""

from __future__ import annotations

from typing import Any

import grpc

from sandbox_manager.conductor.abandoning import WISHES, Abandoning, AbandonWish
from sandbox_manager.conductor.admitting import Admitting, AdmitWish
from sandbox_manager.conductor.claims import Claims, ClaimWish
from sandbox_manager.conductor.granting import PrepareWish
from sandbox_manager.conductor.leasing import Leasing
from sandbox_manager.conductor.lookups import story_of_turn
from sandbox_manager.conductor.parts import Parts
from sandbox_manager.conductor.preparing import Preparing
from sandbox_manager.conductor.removing import Removing
from sandbox_manager.conductor.settling import RunnerSays, SettleWish, Settling
from sandbox_manager.conductor.stopping import Stopping, unknown_conversation
from sandbox_manager.core.refusals import CapabilityNotBuiltError, RequestInvalidError
from sandbox_manager.services.messages import (
    build_message,
    context_state_value,
    conversation_message,
    generations_message,
    locator_message,
    outcome_word,
    settings_message,
    settlement_message,
    turn_message,
    verdict_of,
)
from sandbox_manager.services.requests import (
    DEFAULT_TENANT,
    checked_agent,
    checked_digest,
    checked_id,
    checked_length,
    checked_locator,
    checked_ref,
    checked_text,
    said_settings,
)
from standfast.sandbox.v1 import sandbox_manager_pb2 as pb
from standfast.sandbox.v1 import sandbox_manager_pb2_grpc
from standfast.types.v1 import types_pb2

Context = grpc.aio.ServicerContext[Any, Any]

_PAGE_DEFAULT = 100
_PAGE_MAX = 1000


class SandboxManager(sandbox_manager_pb2_grpc.SandboxManagerServiceServicer):
    """The service."""

    def __init__(
        self,
        parts: Parts,
        *,
        preparing: Preparing,
        admitting: Admitting,
        abandoning: Abandoning,
        stopping: Stopping,
        removing: Removing,
    ) -> None:
        self._parts = parts
        self._claims = Claims(parts)
        self._preparing = preparing
        self._admitting = admitting
        self._leasing = Leasing(parts)
        self._settling = Settling(parts)
        self._abandoning = abandoning
        self._stopping = stopping
        self._removing = removing

    async def ClaimTurn(self, request: pb.ClaimTurnRequest, context: Context) -> pb.ClaimTurnResponse:
        claim = await self._claims.claim(
            ClaimWish(
                ref=checked_ref(request.conversation),
                turn_id=checked_id("turn_id", request.turn_id),
                message_digest=checked_digest("message_digest", request.message_digest),
                message_length=checked_length("message_length", request.message_length),
                agent=checked_agent(request.agent),
                expect=types_pb2.Expect.Name(request.expect).removeprefix("EXPECT_"),
                runner_id=checked_id("runner_id", request.runner_id),
                runner_address=checked_text("runner_address", request.runner_address),
                runner_knows_conversation=request.runner_knows_conversation,
            )
        )
        answer = pb.ClaimTurnResponse(
            disposition=claim.disposition,
            turn=turn_message(claim.story, await self._parts.host_address(claim.story)),
            conversation_known=claim.conversation_known,
        )
        if claim.unresolved is not None:
            address = await self._parts.host_address(claim.unresolved)
            answer.unresolved.CopyFrom(turn_message(claim.unresolved, address))
        return answer

    async def PrepareTurn(self, request: pb.PrepareTurnRequest, context: Context) -> pb.PrepareTurnResponse:
        agent = checked_agent(request.agent)
        grant = await self._preparing.prepare(
            PrepareWish(
                ref=checked_ref(request.conversation),
                turn_id=checked_id("turn_id", request.turn_id),
                runner_id=checked_id("runner_id", request.runner_id),
                agent=agent,
                said=said_settings(request.settings),
                locator=checked_locator("locator", request.locator) if request.HasField("locator") else None,
            )
        )
        activation, host = grant.activation, grant.host
        return pb.PrepareTurnResponse(
            activation_id=activation.activation_id,
            group_id=activation.group_id,
            member_id=activation.member_id,
            container_id=activation.container_id,
            host_address=host.address,
            host_id=host.host_id,
            generations=generations_message(activation.generations),
            locator=locator_message(activation.locator),
            resumes=activation.resumes,
            message_id=activation.message_id,
            activation_token=activation.token,
            lease_ms=int(self._parts.leases.lease_s * 1000),
            interrupted_turn_id=grant.interrupted_turn or "",
            host_public_key_jwk=host.public_key_jwk,
            settings=settings_message(activation.settings),
        )

    async def AdmitTurn(self, request: pb.AdmitTurnRequest, context: Context) -> pb.AdmitTurnResponse:
        admission, activation = await self._admitting.admit(
            AdmitWish(
                activation_id=checked_id("activation_id", request.activation_id),
                runner_id=checked_id("runner_id", request.runner_id),
                report_jws=request.report_jws,
                message_digest=checked_digest("message_digest", request.message_digest),
                message_length=checked_length("message_length", request.message_length),
            )
        )
        return pb.AdmitTurnResponse(
            admission_jws=admission.admission_jws,
            context_state=context_state_value(admission.context_state),
            context_reason=admission.context_reason,
            locator=locator_message(activation.locator),
            generations=types_pb2.Generations(
                container=activation.container_generation,
                process=admission.process_generation,
                activation=activation.activation_generation,
            ),
        )

    async def RenewActivation(self, request: pb.RenewActivationRequest, context: Context) -> pb.RenewActivationResponse:
        lease_ms = await self._leasing.renew(
            checked_id("activation_id", request.activation_id),
            checked_id("runner_id", request.runner_id),
            request.activation_generation,
        )
        return pb.RenewActivationResponse(lease_ms=lease_ms)

    async def SettleTurn(self, request: pb.SettleTurnRequest, context: Context) -> pb.SettleTurnResponse:
        settlement = await self._settling.settle(
            SettleWish(
                request_id=checked_text("request_id", request.request_id),
                ref=checked_ref(request.conversation),
                turn_id=checked_id("turn_id", request.turn_id),
                activation_id=checked_id("activation_id", request.activation_id),
                runner_id=checked_id("runner_id", request.runner_id),
                claim=RunnerSays(
                    verdict=verdict_of(request.claim.verdict),
                    native_session_id=request.claim.native_session_id,
                    failed=request.claim.failed,
                ),
            )
        )
        return pb.SettleTurnResponse(settlement=settlement_message(settlement))

    async def AbandonTurn(self, request: pb.AbandonTurnRequest, context: Context) -> pb.AbandonTurnResponse:
        outcome = outcome_word(request.outcome)
        if outcome not in WISHES:
            raise RequestInvalidError("outcome", " or ".join(WISHES), outcome)
        story = await self._abandoning.abandon(
            AbandonWish(
                ref=checked_ref(request.conversation),
                turn_id=checked_id("turn_id", request.turn_id),
                runner_id=checked_id("runner_id", request.runner_id),
                outcome=outcome,
                reason=checked_text("reason", request.reason, is_required=False) or None,
            )
        )
        return pb.AbandonTurnResponse(turn=turn_message(story, await self._parts.host_address(story)))

    async def LookupTurn(self, request: pb.LookupTurnRequest, context: Context) -> pb.LookupTurnResponse:
        story = await story_of_turn(
            self._parts, checked_ref(request.conversation), checked_id("turn_id", request.turn_id)
        )
        return pb.LookupTurnResponse(turn=turn_message(story, await self._parts.host_address(story)))

    async def GetConversation(self, request: pb.GetConversationRequest, context: Context) -> pb.GetConversationResponse:
        ref = checked_ref(request.conversation)
        found = await self._parts.store.conversation(ref)
        if found.member is None:
            raise unknown_conversation(ref)
        return pb.GetConversationResponse(conversation=conversation_message(found))

    async def ListConversations(
        self, request: pb.ListConversationsRequest, context: Context
    ) -> pb.ListConversationsResponse:
        tenant = checked_id("tenant", request.tenant or DEFAULT_TENANT)
        size = request.page_size or _PAGE_DEFAULT
        if not 1 <= size <= _PAGE_MAX:
            raise RequestInvalidError("page_size", f"1 to {_PAGE_MAX}", str(size))
        found = await self._parts.store.conversations(tenant, request.page_token or None, size + 1)
        page = found[:size]
        last = page[-1].member if page else None
        return pb.ListConversationsResponse(
            conversations=[conversation_message(one) for one in page if one.tombstone is None],
            next_page_token=last.member_id if len(found) > size and last is not None else "",
        )

    async def StopConversation(
        self, request: pb.StopConversationRequest, context: Context
    ) -> pb.StopConversationResponse:
        found = await self._stopping.stop(checked_ref(request.conversation), force=request.force)
        return pb.StopConversationResponse(conversation=conversation_message(found))

    async def RemoveConversation(
        self, request: pb.RemoveConversationRequest, context: Context
    ) -> pb.RemoveConversationResponse:
        await self._removing.remove(checked_ref(request.conversation), force=request.force)
        return pb.RemoveConversationResponse()

    async def ForkConversation(
        self, request: pb.ForkConversationRequest, context: Context
    ) -> pb.ForkConversationResponse:
        raise CapabilityNotBuiltError("forks")

    async def SetAgreements(self, request: pb.SetAgreementsRequest, context: Context) -> pb.SetAgreementsResponse:
        raise CapabilityNotBuiltError("agreements")

    async def GetBuildInfo(self, request: pb.GetBuildInfoRequest, context: Context) -> pb.GetBuildInfoResponse:
        return pb.GetBuildInfoResponse(build=build_message(self._parts.build, self._parts.key.public.thumbprint))
