"""A scripted host agent: a real grpc.aio server with HostAgentService, whose engine, sandboxes, CLIs and journal are plain data.

    async with FakeHost(manager_address, manifest) as host:
        await host.register()
        ... let a manager prepare a turn ...
        report = host.report(token)              # what the handshake gave, signed
        host.play(token, admission_jws)          # the turn runs to its native end: store grows, observation is journalled

Everything that a test may want to be otherwise is an attribute or an argument. What it signs is what a real host agent signs.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import grpc

from sandbox_manager.agents.registry import AGENTS
from sandbox_manager.core import codec
from sandbox_manager.core.values import (
    ActivationReport,
    AssistantText,
    Census,
    ContainerFacts,
    Generations,
    NativeEnd,
    NativeLocator,
    Observation,
    ProcessDisposition,
    RelayFindings,
    SlotProcess,
    StoreReading,
    TapFindings,
)
from standfast.host.v1 import host_agent_pb2 as pb
from standfast.host.v1 import host_agent_pb2_grpc, host_registry_pb2, host_registry_pb2_grpc
from standfast_chassis.errors import StandfastError
from standfast_chassis.grpc_server import GrpcServer
from standfast_chassis.keys import PublicKey, SigningKey, TokenKind, verify_claims
from standfast_chassis.rpc_status import remote_errors
from standfast_chassis.tracing import Tracing

AGENT = "claude-code"
VERSION = AGENTS[AGENT].version
RELEASE = "a" * 40


class HostSaysError(StandfastError):
    """An error that the host answers with."""

    def __init__(self, reason: str, message: str = "scripted") -> None:
        super().__init__(message)
        self.reason = reason


CODES = {
    "CONTAINER_GONE": grpc.StatusCode.FAILED_PRECONDITION,
    "IMAGE_MISSING": grpc.StatusCode.FAILED_PRECONDITION,
    "STORAGE_FULL": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "ENGINE_UNAVAILABLE": grpc.StatusCode.UNAVAILABLE,
    "SUPERVISOR_UNAVAILABLE": grpc.StatusCode.UNAVAILABLE,
    "SLOT_BUSY": grpc.StatusCode.ABORTED,
    "CAPABILITY_NOT_BUILT": grpc.StatusCode.UNIMPLEMENTED,
}


def manifest(**changes: object) -> dict[str, Any]:
    """A release manifest of the fake host's image."""
    made: dict[str, Any] = {
        "release_sha": RELEASE,
        "protocol_version": 1,
        "image_id": "sha256:image-1",
        "accepted_image_ids": ["sha256:image-1", "sha256:image-0"],
        "supervisor": {"version": "1", "digest": "sha256:supervisor"},
        "agents": {AGENT: {"version": VERSION, "digest": "sha256:claude"}},
    }
    return made | changes


@dataclass
class FakeContainer:
    """One container with its stores, by path below the member's home."""

    container_id: str
    group_id: str
    generation: int
    conversation: str
    nonce: str
    image_id: str
    state: str = "running"
    starts: int = 1
    finished_at: str | None = None
    exit_code: int | None = None
    stores: dict[str, bytes] = field(default_factory=dict)
    process: SlotProcess | None = None
    process_generation: int = 0

    @property
    def started_at(self) -> str:
        return f"2026-01-01T00:00:{self.starts:02d}Z"

    @property
    def facts(self) -> ContainerFacts:
        return ContainerFacts(self.container_id, self.image_id, self.nonce, self.started_at)


@dataclass
class FakeEntry:
    """One activation in the journal."""

    state: str
    observation: Observation | None = None
    forwarded: bool = False


