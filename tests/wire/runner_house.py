# ruff: noqa: N802 - the methods have the names of RPCs
"""A real runner over real gRPC, between a scripted manager and a scripted host agent.

For faults that no real part can show: a manager that confirms another session, a host agent that starts another one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc

from runner.policy import RunnerPolicy
from runner.server import Runner
from runner.settings import RunnerSettings
from standfast.host.v1 import host_agent_pb2 as host_pb
from standfast.host.v1 import host_agent_pb2_grpc as host_grpc
from standfast.runner.v1 import runner_pb2 as pb
from standfast.runner.v1.runner_pb2_grpc import RunnerServiceStub
from standfast.sandbox.v1 import sandbox_manager_pb2 as sandbox_pb
from standfast.sandbox.v1 import sandbox_manager_pb2_grpc as sandbox_grpc
from standfast.types.v1 import types_pb2
from standfast_chassis.errors import StandfastError
from standfast_chassis.rpc_status import abort, remote_errors
from standfast_chassis.tracing import Tracing

if TYPE_CHECKING:
    # Exists in the stub file only.
    from standfast.runner.v1.runner_pb2_grpc import RunnerServiceAsyncStub

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

SESSION_A = "aaaaaaaa-0000-4000-8000-000000000001"
SESSION_B = "bbbbbbbb-0000-4000-8000-000000000002"
AGENT = "claude-code"
WAIT_S = 20.0


class ScriptedError(StandfastError):
    """What a script answers with."""

    def __init__(self, code: grpc.StatusCode, reason: str, metadata: dict[str, object] | None = None) -> None:
        super().__init__(f"scripted: {reason}", metadata)
        self.code = code
        self.reason = reason


def locator(session_id: str = SESSION_A) -> types_pb2.NativeLocator:
    return types_pb2.NativeLocator(
        agent=AGENT,
        native_session_id=session_id,
        cwd="/workspace",
        store=f".claude/projects/-workspace/{session_id}.jsonl",
    )


@dataclass
class ManagerScript:
    """What the manager does otherwise than by default. `failures`: by RPC, in order; None lets the call through."""

    failures: dict[str, list[ScriptedError | None]] = field(default_factory=dict)
    grant_session: str | None = None
    settle_session: str | None = None
    saved: bool = True
    verdict: types_pb2.Verdict.ValueType = types_pb2.VERDICT_CONFIRMED
    store_verdict: types_pb2.StoreVerdict.ValueType = types_pb2.STORE_VERDICT_CONFIRMED
    findings: list[types_pb2.Finding] = field(default_factory=list)
    resumes: bool | None = None
    context_state: types_pb2.ContextState.ValueType | None = None
    abandon_outcome: types_pb2.Outcome.ValueType | None = None
    unresolved: sandbox_pb.ManagedTurn | None = None
    ended: sandbox_pb.ManagedTurn | None = None
    lease_ms: int = 30_000
    admitted_generations: dict[str, int] = field(default_factory=dict)


class FakeManager(sandbox_grpc.SandboxManagerServiceServicer):
    """Remembers what it is asked; by default it lets a conversation go on in SESSION_A."""

    def __init__(self) -> None:
        self.script = ManagerScript()
        self.calls: list[tuple[str, Any]] = []
        self.settled: list[str] = []
        self.conversations: set[str] = set()
        self.resuming: set[str] = set()
        self.settlements: dict[str, sandbox_pb.Settlement] = {}
        self.turns: dict[str, sandbox_pb.ManagedTurn] = {}
        self.host_address = ""
        self.activations = 0
        self.conversation_session = SESSION_A
        self._asked = asyncio.Event()

    def of(self, rpc: str) -> list[Any]:
        return [request for name, request in self.calls if name == rpc]

    async def until_asked(self, rpc: str, times: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while len(self.of(rpc)) < times:
                self._asked.clear()
                await self._asked.wait()

    async def _begin(self, rpc: str, request: Any, context: Context) -> None:
        self.calls.append((rpc, request))
        self._asked.set()
        waiting = self.script.failures.get(rpc)
        if waiting:
            failure = waiting.pop(0)
            if failure is not None:
                await abort(context, failure, failure.code)

    async def ClaimTurn(self, request: sandbox_pb.ClaimTurnRequest, context: Context) -> sandbox_pb.ClaimTurnResponse:
        await self._begin("ClaimTurn", request, context)
        if self.script.ended is not None:
            return sandbox_pb.ClaimTurnResponse(disposition="ENDED", turn=self.script.ended)
        unresolved, self.script.unresolved = self.script.unresolved, None
        turn = self.turns.setdefault(
            request.turn_id,
            sandbox_pb.ManagedTurn(turn_id=request.turn_id, state="CLAIMED", agent=request.agent),
        )
        disposition = "CLAIMED" if turn.state == "CLAIMED" else "RESUME"
        return sandbox_pb.ClaimTurnResponse(
            disposition=disposition, turn=turn, unresolved=unresolved, conversation_known=bool(self.settled)
        )

    async def PrepareTurn(
        self, request: sandbox_pb.PrepareTurnRequest, context: Context
    ) -> sandbox_pb.PrepareTurnResponse:
        await self._begin("PrepareTurn", request, context)
        self.activations += 1
        known = request.conversation.conversation_id in self.conversations
        resumes = known if self.script.resumes is None else self.script.resumes
        generations = types_pb2.Generations(container=1, process=self.activations - 1, activation=self.activations)
        granted = locator(self.script.grant_session or self.conversation_session)
        message_id = f"11111111-0000-4000-8000-{self.activations:012d}"
        turn = self.turns[request.turn_id]
        turn.state = "PREPARED"
        turn.activation_id = f"act-{self.activations}"
        turn.host_address = self.host_address
        turn.message_id = message_id
        turn.locator.CopyFrom(granted)
        turn.generations.CopyFrom(generations)
        if resumes:
            self.resuming.add(turn.activation_id)
        return sandbox_pb.PrepareTurnResponse(
            activation_id=turn.activation_id,
            group_id="group-1",
            member_id="member-1",
            container_id="container-1",
            host_address=self.host_address,
            host_id="host-1",
            generations=generations,
            locator=granted,
            resumes=resumes,
            message_id=message_id,
            activation_token=turn.activation_id,
            lease_ms=self.script.lease_ms,
        )

    async def AdmitTurn(self, request: sandbox_pb.AdmitTurnRequest, context: Context) -> sandbox_pb.AdmitTurnResponse:
        await self._begin("AdmitTurn", request, context)
        state = self.script.context_state
        if state is None:
            was_new = request.report_jws == "report-new"
            resumed = (
                types_pb2.CONTEXT_STATE_RESTORED
                if request.activation_id in self.resuming
                else types_pb2.CONTEXT_STATE_NEW
            )
            state = resumed if was_new else types_pb2.CONTEXT_STATE_LIVE
        for turn in self.turns.values():
            if turn.activation_id == request.activation_id:
                turn.state = "ADMITTED"
        number = int(request.activation_id.removeprefix("act-"))
        return sandbox_pb.AdmitTurnResponse(
            admission_jws="admission",
            context_state=state,
            context_reason="SCRIPTED",
            generations=types_pb2.Generations(
                **({"container": 1, "process": number, "activation": number} | self.script.admitted_generations)
            ),
        )

    async def RenewActivation(
        self, request: sandbox_pb.RenewActivationRequest, context: Context
    ) -> sandbox_pb.RenewActivationResponse:
        await self._begin("RenewActivation", request, context)
        return sandbox_pb.RenewActivationResponse(lease_ms=self.script.lease_ms)

    async def SettleTurn(
        self, request: sandbox_pb.SettleTurnRequest, context: Context
    ) -> sandbox_pb.SettleTurnResponse:
        await self._begin("SettleTurn", request, context)
        script = self.script
        known = self.settlements.get(request.request_id)
        if known is not None:
            return sandbox_pb.SettleTurnResponse(settlement=known)
        claim_holds = request.claim.verdict == types_pb2.VERDICT_CONFIRMED
        saved = script.saved and claim_holds
        failed = request.claim.failed or not saved
        settlement = sandbox_pb.Settlement(
            saved=saved,
            outcome=types_pb2.OUTCOME_FAILED if failed else types_pb2.OUTCOME_COMPLETED,
            manager_verdict=script.verdict,
            store_verdict=script.store_verdict,
            runner_verdict=request.claim.verdict,
            findings=script.findings,
            process_disposition=types_pb2.PROCESS_DISPOSITION_KEPT,
            process_reason="SCRIPTED",
            locator=locator(script.settle_session or self.conversation_session) if saved else None,
            container_id="container-1",
            end_evidence_digest="digest",
            end_reason="completed",
        )
        self.settlements[request.request_id] = settlement
        self.turns[request.turn_id].state = "SETTLED"
        if saved:
            self.settled.append(request.turn_id)
            self.conversations.add(request.conversation.conversation_id)
        return sandbox_pb.SettleTurnResponse(settlement=settlement)

    async def AbandonTurn(
        self, request: sandbox_pb.AbandonTurnRequest, context: Context
    ) -> sandbox_pb.AbandonTurnResponse:
        await self._begin("AbandonTurn", request, context)
        turn = self.turns.get(request.turn_id)
        if turn is None:
            turn = sandbox_pb.ManagedTurn(turn_id=request.turn_id)
        turn.state = "ABANDONED"
        turn.outcome = request.outcome if self.script.abandon_outcome is None else self.script.abandon_outcome
        return sandbox_pb.AbandonTurnResponse(turn=turn)

    async def LookupTurn(
        self, request: sandbox_pb.LookupTurnRequest, context: Context
    ) -> sandbox_pb.LookupTurnResponse:
        await self._begin("LookupTurn", request, context)
        return sandbox_pb.LookupTurnResponse(turn=self.turns[request.turn_id])

    def _known(self) -> sandbox_pb.ManagedConversation:
        return sandbox_pb.ManagedConversation(
            conversation=types_pb2.ConversationKey(tenant="local", conversation_id="c1"),
            agent=AGENT,
            group_id="group-1",
            group_state="RUNNING",
            settled_turns=len(self.settled),
            locator=locator(self.conversation_session) if self.settled else None,
        )

    async def GetConversation(
        self, request: sandbox_pb.GetConversationRequest, context: Context
    ) -> sandbox_pb.GetConversationResponse:
        await self._begin("GetConversation", request, context)
        return sandbox_pb.GetConversationResponse(conversation=self._known())

    async def ListConversations(
        self, request: sandbox_pb.ListConversationsRequest, context: Context
    ) -> sandbox_pb.ListConversationsResponse:
        await self._begin("ListConversations", request, context)
        return sandbox_pb.ListConversationsResponse(conversations=[self._known()])

    async def StopConversation(
        self, request: sandbox_pb.StopConversationRequest, context: Context
    ) -> sandbox_pb.StopConversationResponse:
        await self._begin("StopConversation", request, context)
        return sandbox_pb.StopConversationResponse(conversation=self._known())

    async def RemoveConversation(
        self, request: sandbox_pb.RemoveConversationRequest, context: Context
    ) -> sandbox_pb.RemoveConversationResponse:
        await self._begin("RemoveConversation", request, context)
        return sandbox_pb.RemoveConversationResponse()

    async def ForkConversation(
        self, request: sandbox_pb.ForkConversationRequest, context: Context
    ) -> sandbox_pb.ForkConversationResponse:
        raise AssertionError("the runner asks for no fork")

    async def SetAgreements(
        self, request: sandbox_pb.SetAgreementsRequest, context: Context
    ) -> sandbox_pb.SetAgreementsResponse:
        raise AssertionError("the runner sets no agreements")

    async def GetBuildInfo(
        self, request: sandbox_pb.GetBuildInfoRequest, context: Context
    ) -> sandbox_pb.GetBuildInfoResponse:
        await self._begin("GetBuildInfo", request, context)
        return sandbox_pb.GetBuildInfoResponse(build=types_pb2.BuildInfo(component="manager"))


class Cli:
    """What a script of the host agent's side can do with one attached runner."""

    def __init__(self, context: Context | None, activation_id: str) -> None:
        """Without a context it only makes frames, for a tap that nobody is attached to."""
        self._context = context
        self.activation_id = activation_id
        self.offset = 0
        self.printed = bytearray()
        self.frames: list[dict[str, Any]] = []
        self.interrupts: list[str] = []
        self.message_id = ""
        self._pieces = bytearray()
        self.session = SESSION_A

    @property
    def context(self) -> Context:
        assert self._context is not None, "nobody is attached"
        return self._context

    async def read(self) -> host_pb.AttachRequest | None:
        request = await self.context.read()
        if request is grpc.aio.EOF:
            return None
        assert isinstance(request, host_pb.AttachRequest)
        if request.WhichOneof("body") == "frame":
            self._pieces += request.frame
            if not self._pieces.endswith(b"\n"):
                return request
            frame = json.loads(self._pieces)
            self._pieces.clear()
            self.frames.append(frame)
            if frame["type"] == "user":
                self.message_id = frame["uuid"]
        elif request.WhichOneof("body") == "interrupt":
            self.interrupts.append(request.interrupt.cause)
        return request

    async def read_frame(self) -> dict[str, Any]:
        """The next frame for the CLI; what else the runner says on the way is passed over."""
        before = len(self.frames)
        while len(self.frames) == before:
            assert await self.read() is not None, "the runner left"
        return self.frames[-1]

    async def ready(self, *, is_new: bool, session: str | None = None, tap_offset: int = 0) -> None:
        self.offset = tap_offset
        ready = host_pb.AttachReady(
            process_generation=1,
            process_is_new=is_new,
            tap_offset=tap_offset,
            native_session_id=session or self.session,
        )
        await self.context.write(host_pb.AttachResponse(ready=ready))

    async def print_lines(self, *lines: dict[str, Any], cut_every: int | None = None) -> None:
        data = b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in lines)
        await self.print_bytes(data, cut_every=cut_every)

    async def print_bytes(self, data: bytes, *, cut_every: int | None = None) -> None:
        step = cut_every or len(data)
        for start in range(0, len(data), step):
            piece = data[start : start + step]
            output = host_pb.AttachOutput(offset=self.offset, data=piece)
            self.offset += len(piece)
            self.printed += piece
            await self.context.write(host_pb.AttachResponse(output=output))

    async def report(self, *, is_new: bool) -> None:
        await self.context.write(host_pb.AttachResponse(report_jws="report-new" if is_new else "report-live"))

    async def forwarded(self) -> None:
        await self.context.write(host_pb.AttachResponse(forwarded=host_pb.AttachForwarded(tap_offset=self.offset)))

    async def observed(self, *, native_end_seen: bool = True) -> None:
        observed = host_pb.AttachObserved(
            observation_digest="digest",
            native_end_seen=native_end_seen,
            disposition=types_pb2.PROCESS_DISPOSITION_KEPT,
            disposition_reason="SCRIPTED",
        )
        await self.context.write(host_pb.AttachResponse(observed=observed))

    # --- the ordinary course ------------------------------------------------------------------------------------------
    async def activate(self, *, is_new: bool = True) -> None:
        """Ready, handshake, report."""
        await self.ready(is_new=is_new)
        if is_new:
            frame = await self.read_frame()
            await self.print_lines(
                {
                    "type": "control_response",
                    "response": {"subtype": "success", "request_id": frame["request_id"], "response": {"pid": 7}},
                }
            )
        await self.report(is_new=is_new)

    async def take_message(self) -> None:
        """Admission and user frame, forwarded."""
        while not self.message_id:
            assert await self.read() is not None, "the runner left before its message"
        await self.forwarded()

    def lifecycle(self, state: str) -> dict[str, Any]:
        return {
            "type": "command_lifecycle",
            "command_uuid": self.message_id,
            "state": state,
            "session_id": self.session,
        }

    def init(self, session: str | None = None) -> dict[str, Any]:
        return {"type": "system", "subtype": "init", "session_id": session or self.session, "cwd": "/workspace"}

    def assistant(self, text: str, session: str | None = None) -> dict[str, Any]:
        return {
            "type": "assistant",
            "message": {"id": "msg_1", "role": "assistant", "content": [{"type": "text", "text": text}]},
            "parent_tool_use_id": None,
            "session_id": session or self.session,
            "uuid": "a1",
        }

    def result(self, *, is_error: bool = False, session: str | None = None, **more: Any) -> dict[str, Any]:
        return {
            "type": "result",
            "subtype": "success",
            "is_error": is_error,
            "result": "API Error: 403" if is_error else "plum",
            "terminal_reason": "api_error" if is_error else "completed",
            "session_id": session or self.session,
        } | more

    async def begin(self) -> None:
        await self.print_lines(self.lifecycle("queued"), self.lifecycle("started"), self.init())

    async def answer(self, text: str = "plum", *, is_error: bool = False) -> None:
        """A whole native turn after the message, and the observation."""
        await self.begin()
        if not is_error:
            await self.print_lines(self.assistant(text))
        more: dict[str, Any] = {"api_error_status": 403} if is_error else {}
        await self.print_lines(
            self.result(is_error=is_error, **more), self.lifecycle("cancelled" if is_error else "completed")
        )
        await self.observed()


