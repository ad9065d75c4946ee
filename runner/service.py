"""The runner's gRPC service: reads requests, hands them to the conductor, streams what comes. It decides nothing.

A client is a viewer: its cancel, its deadline, its cut end the view. What runs is the conductor's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Never, TypeAlias

import grpc

from runner.adapters.turn_store import StoredConversation
from runner.adapters.wire import conversation_to_wire, locator_to_wire
from runner.conductor.conductor import Conductor
from runner.conductor.parts import Parts
from runner.conductor.requested import turn_request
from runner.core.answers import Answer, AnswerShapeError, PermissionAnswer, QuestionAnswer, RejectAnswer
from runner.core.errors import CapabilityNotBuiltError, RequestInvalidError
from runner.core.ledger import Resume
from runner.core.requests import (
    check_conversation,
    check_id,
    check_not_negative,
    check_turn,
)
from runner.core.values import ConversationKey, TurnKey
from runner.drivers.registry import AGENTS
from standfast.runner.v1 import runner_pb2 as pb
from standfast.runner.v1.runner_pb2_grpc import RunnerServiceServicer
from standfast.sandbox.v1 import sandbox_manager_pb2 as sandbox_pb
from standfast.types.v1 import types_pb2
from standfast_chassis.errors import StandfastError

PAGE_DEFAULT = 100
PAGE_MAX = 1000
_BUILD_INFO_TIMEOUT_S = 2.0

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

# RPCs whose capability this build does not have, with what they come with. The list only shrinks.
NOT_BUILT: dict[str, str] = {
    "ForkConversation": "forks",
    "CompactConversation": "native commands",
    "GetReceipt": "receipts",
    "SetAgreements": "agreements",
}


class RunnerService(RunnerServiceServicer):
    """One runner. `build` is this process's own build."""

    def __init__(self, conductor: Conductor, parts: Parts, build: types_pb2.BuildInfo) -> None:
        self._conductor = conductor
        self._parts = parts
        self._build = build

    # --- turns --------------------------------------------------------------------------------------------------------
    async def StartTurn(self, request: pb.StartTurnRequest, context: Context) -> AsyncIterator[pb.StartTurnResponse]:
        key = _turn_key(request.conversation, request.turn_id)
        view = await self._conductor.start(key, turn_request(await self._with_agent(key, request)))
        async with aclosing(view.events(0, include_raw=request.include_raw)) as events:
            async for event in events:
                yield pb.StartTurnResponse(event=event)

    async def WatchTurn(self, request: pb.WatchTurnRequest, context: Context) -> AsyncIterator[pb.WatchTurnResponse]:
        key = _turn_key(request.conversation, request.turn_id)
        after = check_not_negative("after_sequence", request.after_sequence)
        view = await self._conductor.watch(key)
        resume = await view.resume(after)
        yield pb.WatchTurnResponse(resume=pb.RESUME_OK if resume is Resume.OK else pb.RESUME_GAP)
        async with aclosing(view.events(after, include_raw=request.include_raw)) as events:
            async for event in events:
                yield pb.WatchTurnResponse(event=event)

    async def SendMessage(self, request: pb.SendMessageRequest, context: Context) -> pb.SendMessageResponse:
        key = _turn_key(request.turn.conversation, request.turn.turn_id)
        await self._conductor.start(key, turn_request(await self._with_agent(key, request.turn)))
        return pb.SendMessageResponse(turn=await self._conductor.turn(key))

    async def _with_agent(self, key: TurnKey, request: pb.StartTurnRequest) -> pb.StartTurnRequest:
        """A turn that names no agent means its conversation's. One that nobody knows is refused as such, whatever agent is asked for."""
        if request.agent or request.expect != types_pb2.EXPECT_CONTINUE:
            return request
        here = await self._parts.store.conversation(key.conversation)
        agent = here.agent if here is not None else ""
        if not agent:
            question = sandbox_pb.GetConversationRequest(conversation=conversation_to_wire(key.conversation))
            try:
                agent = (await self._parts.manager.get_conversation(question)).conversation.agent
            except StandfastError as error:
                if error.reason != "CONVERSATION_UNKNOWN":
                    raise
        filled = pb.StartTurnRequest()
        filled.CopyFrom(request)
        filled.agent = agent or AGENTS[0].name
        return filled

    async def CancelTurn(self, request: pb.CancelTurnRequest, context: Context) -> pb.CancelTurnResponse:
        turn = await self._conductor.cancel(_turn_key(request.conversation, request.turn_id))
        return pb.CancelTurnResponse(turn=turn)

    async def GetTurn(self, request: pb.GetTurnRequest, context: Context) -> pb.GetTurnResponse:
        turn = await self._conductor.turn(_turn_key(request.conversation, request.turn_id))
        return pb.GetTurnResponse(turn=turn)

    async def ListTurns(self, request: pb.ListTurnsRequest, context: Context) -> pb.ListTurnsResponse:
        key = _conversation_key(request.conversation)
        limit = _page_size(request.page_size)
        offset = _offset(request.page_token)
        turns = await self._conductor.turns(key, offset=offset, limit=limit + 1)
        has_more = len(turns) > limit
        return pb.ListTurnsResponse(turns=turns[:limit], next_page_token=str(offset + limit) if has_more else "")

    # --- native requests --------------------------------------------------------------------------------------------------
    async def ListPendingRequests(
        self, request: pb.ListPendingRequestsRequest, context: Context
    ) -> pb.ListPendingRequestsResponse:
        key = _conversation_key(request.conversation)
        return pb.ListPendingRequestsResponse(requests=self._conductor.pending(key))

    async def AnswerPermission(
        self, request: pb.AnswerPermissionRequest, context: Context
    ) -> pb.AnswerPermissionResponse:
        key = _conversation_key(request.conversation)
        if request.decision not in (pb.PERMISSION_DECISION_ALLOW, pb.PERMISSION_DECISION_DENY):
            raise AnswerShapeError("ALLOW or DENY as decision", "neither")
        answer = PermissionAnswer(request.decision == pb.PERMISSION_DECISION_ALLOW, request.message)
        turn = await self._conductor.answer(key, request.request_id, answer)
        return pb.AnswerPermissionResponse(turn_id=turn.turn_id)

    async def AnswerQuestion(self, request: pb.AnswerQuestionRequest, context: Context) -> pb.AnswerQuestionResponse:
        key = _conversation_key(request.conversation)
        if request.reject and request.answers:
            raise AnswerShapeError("answers or a rejection", "both")
        answer: Answer = QuestionAnswer(tuple(tuple(one.values) for one in request.answers))
        if request.reject:
            answer = RejectAnswer(request.reject_message)
        turn = await self._conductor.answer(key, request.request_id, answer)
        return pb.AnswerQuestionResponse(turn_id=turn.turn_id)

    # --- the queue --------------------------------------------------------------------------------------------------------
    async def CancelQueued(self, request: pb.CancelQueuedRequest, context: Context) -> pb.CancelQueuedResponse:
        turn = await self._conductor.cancel_queued(_turn_key(request.conversation, request.turn_id))
        return pb.CancelQueuedResponse(turn=turn)

    async def ReleaseQueue(self, request: pb.ReleaseQueueRequest, context: Context) -> pb.ReleaseQueueResponse:
        return pb.ReleaseQueueResponse(
            queue=await self._conductor.release_queue(_conversation_key(request.conversation))
        )

    async def ListQueue(self, request: pb.ListQueueRequest, context: Context) -> pb.ListQueueResponse:
        return pb.ListQueueResponse(queue=self._conductor.queue(_conversation_key(request.conversation)))

    # --- conversations --------------------------------------------------------------------------------------------------
    async def GetConversation(self, request: pb.GetConversationRequest, context: Context) -> pb.GetConversationResponse:
        key = _conversation_key(request.conversation)
        answer = await self._parts.manager.get_conversation(
            sandbox_pb.GetConversationRequest(conversation=conversation_to_wire(key))
        )
        return pb.GetConversationResponse(conversation=await self._conversation(key, answer.conversation))

    async def ListConversations(
        self, request: pb.ListConversationsRequest, context: Context
    ) -> pb.ListConversationsResponse:
        tenant = check_id("tenant", request.tenant) if request.tenant else ""
        answer = await self._parts.manager.list_conversations(
            sandbox_pb.ListConversationsRequest(
                tenant=tenant, page_size=_page_size(request.page_size), page_token=request.page_token
            )
        )
        found = []
        for managed in answer.conversations:
            key = ConversationKey(managed.conversation.tenant, managed.conversation.conversation_id)
            found.append(await self._conversation(key, managed))
        return pb.ListConversationsResponse(conversations=found, next_page_token=answer.next_page_token)

    async def StopConversation(
        self, request: pb.StopConversationRequest, context: Context
    ) -> pb.StopConversationResponse:
        key = _conversation_key(request.conversation)
        answer = await self._parts.manager.stop_conversation(
            sandbox_pb.StopConversationRequest(conversation=conversation_to_wire(key), force=request.force)
        )
        return pb.StopConversationResponse(conversation=await self._conversation(key, answer.conversation))

    async def RemoveConversation(
        self, request: pb.RemoveConversationRequest, context: Context
    ) -> pb.RemoveConversationResponse:
        key = _conversation_key(request.conversation)
        await self._parts.manager.remove_conversation(
            sandbox_pb.RemoveConversationRequest(conversation=conversation_to_wire(key), force=request.force)
        )
        await self._conductor.forget_conversation(key)
        return pb.RemoveConversationResponse()

    async def _conversation(self, key: ConversationKey, managed: sandbox_pb.ManagedConversation) -> pb.Conversation:
        """As runner and manager know it, side by side."""
        here = await self._parts.store.conversation(key)
        running = self._conductor.running_turn(key)
        return pb.Conversation(
            conversation=conversation_to_wire(key),
            agent=managed.agent,
            group_id=managed.group_id,
            sandbox_state=managed.group_state,
            container_id=managed.container_id,
            container_generation=managed.container_generation,
            manager_locator=managed.locator if managed.HasField("locator") else None,
            runner_locator=_saved_locator(here),
            last_settled_turn=managed.last_settled_turn,
            settled_turns=managed.settled_turns,
            host_id=managed.host_id,
            running_turn=running.turn_id if running is not None else "",
        )

    # --- the runner itself ------------------------------------------------------------------------------------------------
    async def ListAgents(self, request: pb.ListAgentsRequest, context: Context) -> pb.ListAgentsResponse:
        return pb.ListAgentsResponse(
            agents=[
                pb.Agent(name=entry.name, version=entry.version, capabilities=dict(entry.capabilities))
                for entry in AGENTS
            ]
        )

    async def GetBuildInfo(self, request: pb.GetBuildInfoRequest, context: Context) -> pb.GetBuildInfoResponse:
        try:
            answer = await self._parts.manager.get_build_info(timeout_s=_BUILD_INFO_TIMEOUT_S)
        except StandfastError:
            return pb.GetBuildInfoResponse(build=self._build)
        return pb.GetBuildInfoResponse(build=self._build, manager=answer.build)

    # --- what later capabilities bring -------------------------------------------------------------------------------------
    async def ForkConversation(self, request: pb.ForkConversationRequest, context: Context) -> Never:
        _not_built("ForkConversation")

    async def CompactConversation(self, request: pb.CompactConversationRequest, context: Context) -> Never:
        _not_built("CompactConversation")

    async def GetReceipt(self, request: pb.GetReceiptRequest, context: Context) -> Never:
        _not_built("GetReceipt")

    async def SetAgreements(self, request: pb.SetAgreementsRequest, context: Context) -> Never:
        _not_built("SetAgreements")


def _not_built(rpc: str) -> Never:
    capability = NOT_BUILT[rpc]
    raise CapabilityNotBuiltError(
        f"{rpc} comes with {capability}, which this build does not have.", {"rpc": rpc, "capability": capability}
    )


def _turn_key(conversation: types_pb2.ConversationKey, turn_id: str) -> TurnKey:
    return check_turn(conversation.tenant, conversation.conversation_id, turn_id)


def _conversation_key(conversation: types_pb2.ConversationKey) -> ConversationKey:
    return check_conversation(conversation.tenant, conversation.conversation_id)


def _page_size(wanted: int) -> int:
    check_not_negative("page_size", wanted)
    return min(wanted or PAGE_DEFAULT, PAGE_MAX)


def _offset(token: str) -> int:
    if not token:
        return 0
    if not token.isascii() or not token.isdigit() or len(token) > 12:
        raise RequestInvalidError(
            "page_token: expected one that the former answer gave, found something else.", {"field": "page_token"}
        )
    return int(token)


def _saved_locator(here: StoredConversation | None) -> types_pb2.NativeLocator | None:
    return locator_to_wire(here.locator.saved) if here is not None else None
