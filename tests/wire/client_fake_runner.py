"""A runner whose turns are scripts: real gRPC, real statuses, no turn behind it."""

# The names of the methods are those of the RPCs.
# ruff: noqa: N802

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from standfast.runner.v1 import runner_pb2 as pb
from standfast.runner.v1 import runner_pb2_grpc as rpc
from standfast.types.v1 import types_pb2 as types
from standfast_chassis.errors import StandfastError
from standfast_chassis.grpc_server import GrpcServer

SERVICE = "standfast.runner.v1.RunnerService"
Context = grpc.aio.ServicerContext[Any, Any]


class ScriptedError(StandfastError):
    """A refusal that a test asks for."""

    def __init__(self, reason: str, message: str = "because", **metadata: str) -> None:
        super().__init__(message, metadata)
        self.reason = reason


CODES = {
    "CONTEXT_LOST": grpc.StatusCode.FAILED_PRECONDITION,
    "LEGACY_CONVERSATION": grpc.StatusCode.FAILED_PRECONDITION,
    "LOCATOR_MISMATCH": grpc.StatusCode.FAILED_PRECONDITION,
    "IMAGE_RETIRED": grpc.StatusCode.FAILED_PRECONDITION,
    "CONVERSATION_EXISTS": grpc.StatusCode.ALREADY_EXISTS,
    "MESSAGE_CHANGED": grpc.StatusCode.ALREADY_EXISTS,
    "TURN_ELSEWHERE": grpc.StatusCode.ABORTED,
    "CONVERSATION_BUSY": grpc.StatusCode.ABORTED,
    "MESSAGE_EMPTY": grpc.StatusCode.INVALID_ARGUMENT,
    "CONVERSATION_UNKNOWN": grpc.StatusCode.NOT_FOUND,
    "TURN_UNKNOWN": grpc.StatusCode.NOT_FOUND,
    "MANAGER_UNAVAILABLE": grpc.StatusCode.UNAVAILABLE,
    "ANSWER_INVALID": grpc.StatusCode.INVALID_ARGUMENT,
    "NATIVE_REQUEST_UNKNOWN": grpc.StatusCode.NOT_FOUND,
    "NATIVE_REQUEST_CLOSED": grpc.StatusCode.FAILED_PRECONDITION,
    "TURN_NOT_QUEUED": grpc.StatusCode.FAILED_PRECONDITION,
    "QUEUE_FULL": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "NO_HOST": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "CAPABILITY_NOT_BUILT": grpc.StatusCode.UNIMPLEMENTED,
    "INTERNAL": grpc.StatusCode.INTERNAL,
}


CAN = {"resume": "yes", "steer": "no: it joins messages"}


def key(conversation_id: str) -> types.ConversationKey:
    return types.ConversationKey(tenant="local", conversation_id=conversation_id)


def turn_record(turn_id: str = "t-1", **more: Any) -> pb.Turn:
    fields: dict[str, Any] = {
        "conversation": key("c-1"),
        "turn_id": turn_id,
        "state": "SETTLED",
        "agent": "claude-code",
        "context_state": types.CONTEXT_STATE_NEW,
        "context_reason": "FIRST_TURN",
        "outcome": types.OUTCOME_COMPLETED,
        "locator": types.NativeLocator(agent="claude-code", native_session_id="s-1", cwd="/workspace", store="x.jsonl"),
        "locator_saved": True,
        "container_id": "box",
        "generations": types.Generations(container=1, process=2, activation=3),
        "runner_verdict": types.VERDICT_CONFIRMED,
        "manager_verdict": types.VERDICT_CONFIRMED,
        "store_verdict": types.STORE_VERDICT_CONFIRMED,
        "process_disposition": types.PROCESS_DISPOSITION_KEPT,
        "end_reason": "completed",
        "end_evidence_digest": "sha256:00",
    }
    return pb.Turn(**(fields | more))


