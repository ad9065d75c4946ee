"""HostAgentService: speaks gRPC, and knows nothing but how requests become calls of the conductors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

import grpc

from sandbox_manager.core import codec
from sandbox_manager.core.values import NativeLocator
from sandbox_manager.host.adapters.engine import Inspect
from sandbox_manager.host.adapters.tap_file import read_chunks
from sandbox_manager.host.conductor.activation_run import ActivationRun
from sandbox_manager.host.conductor.agent import HostAgent
from sandbox_manager.host.conductor.inbound import AdmissionCame, FrameCame, InterruptCame, RunnerLeft
from sandbox_manager.host.conductor.sandboxes import Wish
from sandbox_manager.host.errors import AttachProtocolError, CapabilityNotBuiltError, HostError
from standfast.host.v1 import host_agent_pb2 as pb
from standfast.host.v1 import host_agent_pb2_grpc
from standfast.types.v1 import types_pb2
from standfast_chassis.build_info import build_info
from standfast_chassis.keys import TokenKind
from standfast_chassis.limits import CHUNK_MAX_BYTES, MESSAGE_MAX_BYTES

SERVICE = "standfast.host.v1.HostAgentService"
_FRAME_MAX_BYTES = 6 * MESSAGE_MAX_BYTES + CHUNK_MAX_BYTES  # a control character as \u00XX is six bytes
_CAUSES = ("CANCEL", "TIMEOUT", "UNANSWERED_QUESTION")


class HostAgentService(host_agent_pb2_grpc.HostAgentServiceServicer):
    """The service over one host agent. `open_wait_s`: how long a stream may take to say which activation it is for."""

    def __init__(self, agent: HostAgent, *, open_wait_s: float = 30.0) -> None:
        self._agent = agent
        self._open_wait_s = open_wait_s

    async def Attach(
        self,
        request_iterator: AsyncIterator[pb.AttachRequest],
        context: grpc.aio.ServicerContext[pb.AttachRequest, pb.AttachResponse],
    ) -> AsyncIterator[pb.AttachResponse]:
        first = None
        with suppress(TimeoutError):
            async with asyncio.timeout(self._open_wait_s):
                first = await anext(aiter(request_iterator), None)
        if first is None or not first.HasField("open"):
            raise AttachProtocolError("expected `open` as the first message of Attach.", {"field": "open"})
        run = await self._agent.attach(first.open.activation_token)
        reader = asyncio.get_running_loop().create_task(self._read(run, request_iterator))
        try:
            while (message := await run.outlet.get()) is not None:
                yield message
        finally:
            # Cancelled, past its deadline or cut: all of them arrive here, and all of them end the work, not only the view.
            reader.cancel()
            if run.observation is None:
                await run.outlet.close()
                await asyncio.shield(run.offer(RunnerLeft()))

    async def _read(self, run: ActivationRun, requests: AsyncIterator[pb.AttachRequest]) -> None:
        pieces = bytearray()
        async for request in requests:
            match request.WhichOneof("body"):
                case "admission_jws":
                    try:
                        await run.offer(AdmissionCame(self._agent.admission(request.admission_jws)))
                    except HostError as failure:
                        await run.outlet.finish(failure)
                        await run.offer(RunnerLeft())
                        return
                case "frame":
                    pieces += request.frame
                    is_piece = len(request.frame) == CHUNK_MAX_BYTES and not request.frame.endswith(b"\n")
                    # Beyond what the gate could pass there is nothing to wait for: it says why.
                    if is_piece and len(pieces) < _FRAME_MAX_BYTES:
                        continue
                    await run.offer(FrameCame(bytes(pieces)))
                    pieces.clear()
                case "interrupt":
                    cause = request.interrupt.cause if request.interrupt.cause in _CAUSES else "CANCEL"
                    await run.offer(InterruptCame(cause, request.interrupt.frame))
                case _:
                    await run.outlet.finish(
                        AttachProtocolError("expected `open` only once, at the beginning.", {"field": "open"})
                    )
                    await run.offer(RunnerLeft())
                    return

    async def EnsureSandbox(
        self,
        request: pb.EnsureSandboxRequest,
        context: grpc.aio.ServicerContext[pb.EnsureSandboxRequest, pb.EnsureSandboxResponse],
    ) -> pb.EnsureSandboxResponse:
        tenant, _, conversation_id = request.conversation.partition("/")
        self._agent.require_lease()
        ensured = await self._agent.sandboxes.ensure(
            Wish(
                group_id=request.group_id,
                container_generation=request.container_generation,
                nonce=request.nonce,
                container_id=request.container_id or None,
                tenant=tenant,
                conversation_id=conversation_id,
                image_id=request.image_id or None,
            )
        )
        sandbox = ensured.sandbox
        statement: dict[str, Any] = {
            "state": "running",
            "container_id": sandbox.facts.container_id,
            "image_id": sandbox.facts.image_id,
            "nonce": sandbox.facts.nonce or None,
            "started_at": sandbox.facts.started_at,
            "finished_at": None,
            "exit_code": None,
            "oom_killed": None,
            "orderly": None,
            "created_now": ensured.created_now,
            "started_now": ensured.started_now,
            "workspace": sandbox.hello.workspace,
            "measured": None if ensured.measured is None else dict(ensured.measured),
        }
        return pb.EnsureSandboxResponse(sandbox_jws=self._agent.key.sign(statement, TokenKind.SANDBOX))

    async def InspectSandbox(
        self,
        request: pb.InspectSandboxRequest,
        context: grpc.aio.ServicerContext[pb.InspectSandboxRequest, pb.InspectSandboxResponse],
    ) -> pb.InspectSandboxResponse:
        found = await self._agent.sandboxes.inspect(
            request.group_id, request.container_generation, request.container_id or None
        )
        measured = await self._agent.sandboxes.measured(request.group_id, found) if request.with_measured else None
        return pb.InspectSandboxResponse(inspect_jws=self._inspect_statement(found, None, measured))

    async def StopSandbox(
        self,
        request: pb.StopSandboxRequest,
        context: grpc.aio.ServicerContext[pb.StopSandboxRequest, pb.StopSandboxResponse],
    ) -> pb.StopSandboxResponse:
        await self._agent.journal.require_group(request.group_id, request.container_generation)
        found, orderly = await self._agent.sandboxes.stop(
            request.group_id, request.container_id, force=request.force, interrupt=self._agent.interrupt
        )
        return pb.StopSandboxResponse(inspect_jws=self._inspect_statement(found, orderly))

    async def RemoveSandbox(
        self,
        request: pb.RemoveSandboxRequest,
        context: grpc.aio.ServicerContext[pb.RemoveSandboxRequest, pb.RemoveSandboxResponse],
    ) -> pb.RemoveSandboxResponse:
        await self._agent.journal.require_group(request.group_id, request.container_generation)
        await self._agent.sandboxes.remove(request.group_id, request.container_generation, request.container_id or None)
        return pb.RemoveSandboxResponse()

    async def ReadStore(
        self,
        request: pb.ReadStoreRequest,
        context: grpc.aio.ServicerContext[pb.ReadStoreRequest, pb.ReadStoreResponse],
    ) -> pb.ReadStoreResponse:
        locator = NativeLocator(
            agent=request.locator.agent,
            native_session_id=request.locator.native_session_id,
            cwd=request.locator.cwd,
            store=request.locator.store,
        )
        container_id, reading = await self._agent.read_store(
            request.group_id, request.container_generation, request.slot, locator, request.prefix_length
        )
        statement: dict[str, Any] = {
            "container_id": container_id,
            "container_generation": request.container_generation,
            "slot": request.slot,
            "reading": codec.to_json(reading),
        }
        return pb.ReadStoreResponse(reading_jws=self._agent.key.sign(statement, TokenKind.STORE_READING))

    async def ReadTap(
        self,
        request: pb.ReadTapRequest,
        context: grpc.aio.ServicerContext[pb.ReadTapRequest, pb.ReadTapResponse],
    ) -> AsyncIterator[pb.ReadTapResponse]:
        row = await self._agent.journal.row(request.activation_id)
        path = self._agent.tap_path(request.activation_id)
        chunks = read_chunks(path, row.tap_from or 0, request.from_offset)
        while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
            yield pb.ReadTapResponse(offset=chunk[0], data=chunk[1])

    async def ListJournal(
        self,
        request: pb.ListJournalRequest,
        context: grpc.aio.ServicerContext[pb.ListJournalRequest, pb.ListJournalResponse],
    ) -> pb.ListJournalResponse:
        rows = await self._agent.journal.rows(request.activation_ids)
        return pb.ListJournalResponse(
            entries=[
                pb.JournalEntry(
                    activation_id=row.activation_id,
                    state=row.state,
                    observation_jws=row.observation_jws or "",
                    forwarded=row.was_forwarded and row.state != "NEVER_FORWARDED",
                    native_end_seen=row.native_end_seen,
                )
                for row in rows
            ]
        )

    async def Measure(
        self, request: pb.MeasureRequest, context: grpc.aio.ServicerContext[pb.MeasureRequest, pb.MeasureResponse]
    ) -> pb.MeasureResponse:
        evidence = await self._agent.evidence()
        return pb.MeasureResponse(evidence_jws=self._agent.key.sign(evidence, TokenKind.EVIDENCE))

    async def Probe(
        self, request: pb.ProbeRequest, context: grpc.aio.ServicerContext[pb.ProbeRequest, pb.ProbeResponse]
    ) -> pb.ProbeResponse:
        raise CapabilityNotBuiltError("reverse probe")

    async def GetBuildInfo(
        self,
        request: pb.GetBuildInfoRequest,
        context: grpc.aio.ServicerContext[pb.GetBuildInfoRequest, pb.GetBuildInfoResponse],
    ) -> pb.GetBuildInfoResponse:
        build = build_info()
        return pb.GetBuildInfoResponse(
            build=types_pb2.BuildInfo(
                component="host-agent",
                version=build.version,
                release_sha=build.release_sha or "",
                protocol_version=build.protocol_version,
                key_id=self._agent.key.public.thumbprint,
            )
        )

    def _inspect_statement(
        self, found: Inspect, orderly: bool | None, measured: Mapping[str, Any] | None = None
    ) -> str:
        return self._agent.key.sign(
            {
                "state": found.state.value,
                "container_id": found.container_id or None,
                "image_id": found.image_id or None,
                "nonce": None,
                "started_at": found.started_at,
                "finished_at": found.finished_at,
                "exit_code": found.exit_code,
                "oom_killed": found.oom_killed,
                "orderly": orderly,
                "measured": None if measured is None else dict(measured),
            },
            TokenKind.SANDBOX,
        )