Script = Callable[[Cli], Awaitable[None]]


async def ordinary_turn(cli: Cli) -> None:
    """A new process that answers "plum"."""
    await cli.activate()
    await cli.take_message()
    await cli.answer()


class FakeHost(host_grpc.HostAgentServiceServicer):
    """Plays one script for each Attach, in order; the last one again and again."""

    def __init__(self) -> None:
        self.scripts: list[Script] = [ordinary_turn]
        self.clis: list[Cli] = []
        self.ended: asyncio.Queue[str] = asyncio.Queue(100)
        self.taps: dict[str, bytes] = {}
        self.tap_failures: list[ScriptedError] = []

    # The stub's type knows handlers that yield; this one writes, so that a script can.
    async def Attach(self, request_iterator: Any, context: Context) -> Any:  # type: ignore[override]  # see above
        opening = await context.read()
        cli = Cli(context, opening.open.activation_token)
        self.clis.append(cli)
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        try:
            await script(cli)
        except ScriptedError as error:
            await abort(context, error, error.code)
        finally:
            self.taps.setdefault(cli.activation_id, bytes(cli.printed))
            self.ended.put_nowait(cli.activation_id)

    async def ReadTap(
        self, request: host_pb.ReadTapRequest, context: Context
    ) -> AsyncIterator[host_pb.ReadTapResponse]:
        if self.tap_failures:
            failure = self.tap_failures.pop(0)
            await abort(context, failure, failure.code)
        tap = self.taps.get(request.activation_id)
        if tap is None:
            failure = ScriptedError(grpc.StatusCode.NOT_FOUND, "ACTIVATION_UNKNOWN")
            await abort(context, failure, failure.code)
        for start in range(0, len(tap), 100):
            yield host_pb.ReadTapResponse(offset=start, data=tap[start : start + 100])

    async def _unused(self, request: Any, context: Context) -> Any:
        raise AssertionError("a runner does not call this")

    EnsureSandbox = _unused
    InspectSandbox = _unused
    StopSandbox = _unused
    RemoveSandbox = _unused
    ReadStore = _unused
    ListJournal = _unused
    Measure = _unused
    Probe = _unused
    GetBuildInfo = _unused