def events_of(text: str, turn: pb.Turn | None = None) -> list[pb.TurnEvent]:
    """A plain turn: accepted, context, forwarded, deltas, the block, ended, settled."""
    half = len(text) // 2
    bodies: list[dict[str, Any]] = [
        {"accepted": pb.TurnAccepted(turn_id="t-1")},
        {"context": pb.ContextDecided(state=types.CONTEXT_STATE_NEW, reason="FIRST_TURN")},
        {"forwarded": pb.MessageForwarded()},
        {"text_delta": pb.TextDelta(text=text[:half])},
        {"text_delta": pb.TextDelta(text=text[half:])},
        {"assistant_message": pb.AssistantMessage(message_id="m", text=text)},
        {"ended": pb.TurnEnded(outcome=types.OUTCOME_COMPLETED, settlement=pb.SETTLEMENT_STATE_SETTLING)},
        {"settled": pb.TurnSettled(turn=turn or turn_record())},
    ]
    return [pb.TurnEvent(sequence=number, **body) for number, body in enumerate(bodies, 1)]


@dataclass
class Script:
    """What the runner does. `cut_after`: the StartTurn stream breaks after so many events."""

    events: list[pb.TurnEvent] = field(default_factory=lambda: events_of("hello"))
    refusal: ScriptedError | None = None
    cut_after: int | None = None
    hold_after: int | None = None
    resume: pb.Resume.ValueType = pb.RESUME_OK
    conversations: list[pb.Conversation] = field(default_factory=list)
    turns: list[pb.Turn] = field(default_factory=list)
    started: list[pb.StartTurnRequest] = field(default_factory=list)
    watched: list[pb.WatchTurnRequest] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    held: asyncio.Event = field(default_factory=asyncio.Event)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    end_quietly: bool = False
    pending: list[pb.PendingRequest] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)
    queue: pb.Queue = field(default_factory=pb.Queue)
    sent: list[pb.StartTurnRequest] = field(default_factory=list)
    wrong_answers: int = 0  # so many answers are refused first

    def refuse(self) -> None:
        if self.refusal is not None:
            raise self.refusal