class FakeHost(host_agent_pb2_grpc.HostAgentServiceServicer):
    """The host agent. `calls` lists the names of the RPCs it was asked, in order."""

    def __init__(
        self,
        manager_address: str,
        *,
        host_id: str = "host-1",
        image_id: str = "sha256:image-1",
        release_sha: str = RELEASE,
        tracing: Tracing | None = None,
    ) -> None:
        self.manager_address = manager_address
        self.host_id = host_id
        self.image_id = image_id
        self.release_sha = release_sha
        self.tracing = tracing
        self.key = SigningKey.generate()
        self.manager_key: PublicKey | None = None
        self.containers: dict[str, FakeContainer] = {}
        self.journal: dict[str, FakeEntry] = {}
        self.calls: list[str] = []
        self.failing: dict[str, HostSaysError] = {}
        self.on_call: Callable[[str], None] | None = None
        self.measurings = 0  # how often it was asked for what a start measured
        self.measures_beside_the_start = False  # a start is answered before it is measured, as a real host agent does
        self.measured: dict[str, Any] | None = {
            "supervisor": {"version": "1", "digest": "sha256:supervisor"},
            "agents": {AGENT: {"version": VERSION, "digest": "sha256:claude"}},
        }
        self.orderly = True
        self.store_container_id: str | None = (
            None  # what a store reading says it is of; None: the container that was asked
        )
        self.lease_generation = 0
        self.address = ""
        self._pids = 1000
        self._server: GrpcServer | None = None

    async def __aenter__(self) -> FakeHost:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listens; on the former address when it was stopped before."""
        self._server = GrpcServer(codes=CODES, tracing=self.tracing, stop_grace_s=0)
        host_agent_pb2_grpc.add_HostAgentServiceServicer_to_server(self, self._server.grpc)
        port = self._server.listen(self.address or "127.0.0.1:0")
        self.address = f"127.0.0.1:{port}"
        await self._server.start(["standfast.host.v1.HostAgentService"])

    async def stop(self) -> None:
        """Answers no more."""
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    # --- registration -----------------------------------------------------------------------------------------------

    def evidence(self, **changes: object) -> dict[str, Any]:
        """What it says of itself, without the nonce."""
        made: dict[str, Any] = {
            "host_id": self.host_id,
            "host_key": self.key.public.jwk_text(),
            "engine": "docker",
            "engine_version": "fake",
            "image_id": self.image_id,
            "supervisor": {"version": "1", "digest": "sha256:supervisor"},
            "agents": {AGENT: {"version": VERSION, "digest": "sha256:claude"}},
            "updater": {AGENT: "off"},
            "release_sha": self.release_sha,
            "protocol_version": 1,
            "boot_id": "boot-1",
            "helper": None,
        }
        return made | changes

    async def register(
        self, *, nonce: str | None = None, key: SigningKey | None = None, beats: bool = True, **changes: object
    ) -> None:
        """Attests, and sends a first heartbeat. `changes` to the evidence; None leaves an item out. Raises RemoteError."""
        evidence = {name: value for name, value in self.evidence(**changes).items() if value is not None}
        to_send: asyncio.Queue[host_registry_pb2.AttestHostRequest | None] = asyncio.Queue(4)

        async def requests() -> AsyncIterator[host_registry_pb2.AttestHostRequest]:
            while (one := await to_send.get()) is not None:
                yield one

        await to_send.put(
            host_registry_pb2.AttestHostRequest(
                hello=host_registry_pb2.HostHello(
                    host_id=self.host_id,
                    public_key_jwk=self.key.public.jwk_text(),
                    address=self.address,
                    engine="docker",
                )
            )
        )
        async with grpc.aio.insecure_channel(self.manager_address) as channel:
            stub: host_registry_pb2_grpc.HostRegistryServiceAsyncStub = host_registry_pb2_grpc.HostRegistryServiceStub(
                channel
            )
            call = stub.AttestHost(requests(), timeout=20)
            with remote_errors():
                async for answer in call:
                    if answer.HasField("challenge"):
                        self.manager_key = PublicKey.from_jwk(answer.challenge.manager_public_key_jwk)
                        claims = {**evidence, "nonce": nonce or answer.challenge.nonce}
                        token = (key or self.key).sign(claims, TokenKind.EVIDENCE)
                        await to_send.put(
                            host_registry_pb2.AttestHostRequest(
                                evidence=host_registry_pb2.HostEvidence(evidence_jws=token)
                            )
                        )
                    else:
                        self.lease_generation = answer.accepted.lease_generation
                        await to_send.put(None)
        if beats:
            await self.beat()

    async def beat(self, *, engine_answers: bool = True, lease_generation: int | None = None) -> int:
        """One heartbeat; the lease in milliseconds. Raises RemoteError."""
        request = host_registry_pb2.HeartbeatRequest(
            host_id=self.host_id,
            lease_generation=lease_generation or self.lease_generation,
            engine_answers=engine_answers,
            containers=[
                host_registry_pb2.ContainerSummary(
                    container_id=one.container_id,
                    group_id=one.group_id,
                    container_generation=one.generation,
                    state=one.state,
                    conversation=one.conversation,
                )
                for one in self.containers.values()
            ],
        )
        async with grpc.aio.insecure_channel(self.manager_address) as channel:
            stub: host_registry_pb2_grpc.HostRegistryServiceAsyncStub = host_registry_pb2_grpc.HostRegistryServiceStub(
                channel
            )
            with remote_errors():
                answer = await stub.Heartbeat(request, timeout=10)
        return answer.lease_ms

    # --- what a turn does -------------------------------------------------------------------------------------------

    def grant(self, token: str) -> dict[str, Any]:
        """The grant in an activation token, checked as a host agent checks it."""
        assert self.manager_key is not None
        return verify_claims(token, self.manager_key, TokenKind.ATTACH)

    def report(self, token: str, **changes: Any) -> str:
        """The signed report of an activation; `changes` to its fields."""
        return self.sign_report(replace(self.report_of(token), **changes))

    def sign_report(self, report: ActivationReport, key: SigningKey | None = None) -> str:
        return (key or self.key).sign(codec.encode(report), TokenKind.ACTIVATION_REPORT)

    def report_of(self, token: str) -> ActivationReport:
        """Attaches: takes the kept process when the grant allows it, else starts one; and says what it found."""
        grant = self.grant(token)
        container = self.containers[grant["group_id"]]
        reuse = grant["reuse_process_generation"]
        running = reuse is not None and container.process is not None and container.process_generation == reuse
        if not running:
            self._pids += 1
            container.process = SlotProcess(self._pids, self._pids * 10)
            container.process_generation = grant["next_process_generation"]
        self.journal.setdefault(grant["activation_id"], FakeEntry("OPEN"))
        locator = _locator(grant)
        prefix = grant["store"]["prefix_length"] if grant["store"] else 0
        return ActivationReport(
            activation_id=grant["activation_id"],
            turn_id=grant["turn_id"],
            group_id=grant["group_id"],
            member_id=grant["member_id"],
            generations=self._generations(grant, container),
            container=container.facts,
            agent=AGENT,
            agent_version=VERSION,
            settings_digest=grant["settings_digest"],
            locator=locator,
            process_was_running=running,
            tap_gap=False,
            written_outside=False,
            handshake=None if running else "OK",
            observed_session_id=None,
            store=self.reading(container, locator, prefix) if grant["resumes"] else None,
            process=container.process,
        )

    def play(
        self,
        token: str,
        admission_jws: str,
        message: bytes,
        *,
        reply: str = "a reply",
        is_error: bool = False,
        ends: bool = True,
        keep: bool = True,
        writes_store: bool = True,
        parent: str | None = None,
        **changes: Any,
    ) -> Observation:
        """Runs the admitted turn: the store grows, the observation is journalled. `changes` to the observation's fields.

        `parent`: the native record that the message hangs from; default the newest one.
        """
        assert self.manager_key is not None
        grant = self.grant(token)
        admission = verify_claims(admission_jws, self.manager_key, TokenKind.ADMISSION)
        assert admission["message_digest"] == hashlib.sha256(message).hexdigest()
        container = self.containers[grant["group_id"]]
        locator = _locator(grant)
        message_id = grant["message_id"]
        reply_uuid = str(uuid.uuid5(uuid.NAMESPACE_OID, message_id))
        if writes_store:
            before = container.stores.get(locator.store, b"")
            lines = [_user_line(message_id, parent or _last_uuid(before), locator, message.decode())]
            if ends:
                lines.append(_assistant_line(reply_uuid, message_id, locator, reply))
            container.stores[locator.store] = before + b"".join(lines)
        digest = hashlib.sha256(reply.encode()).hexdigest()
        tap = TapFindings(
            session_ids=(locator.native_session_id,),
            reset_to=None,
            identity_before_output=True,
            handshake=None,
            message_started=True,
            end=NativeEnd(
                is_error=is_error,
                reason="api_error" if is_error else "completed",
                status=403 if is_error else None,
                tap_offset=1000,
                evidence_digest="e" * 64,
            )
            if ends
            else None,
            assistant=(AssistantText(reply_uuid, digest),) if ends else (),
            retry_seen=False,
            background_pending=False,
            lifecycle_closed=True,
            noise_lines=0,
            open_requests=(),
            agent_version=VERSION,
            printed=(reply_uuid,) if ends else (),
        )
        kept = keep and ends
        assert container.process is not None
        observation = Observation(
            activation_id=grant["activation_id"],
            turn_id=grant["turn_id"],
            group_id=grant["group_id"],
            member_id=grant["member_id"],
            generations=self._generations(grant, container),
            container=container.facts,
            locator=locator,
            message_id=message_id,
            message_digest=admission["message_digest"],
            message_length=admission["message_length"],
            forwarded=True,
            process_was_new=grant["reuse_process_generation"] is None,
            process_alive=kept,
            exit_code=None if kept else 0,
            tap_from=0,
            tap_to=1000,
            tap_gap=False,
            tap=tap,
            store=self.reading(container, locator, grant["store"]["prefix_length"] if grant["store"] else 0),
            census=Census(True, (container.process,) if kept else (), 0, (), 0),
            relay=RelayFindings(1, (digest,), False, (200,)),
            disposition=ProcessDisposition.KEPT if kept else ProcessDisposition.RETIRED,
            disposition_reason="ALL_IN_ORDER" if kept else "AGENT_RULE",
            interrupted_by=None if ends else "ATTACH_LOST",
        )
        observation = replace(observation, **changes)
        if not kept:
            container.process = None
        self.journal[grant["activation_id"]] = FakeEntry("OBSERVED", observation, forwarded=True)
        return observation

    def never_forwarded(self, token: str) -> None:
        """The activation is over and nothing was sent."""
        grant = self.grant(token)
        container = self.containers[grant["group_id"]]
        assert container.process is not None
        observation = dataclasses.replace(
            _empty_observation(grant, self._generations(grant, container), container.facts),
        )
        self.journal[grant["activation_id"]] = FakeEntry("NEVER_FORWARDED", observation)

    def reading(self, container: FakeContainer, locator: NativeLocator, prefix_length: int) -> StoreReading:
        """A store as the supervisor reads it, parsed by the agent's own file."""
        data = container.stores.get(locator.store)
        if data is None:
            return StoreReading("ABSENT", None, None, prefix_length, None, None)
        prefix = hashlib.sha256(data[:prefix_length]).hexdigest() if len(data) >= prefix_length else None
        segment = AGENTS[AGENT].read_segment(data[prefix_length:], from_start=prefix_length == 0)
        return StoreReading(None, len(data), hashlib.sha256(data).hexdigest(), prefix_length, prefix, segment)

    def container_of(self, conversation_id: str) -> FakeContainer:
        """The container with a conversation's label."""
        return next(one for one in self.containers.values() if one.conversation == f"local/{conversation_id}")

    def _generations(self, grant: dict[str, Any], container: FakeContainer) -> Generations:
        return Generations(grant["container_generation"], container.process_generation, grant["activation_generation"])

    # --- the service ------------------------------------------------------------------------------------------------

    def _asked(self, name: str) -> None:
        self.calls.append(name)
        if self.on_call is not None:
            self.on_call(name)
        if name in self.failing:
            raise self.failing[name]

    async def EnsureSandbox(self, request: pb.EnsureSandboxRequest, context: Any) -> pb.EnsureSandboxResponse:
        self._asked("EnsureSandbox")
        container = self.containers.get(request.group_id)
        created = started = False
        if container is None or container.generation != request.container_generation:
            if request.container_id:
                raise HostSaysError("CONTAINER_GONE", "the engine has no container of that id")
            container = FakeContainer(
                container_id=f"c-{request.group_id}-{request.container_generation}",
                group_id=request.group_id,
                generation=request.container_generation,
                conversation=request.conversation,
                nonce=request.nonce,
                image_id=self.image_id,
            )
            self.containers[request.group_id] = container
            created = True
        elif container.state != "running":
            container.state, container.starts, started = "running", container.starts + 1, True
            container.process = None
        statement = self._statement(container) | {
            "created_now": created,
            "started_now": started,
            "measured": None if self.measures_beside_the_start and (created or started) else self.measured,
            "workspace": "/workspace",
        }
        return pb.EnsureSandboxResponse(sandbox_jws=self.key.sign(statement, TokenKind.SANDBOX))

    async def InspectSandbox(self, request: pb.InspectSandboxRequest, context: Any) -> pb.InspectSandboxResponse:
        self._asked("InspectSandbox")
        self.measurings += request.with_measured
        measured = self.measured if request.with_measured else None
        return pb.InspectSandboxResponse(inspect_jws=self._inspect(request.group_id, None, measured))

    async def StopSandbox(self, request: pb.StopSandboxRequest, context: Any) -> pb.StopSandboxResponse:
        self._asked("StopSandbox")
        container = self.containers.get(request.group_id)
        if container is not None and container.state == "running":
            container.state, container.exit_code, container.process = "exited", 0, None
            container.finished_at = f"2026-01-01T01:00:{container.starts:02d}Z"
        return pb.StopSandboxResponse(inspect_jws=self._inspect(request.group_id, self.orderly))

    async def RemoveSandbox(self, request: pb.RemoveSandboxRequest, context: Any) -> pb.RemoveSandboxResponse:
        self._asked("RemoveSandbox")
        self.containers.pop(request.group_id, None)
        return pb.RemoveSandboxResponse()

    async def ReadStore(self, request: pb.ReadStoreRequest, context: Any) -> pb.ReadStoreResponse:
        self._asked("ReadStore")
        container = self.containers.get(request.group_id)
        if container is None or container.state != "running":
            raise HostSaysError("SUPERVISOR_UNAVAILABLE")
        found = request.locator
        locator = NativeLocator(found.agent, found.native_session_id, found.cwd, found.store)
        statement: dict[str, Any] = {
            "container_id": self.store_container_id or container.container_id,
            "container_generation": container.generation,
            "slot": request.slot,
            "reading": codec.to_json(self.reading(container, locator, request.prefix_length)),
        }
        return pb.ReadStoreResponse(reading_jws=self.key.sign(statement, TokenKind.STORE_READING))

    async def ListJournal(self, request: pb.ListJournalRequest, context: Any) -> pb.ListJournalResponse:
        self._asked("ListJournal")
        answer = pb.ListJournalResponse()
        for activation_id in request.activation_ids:
            entry = self.journal.get(activation_id)
            if entry is None:
                continue
            observation = entry.observation
            answer.entries.append(
                pb.JournalEntry(
                    activation_id=activation_id,
                    state=entry.state,
                    observation_jws=self.key.sign(codec.encode(observation), TokenKind.OBSERVATION)
                    if observation is not None
                    else "",
                    forwarded=entry.forwarded,
                    native_end_seen=observation is not None and observation.tap.end is not None,
                )
            )
        return answer

    async def Attach(self, request_iterator: Any, context: Any) -> AsyncIterator[pb.AttachResponse]:
        raise HostSaysError("CAPABILITY_NOT_BUILT")
        yield pb.AttachResponse()

    async def ReadTap(self, request: pb.ReadTapRequest, context: Any) -> AsyncIterator[pb.ReadTapResponse]:
        raise HostSaysError("CAPABILITY_NOT_BUILT")
        yield pb.ReadTapResponse()

    async def Measure(self, request: pb.MeasureRequest, context: Any) -> pb.MeasureResponse:
        raise HostSaysError("CAPABILITY_NOT_BUILT")

    async def Probe(self, request: pb.ProbeRequest, context: Any) -> pb.ProbeResponse:
        raise HostSaysError("CAPABILITY_NOT_BUILT")

    async def GetBuildInfo(self, request: pb.GetBuildInfoRequest, context: Any) -> pb.GetBuildInfoResponse:
        raise HostSaysError("CAPABILITY_NOT_BUILT")

    def _statement(self, container: FakeContainer) -> dict[str, Any]:
        return {
            "state": container.state,
            "container_id": container.container_id,
            "image_id": container.image_id,
            "nonce": container.nonce,
            "started_at": container.started_at,
            "finished_at": container.finished_at,
            "exit_code": container.exit_code,
            "oom_killed": False,
            "orderly": None,
        }

    def _inspect(self, group_id: str, orderly: bool | None, measured: dict[str, Any] | None = None) -> str:
        container = self.containers.get(group_id)
        statement: dict[str, Any] = {"state": "absent"}
        if container is not None:
            statement = self._statement(container) | {"orderly": orderly, "measured": measured}
        return self.key.sign(statement, TokenKind.SANDBOX)