@dataclass
class Told:
    """What one StartTurn or WatchTurn said, and how it ended. `error` None: with OK."""

    events: list[pb.TurnEvent] = field(default_factory=list)
    error: Any = None
    resume: pb.Resume.ValueType = pb.RESUME_UNSPECIFIED

    @property
    def kinds(self) -> list[str]:
        return [str(event.WhichOneof("body")) for event in self.events]

    @property
    def turn(self) -> pb.Turn:
        """Of the last event."""
        assert self.events, f"no event; the stream ended with {self.error}"
        assert self.events[-1].WhichOneof("body") == "settled", f"{self.kinds}, then {self.error}"
        return self.events[-1].settled.turn

    @property
    def outcome(self) -> str:
        return types_pb2.Outcome.Name(self.turn.outcome).removeprefix("OUTCOME_")

    @property
    def texts(self) -> list[str]:
        return [event.assistant_message.text for event in self.events if event.HasField("assistant_message")]


class House:
    """The three processes' places, in one event loop."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.manager = FakeManager()
        self.host = FakeHost()
        self.runner: Runner
        self.stub: RunnerServiceAsyncStub
        self.settings: dict[str, Any] = {}
        self.policy = RunnerPolicy()
        self.tracing: Tracing | None = None
        self._stack = AsyncExitStack()
        self._runner_stack = AsyncExitStack()
        self._manager_server: grpc.aio.Server | None = None
        self.manager_port = 0

    async def open(self) -> None:
        host_server = grpc.aio.server()
        host_grpc.add_HostAgentServiceServicer_to_server(self.host, host_server)
        host_port = host_server.add_insecure_port("127.0.0.1:0")
        await host_server.start()
        self._stack.push_async_callback(host_server.stop, 0)
        self.manager.host_address = f"127.0.0.1:{host_port}"
        await self.start_manager()
        await self.start_runner()

    async def close(self) -> None:
        await self.stop_runner()
        await self.stop_manager()
        await self._stack.aclose()

    async def start_manager(self) -> None:
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        sandbox_grpc.add_SandboxManagerServiceServicer_to_server(self.manager, server)
        self.manager_port = server.add_insecure_port(f"127.0.0.1:{self.manager_port}")
        await server.start()
        self._manager_server = server

    async def stop_manager(self) -> None:
        if self._manager_server is not None:
            await self._manager_server.stop(0)
            self._manager_server = None

    async def start_runner(self) -> None:
        settings = RunnerSettings(
            state=self.state,
            manager=f"127.0.0.1:{self.manager_port}",
            listen="127.0.0.1:0",
            stop_grace_s=0.0,
            **self.settings,
        )
        self.runner = await self._runner_stack.enter_async_context(Runner(settings, self.policy, tracing=self.tracing))
        # Outlives the runner: a client sees how its calls end.
        channel = await self._stack.enter_async_context(grpc.aio.insecure_channel(self.runner.address))
        self.stub = RunnerServiceStub(channel)

    async def stop_runner(self) -> None:
        await self._runner_stack.aclose()
        self._runner_stack = AsyncExitStack()

    async def restart_runner(self) -> None:
        await self.stop_runner()
        await self.start_runner()

    # --- a client's calls -----------------------------------------------------------------------------------------------
    def request(self, turn_id: str, message: str = "what was the word?", **more: Any) -> pb.StartTurnRequest:
        return pb.StartTurnRequest(
            conversation=types_pb2.ConversationKey(conversation_id=more.pop("conversation_id", "c1")),
            turn_id=turn_id,
            message=message,
            **({"agent": AGENT} | more),
        )

    async def turn(self, turn_id: str, message: str = "what was the word?", **more: Any) -> Told:
        return await self.follow(self.stub.StartTurn(self.request(turn_id, message, **more), timeout=WAIT_S))

    async def watch(self, turn_id: str, after: int = 0, **more: Any) -> Told:
        request = pb.WatchTurnRequest(
            conversation=types_pb2.ConversationKey(conversation_id="c1"), turn_id=turn_id, after_sequence=after, **more
        )
        return await self.follow(self.stub.WatchTurn(request, timeout=WAIT_S))

    async def follow(self, call: Any) -> Told:
        told = Told()
        try:
            with remote_errors():
                async for message in call:
                    if isinstance(message, pb.WatchTurnResponse) and message.resume:
                        told.resume = message.resume
                        continue
                    told.events.append(message.event)
        except StandfastError as error:
            told.error = error
        return told

    async def get(self, turn_id: str) -> pb.Turn:
        request = pb.GetTurnRequest(conversation=types_pb2.ConversationKey(conversation_id="c1"), turn_id=turn_id)
        with remote_errors():
            answer = await self.stub.GetTurn(request, timeout=WAIT_S)
        return answer.turn

    async def cancel(self, turn_id: str) -> pb.Turn:
        request = pb.CancelTurnRequest(conversation=types_pb2.ConversationKey(conversation_id="c1"), turn_id=turn_id)
        with remote_errors():
            answer = await self.stub.CancelTurn(request, timeout=WAIT_S)
        return answer.turn

    async def conversation(self) -> pb.Conversation:
        request = pb.GetConversationRequest(conversation=types_pb2.ConversationKey(conversation_id="c1"))
        with remote_errors():
            answer = await self.stub.GetConversation(request, timeout=WAIT_S)
        return answer.conversation

    async def until_sequence(self, turn_id: str, sequence: int) -> None:
        """Waits until that many events are recorded."""
        key = types_pb2.ConversationKey(conversation_id="c1")
        call = self.stub.WatchTurn(pb.WatchTurnRequest(conversation=key, turn_id=turn_id), timeout=WAIT_S)
        async for message in call:
            if message.event.sequence >= sequence:
                call.cancel()
                return

    async def until_state(self, turn_id: str, *states: str) -> pb.Turn:
        """Waits until the turn is in one of the states."""
        async with asyncio.timeout(WAIT_S):
            while True:
                with_error = None
                try:
                    turn = await self.get(turn_id)
                    if turn.state in states:
                        return turn
                except StandfastError as error:
                    with_error = error
                if with_error is not None and with_error.reason != "TURN_UNKNOWN":
                    raise with_error
                await asyncio.sleep(0.01)


@asynccontextmanager
async def house_in(
    state: Path,
    *,
    policy: RunnerPolicy | None = None,
    tracing: Tracing | None = None,
    settings: dict[str, Any] | None = None,
) -> AsyncIterator[House]:
    house = House(state)
    house.settings = settings or {}
    house.policy = policy or RunnerPolicy()
    house.tracing = tracing
    try:
        await house.open()
        yield house
    finally:
        await house.close()