class FakeRunner:
    """Only what the script knows; everything else answers UNIMPLEMENTED by itself."""

    def __init__(self, script: Script) -> None:
        self.script = script

    async def StartTurn(self, request: pb.StartTurnRequest, context: Context) -> AsyncIterator[pb.StartTurnResponse]:
        script = self.script
        script.started.append(request)
        script.refuse()
        for number, event in enumerate(script.events):
            if number == script.cut_after:
                if script.end_quietly:
                    return
                # What a connection that breaks looks like to a client: UNAVAILABLE, and no ErrorInfo.
                await context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")
            if number == script.hold_after:
                script.held.set()
                await script.release.wait()
            yield pb.StartTurnResponse(event=event)

    async def WatchTurn(self, request: pb.WatchTurnRequest, context: Context) -> AsyncIterator[pb.WatchTurnResponse]:
        script = self.script
        script.watched.append(request)
        script.refuse()
        yield pb.WatchTurnResponse(resume=script.resume)
        for event in script.events:
            # As the runner does: what is kept of the raw frames is replayed whole, and a turn's end is told in any case.
            is_end_after_a_gap = script.resume == pb.RESUME_GAP and event.HasField("settled")
            if event.sequence > request.after_sequence or event.HasField("raw_frame") or is_end_after_a_gap:
                yield pb.WatchTurnResponse(event=event)

    async def CancelTurn(self, request: pb.CancelTurnRequest, context: Context) -> pb.CancelTurnResponse:
        self.script.refuse()
        self.script.cancelled.append(request.turn_id)
        self.script.release.set()
        return pb.CancelTurnResponse(turn=turn_record(request.turn_id))

    async def SendMessage(self, request: pb.SendMessageRequest, context: Context) -> pb.SendMessageResponse:
        self.script.refuse()
        self.script.sent.append(request.turn)
        return pb.SendMessageResponse(turn=pb.Turn(turn_id=request.turn.turn_id, state="QUEUED"))

    async def ListPendingRequests(
        self, request: pb.ListPendingRequestsRequest, context: Context
    ) -> pb.ListPendingRequestsResponse:
        return pb.ListPendingRequestsResponse(requests=self.script.pending)

    def _answer(self, request: Any) -> None:
        self.script.answers.append(request)
        self.script.refuse()
        if len(self.script.answers) <= self.script.wrong_answers:
            raise ScriptedError("ANSWER_INVALID")
        self.script.release.set()

    async def AnswerPermission(
        self, request: pb.AnswerPermissionRequest, context: Context
    ) -> pb.AnswerPermissionResponse:
        self._answer(request)
        return pb.AnswerPermissionResponse(turn_id="t-1")

    async def AnswerQuestion(self, request: pb.AnswerQuestionRequest, context: Context) -> pb.AnswerQuestionResponse:
        self._answer(request)
        return pb.AnswerQuestionResponse(turn_id="t-1")

    async def ListQueue(self, request: pb.ListQueueRequest, context: Context) -> pb.ListQueueResponse:
        return pb.ListQueueResponse(queue=self.script.queue)

    async def ReleaseQueue(self, request: pb.ReleaseQueueRequest, context: Context) -> pb.ReleaseQueueResponse:
        self.script.queue.ClearField("held")
        return pb.ReleaseQueueResponse(queue=self.script.queue)

    async def CancelQueued(self, request: pb.CancelQueuedRequest, context: Context) -> pb.CancelQueuedResponse:
        self.script.refuse()
        self.script.cancelled.append(request.turn_id)
        return pb.CancelQueuedResponse(turn=turn_record(request.turn_id, outcome=types.OUTCOME_CANCELLED))

    async def GetTurn(self, request: pb.GetTurnRequest, context: Context) -> pb.GetTurnResponse:
        for turn in self.script.turns:
            if turn.turn_id == request.turn_id:
                return pb.GetTurnResponse(turn=turn)
        raise ScriptedError("TURN_UNKNOWN")

    async def GetConversation(self, request: pb.GetConversationRequest, context: Context) -> pb.GetConversationResponse:
        for one in self.script.conversations:
            if one.conversation.conversation_id == request.conversation.conversation_id:
                return pb.GetConversationResponse(conversation=one)
        raise ScriptedError("CONVERSATION_UNKNOWN")

    async def ListConversations(
        self, request: pb.ListConversationsRequest, context: Context
    ) -> pb.ListConversationsResponse:
        at = int(request.page_token or 0)
        page = self.script.conversations[at : at + 2]
        more = at + 2 < len(self.script.conversations)
        return pb.ListConversationsResponse(conversations=page, next_page_token=str(at + 2) if more else "")

    async def ListTurns(self, request: pb.ListTurnsRequest, context: Context) -> pb.ListTurnsResponse:
        return pb.ListTurnsResponse(turns=self.script.turns)

    async def StopConversation(
        self, request: pb.StopConversationRequest, context: Context
    ) -> pb.StopConversationResponse:
        self.script.refuse()
        return pb.StopConversationResponse(
            conversation=pb.Conversation(conversation=request.conversation, sandbox_state="STOPPED")
        )

    async def RemoveConversation(
        self, request: pb.RemoveConversationRequest, context: Context
    ) -> pb.RemoveConversationResponse:
        self.script.refuse()
        self.script.removed.append(request.conversation.conversation_id)
        return pb.RemoveConversationResponse()

    async def ListAgents(self, request: pb.ListAgentsRequest, context: Context) -> pb.ListAgentsResponse:
        return pb.ListAgentsResponse(agents=[pb.Agent(name="claude-code", version="2.1.220", capabilities=CAN)])

    async def GetBuildInfo(self, request: pb.GetBuildInfoRequest, context: Context) -> pb.GetBuildInfoResponse:
        return pb.GetBuildInfoResponse(
            build=types.BuildInfo(component="runner", version="9", release_sha="abc", protocol_version=1)
        )


def service(script: Script) -> rpc.RunnerServiceServicer:
    """The servicer: the generated base is abstract, so what the fake lacks is filled with refusals."""
    base: Any = rpc.RunnerServiceServicer
    missing: dict[str, Callable[..., Any]] = {}
    for name in [name for name in dir(base) if name[:1].isupper() and name not in vars(FakeRunner)]:

        async def refuse(self: object, request: object, context: Context) -> None:
            raise ScriptedError("CAPABILITY_NOT_BUILT")

        missing[name] = refuse
    made: Any = type("Made", (FakeRunner, base), missing)
    servicer: rpc.RunnerServiceServicer = made(script)
    return servicer


@asynccontextmanager
async def fake_runner(script: Script, address: str = "127.0.0.1:0") -> AsyncIterator[str]:
    """Serves the script; gives the address."""
    async with GrpcServer(codes=CODES, stop_grace_s=0) as server:
        rpc.add_RunnerServiceServicer_to_server(service(script), server.grpc)
        port = server.listen(address)
        await server.start([SERVICE])
        yield f"127.0.0.1:{port}"