def _locator(grant: dict[str, Any]) -> NativeLocator:
    return NativeLocator(**grant["locator"])


def _empty_observation(grant: dict[str, Any], generations: Generations, container: ContainerFacts) -> Observation:
    return Observation(
        activation_id=grant["activation_id"],
        turn_id=grant["turn_id"],
        group_id=grant["group_id"],
        member_id=grant["member_id"],
        generations=generations,
        container=container,
        locator=_locator(grant),
        message_id=grant["message_id"],
        message_digest=None,
        message_length=None,
        forwarded=False,
        process_was_new=True,
        process_alive=False,
        exit_code=None,
        tap_from=0,
        tap_to=0,
        tap_gap=False,
        tap=TapFindings((), None, False, "OK", False, None, (), False, False, False, 0, (), VERSION),
        store=None,
        census=None,
        relay=None,
        disposition=ProcessDisposition.RECLAIM_FIRST,
        disposition_reason="NOT_SENT",
        interrupted_by=None,
    )


def _user_line(message_id: str, parent: str | None, locator: NativeLocator, text: str) -> bytes:
    return _line(
        {
            "parentUuid": parent,
            "isSidechain": False,
            "type": "user",
            "message": {"role": "user", "content": [{"type": "text", "text": text}]},
            "uuid": message_id,
            "sessionId": locator.native_session_id,
            "cwd": locator.cwd,
            "version": VERSION,
        }
    )


def _assistant_line(reply_uuid: str, parent: str, locator: NativeLocator, text: str) -> bytes:
    return _line(
        {
            "parentUuid": parent,
            "isSidechain": False,
            "type": "assistant",
            "message": {
                "role": "assistant",
                "model": "lab",
                "content": [{"type": "text", "text": text}],
            },
            "uuid": reply_uuid,
            "sessionId": locator.native_session_id,
            "cwd": locator.cwd,
            "version": VERSION,
        }
    )


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


def _last_uuid(data: bytes) -> str | None:
    lines = data.splitlines()
    return json.loads(lines[-1])["uuid"] if lines else None
