"""The SDK: conversations and turns over a runner.

    async with StandfastClient("127.0.0.1:7400") as client:
        turn = client.start_turn("my-conversation", "Hello", expect=Expect.NEW)
        async for event in turn:
            ...
        print(turn.result.outcome)

A client is a viewer: leaving a stream ends the view, not the turn (`cancel_turn` ends the turn). A view that breaks is taken up
again where it stopped; a message is never sent twice, since every start carries its turn_id.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from standfast.runner.v1 import runner_pb2 as pb
from standfast.runner.v1 import runner_pb2_grpc as rpc
from standfast.types.v1 import types_pb2 as types
from standfast_chassis.grpc_channel import open_channel
from standfast_chassis.limits import MESSAGE_MAX_BYTES
from standfast_chassis.tracing import Tracing
from standfast_client.calls import answered
from standfast_client.errors import InvalidRequestError
from standfast_client.turn_stream import TurnStream

DEFAULT_AGENT = "claude-code"
CALL_TIMEOUT_S = 30.0
# Stopping waits for the CLI's own exit and the engine's stop.
STOP_TIMEOUT_S = 120.0
PATIENCE_S = 30.0
PAGE_SIZE = 100


class Expect(enum.Enum):
    """What the caller expects of the conversation. It is always said: a history is never begun anew in silence."""

    NEW = types.EXPECT_NEW
    CONTINUE = types.EXPECT_CONTINUE


class WhenBusy(enum.Enum):
    """What is to become of a message while another turn of its conversation runs."""

    REJECT = pb.WHEN_BUSY_REJECT
    QUEUE = pb.WHEN_BUSY_QUEUE
    STEER = pb.WHEN_BUSY_STEER


@dataclass(frozen=True, slots=True)
class Permissions:
    """What the conversation's agent may do with nobody asked. An empty mode and no rules: what the conversation has already.

    `mode` is "auto", "ask" or "deny"; rules are in the agent's own notation, e.g. "Bash(git *)".
    """

    mode: str = ""
    allow_rules: Sequence[str] = ()
    deny_rules: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """In seconds; None: the runner's setting. `silence_s`: how long the agent may print nothing; `request_expiry_s`: how long
    a permission or a question waits for its answer.
    """

    turn_s: float | None = None
    silence_s: float | None = None
    request_expiry_s: float | None = None


def new_id(kind: str) -> str:
    """A fresh id for a conversation ("c") or a turn ("t")."""
    return f"{kind}-{uuid.uuid4()}"


class StandfastClient:
    """A client of one runner; an async context manager, made inside the running loop."""

    def __init__(self, address: str, *, tenant: str = "local", tracing: Tracing | None = None) -> None:
        self.address = address
        self.tenant = tenant
        self._channel = open_channel(address, tracing=tracing)
        self._stub: rpc.RunnerServiceAsyncStub = rpc.RunnerServiceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends all views and the connection. Idempotent."""
        await self._channel.close()

    def start_turn(
        self,
        conversation_id: str,
        message: str,
        *,
        expect: Expect,
        agent: str | None = None,
        turn_id: str | None = None,
        model: str | None = None,
        options: Mapping[str, str] | None = None,
        locator: types.NativeLocator | None = None,
        include_raw: bool = False,
        when_busy: WhenBusy = WhenBusy.REJECT,
        permissions: Permissions | None = None,
        limits: TurnLimits | None = None,
        patience_s: float = PATIENCE_S,
    ) -> TurnStream:
        """One turn and its events. The text goes to the CLI byte for byte. The call is made when the stream is iterated.

        The same `turn_id` with the same message re-attaches. `locator`: the caller's own record, which must equal the saved one.
        `patience_s`: how long a broken view is tried again. Iterating raises ClientError.
        """
        request = self._request(
            conversation_id,
            message,
            expect=expect,
            agent=agent,
            turn_id=turn_id,
            model=model,
            options=options,
            locator=locator,
            include_raw=include_raw,
            when_busy=when_busy,
            permissions=permissions,
            limits=limits,
        )
        return TurnStream(self._stub, request.conversation, request.turn_id, start=request, patience_s=patience_s)

    async def send_message(
        self,
        conversation_id: str,
        message: str,
        *,
        expect: Expect,
        agent: str | None = None,
        turn_id: str | None = None,
        model: str | None = None,
        options: Mapping[str, str] | None = None,
        when_busy: WhenBusy = WhenBusy.QUEUE,
        permissions: Permissions | None = None,
        limits: TurnLimits | None = None,
    ) -> pb.Turn:
        """Starts or queues a turn and returns at once; `watch_turn` follows it."""
        request = self._request(
            conversation_id,
            message,
            expect=expect,
            agent=agent,
            turn_id=turn_id,
            model=model,
            options=options,
            locator=None,
            include_raw=False,
            when_busy=when_busy,
            permissions=permissions,
            limits=limits,
        )
        wish = pb.SendMessageRequest(turn=request)
        return (await answered(self._stub.SendMessage(wish, timeout=CALL_TIMEOUT_S))).turn

    def _request(
        self,
        conversation_id: str,
        message: str,
        *,
        expect: Expect,
        agent: str | None,
        turn_id: str | None,
        model: str | None,
        options: Mapping[str, str] | None,
        locator: types.NativeLocator | None,
        include_raw: bool,
        when_busy: WhenBusy,
        permissions: Permissions | None,
        limits: TurnLimits | None,
    ) -> pb.StartTurnRequest:
        length = len(message.encode("utf-8", "surrogatepass"))
        if length > MESSAGE_MAX_BYTES:
            # Said here as the runner would: a message over gRPC's own bound never reaches it.
            error = InvalidRequestError(
                f"the message has {length} bytes; at most {MESSAGE_MAX_BYTES} are sent. Put long content into a file of the workspace.",
                {"limit_bytes": MESSAGE_MAX_BYTES, "length_bytes": length},
            )
            error.reason = "MESSAGE_TOO_LARGE"
            raise error
        may, most = permissions or Permissions(), limits or TurnLimits()
        request = pb.StartTurnRequest(
            conversation=self._key(conversation_id),
            turn_id=turn_id or new_id("t"),
            message=message,
            agent=agent or (DEFAULT_AGENT if expect is Expect.NEW else ""),
            settings=types.AgentSettings(
                model=model or "",
                options=dict(options or {}),
                permission_mode=may.mode,
                allow_rules=may.allow_rules,
                deny_rules=may.deny_rules,
            ),
            expect=expect.value,
            when_busy=when_busy.value,
            include_raw=include_raw,
            turn_limit_ms=_milliseconds(most.turn_s),
            silence_limit_ms=_milliseconds(most.silence_s),
            request_expiry_ms=_milliseconds(most.request_expiry_s),
        )
        if locator is not None:
            request.locator.CopyFrom(locator)
        return request

    def watch_turn(
        self,
        conversation_id: str,
        turn_id: str,
        *,
        after_sequence: int = 0,
        include_raw: bool = False,
        patience_s: float = PATIENCE_S,
    ) -> TurnStream:
        """A turn's events after a number, and then as they come. `resume` of the stream says whether the replay is whole."""
        return TurnStream(
            self._stub,
            self._key(conversation_id),
            turn_id,
            after_sequence=after_sequence,
            include_raw=include_raw,
            patience_s=patience_s,
        )

    async def cancel_turn(self, conversation_id: str, turn_id: str) -> pb.Turn:
        """Ends a running turn; its end may still come. An ended one is given as it stands."""
        request = pb.CancelTurnRequest(conversation=self._key(conversation_id), turn_id=turn_id)
        return (await answered(self._stub.CancelTurn(request, timeout=CALL_TIMEOUT_S))).turn

    # --- what the agent asks ---------------------------------------------------------------------------------------------------
    async def list_pending(self, conversation_id: str) -> list[pb.PendingRequest]:
        """What the running turn asks and nobody has answered yet."""
        request = pb.ListPendingRequestsRequest(conversation=self._key(conversation_id))
        return list((await answered(self._stub.ListPendingRequests(request, timeout=CALL_TIMEOUT_S))).requests)

    async def answer_permission(self, conversation_id: str, request_id: str, *, allow: bool, message: str = "") -> str:
        """Allows or denies one call of a tool; the id of the turn that asked. The same answer again says yes again."""
        decision = pb.PERMISSION_DECISION_ALLOW if allow else pb.PERMISSION_DECISION_DENY
        request = pb.AnswerPermissionRequest(
            conversation=self._key(conversation_id), request_id=request_id, decision=decision, message=message
        )
        return (await answered(self._stub.AnswerPermission(request, timeout=CALL_TIMEOUT_S))).turn_id

    async def answer_question(self, conversation_id: str, request_id: str, answers: Sequence[Sequence[str]]) -> str:
        """One sequence of values a question, in their order; the id of the turn that asked."""
        request = pb.AnswerQuestionRequest(
            conversation=self._key(conversation_id),
            request_id=request_id,
            answers=[pb.QuestionAnswer(values=values) for values in answers],
        )
        return (await answered(self._stub.AnswerQuestion(request, timeout=CALL_TIMEOUT_S))).turn_id

    async def reject_question(self, conversation_id: str, request_id: str, message: str = "") -> str:
        """Tells the agent that there will be no answer; the id of the turn that asked."""
        request = pb.AnswerQuestionRequest(
            conversation=self._key(conversation_id), request_id=request_id, reject=True, reject_message=message
        )
        return (await answered(self._stub.AnswerQuestion(request, timeout=CALL_TIMEOUT_S))).turn_id

    # --- messages that wait ----------------------------------------------------------------------------------------------------
    async def list_queue(self, conversation_id: str) -> pb.Queue:
        """The conversation's queue as it stands."""
        request = pb.ListQueueRequest(conversation=self._key(conversation_id))
        return (await answered(self._stub.ListQueue(request, timeout=CALL_TIMEOUT_S))).queue

    async def cancel_queued(self, conversation_id: str, turn_id: str) -> pb.Turn:
        """Takes a waiting message out; nothing of it is sent."""
        request = pb.CancelQueuedRequest(conversation=self._key(conversation_id), turn_id=turn_id)
        return (await answered(self._stub.CancelQueued(request, timeout=CALL_TIMEOUT_S))).turn

    async def release_queue(self, conversation_id: str) -> pb.Queue:
        """Lets a held queue go on; a queue that is not held is given as it stands."""
        request = pb.ReleaseQueueRequest(conversation=self._key(conversation_id))
        return (await answered(self._stub.ReleaseQueue(request, timeout=CALL_TIMEOUT_S))).queue

    async def get_turn(self, conversation_id: str, turn_id: str) -> pb.Turn:
        """A turn as it stands."""
        request = pb.GetTurnRequest(conversation=self._key(conversation_id), turn_id=turn_id)
        return (await answered(self._stub.GetTurn(request, timeout=CALL_TIMEOUT_S))).turn

    async def get_conversation(self, conversation_id: str) -> pb.Conversation:
        """A conversation as runner and manager know it."""
        request = pb.GetConversationRequest(conversation=self._key(conversation_id))
        return (await answered(self._stub.GetConversation(request, timeout=CALL_TIMEOUT_S))).conversation

    async def list_conversations(self) -> AsyncIterator[pb.Conversation]:
        """All conversations of the tenant, page by page."""
        token = ""
        while True:
            request = pb.ListConversationsRequest(tenant=self.tenant, page_size=PAGE_SIZE, page_token=token)
            page = await answered(self._stub.ListConversations(request, timeout=CALL_TIMEOUT_S))
            for conversation in page.conversations:
                yield conversation
            token = page.next_page_token
            if not token:
                return

    async def list_turns(self, conversation_id: str) -> AsyncIterator[pb.Turn]:
        """The turns that this runner knows, oldest first, page by page."""
        token = ""
        while True:
            request = pb.ListTurnsRequest(
                conversation=self._key(conversation_id), page_size=PAGE_SIZE, page_token=token
            )
            page = await answered(self._stub.ListTurns(request, timeout=CALL_TIMEOUT_S))
            for turn in page.turns:
                yield turn
            token = page.next_page_token
            if not token:
                return

    async def stop_conversation(self, conversation_id: str, *, force: bool = False) -> pb.Conversation:
        """Stops the sandbox in order; the conversation stays. `force` interrupts a running turn."""
        request = pb.StopConversationRequest(conversation=self._key(conversation_id), force=force)
        return (await answered(self._stub.StopConversation(request, timeout=STOP_TIMEOUT_S))).conversation

    async def remove_conversation(self, conversation_id: str, *, force: bool = False) -> None:
        """Removes a conversation for good; its id is not used again."""
        request = pb.RemoveConversationRequest(conversation=self._key(conversation_id), force=force)
        await answered(self._stub.RemoveConversation(request, timeout=STOP_TIMEOUT_S))

    async def list_agents(self) -> list[pb.Agent]:
        """The agents with their pins."""
        return list((await answered(self._stub.ListAgents(pb.ListAgentsRequest(), timeout=CALL_TIMEOUT_S))).agents)

    async def get_build_info(self) -> pb.GetBuildInfoResponse:
        """Which builds answer."""
        return await answered(self._stub.GetBuildInfo(pb.GetBuildInfoRequest(), timeout=CALL_TIMEOUT_S))

    def _key(self, conversation_id: str) -> types.ConversationKey:
        return types.ConversationKey(tenant=self.tenant, conversation_id=conversation_id)


def _milliseconds(seconds: float | None) -> int:
    """0 stands for what the runner is set to, so a tiny limit is still one."""
    return 0 if seconds is None else max(1, round(seconds * 1000))
