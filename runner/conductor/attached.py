"""Reads the stream that carries one activation's work: raw bytes to the driver, facts to the judge, events to the feed.

It decides nothing about the turn: what the machine must know it posts, in order. Content is published here, at once,
so that the machine's pace is never a client's wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import structlog

from runner.adapters.host_client import AttachSession
from runner.adapters.wire import event_to_wire
from runner.conductor.feed import TurnFeed
from runner.conductor.replay import NORMALISED
from runner.conductor.tool_spans import ToolSpans
from runner.core.errors import HostUnavailableError, ReasonedError, cause_of
from runner.core.events import (
    AlreadyDelivered,
    AssistantMessage,
    DriverEvent,
    FrameRead,
    FramesDue,
    HandshakeAnswered,
    HandshakeRefused,
    MessageClosed,
    MessageStarted,
    NativeRequest,
    NativeTurnEnded,
    NoiseLine,
    SessionReset,
    SessionSeen,
)
from runner.core.identity import IdentityJudge
from runner.core.turn import (
    AttachBroke,
    Event,
    Forwarded,
    NativeEnded,
    NativeStarted,
    Observed,
    WillNotEnd,
)
from runner.core.values import Cause
from runner.drivers.port import Opening
from runner.drivers.registry import AgentEntry
from runner.policy import RunnerPolicy
from standfast.host.v1 import host_agent_pb2 as host_pb
from standfast.runner.v1 import runner_pb2
from standfast_chassis.errors import StandfastError
from standfast_chassis.tracing import Tracing

_log = structlog.get_logger("standfast.runner.attached")

# A reason after which the same turn cannot be helped by trying again, although nothing was sent.
_NOT_A_REFUSAL = frozenset({"ACTIVATION_USED"})


@dataclass(frozen=True, slots=True)
class SlotReady:
    """The process runs. Not an event of the machine: the handshake follows."""

    process_is_new: bool
    tap_offset: int
    native_session_id: str
    process_generation: int


@dataclass(frozen=True, slots=True)
class ReportCame:
    """The host agent's signed report, as it came."""

    report_jws: str


Posted = Event | SlotReady | ReportCame | NativeRequest | FramesDue


class AttachedReader:
    """One activation's stream, as far as it is read. `post` must not wait; `run` ends with the stream."""

    def __init__(
        self,
        session: AttachSession,
        agent: AgentEntry,
        *,
        opening: Opening,
        message_id: str,
        policy: RunnerPolicy,
        tracing: Tracing,
        feed: TurnFeed,
        post: Callable[[Posted], None],
        on_text: Callable[[str], None],
    ) -> None:
        self.judge = IdentityJudge(opening.native_session_id, naming=agent.naming_frames, checks=policy.check_identity)
        self.handshake: HandshakeAnswered | None = None
        self.handshake_refused: str | None = None
        self.exited: Cause | None = None
        self.frames_written = False
        self.observed: host_pb.AttachObserved | None = None
        self.last_output_at = asyncio.get_running_loop().time()
        self._session = session
        self._agent = agent
        self._policy = policy
        self._message_id = message_id
        self._opening = opening
        self._driver = agent.make_driver(opening)
        self._tools = ToolSpans(tracing)
        self._feed = feed
        self._post = post
        self._on_text = on_text
        self._next_offset = 0
        self._is_over = False
        self._started = False
        self._named = False
        self._opened = False
        self._requests = 0
        self._asked_for = 0
        self._held_raw: list[bytes] = []

    # --- to the CLI -------------------------------------------------------------------------------------------------
    async def shake_hands(self, ready: SlotReady) -> None:
        """The native start or resume, for a process that is new."""
        for frame in self._driver.handshake_frames(process_is_new=ready.process_is_new):
            await self._session.send_frame(frame)

    async def send_message(self, admission_jws: str, text: str) -> None:
        """The admission and the one user frame."""
        await self._session.send_admission(admission_jws)
        for frame in self._driver.user_frames(text, message_id=self._message_id):
            self.frames_written = True
            rewrite = self._policy.rewrite_user_frame
            await self._session.send_frame(frame if rewrite is None else rewrite(frame))

    async def send_frames(self, frames: tuple[bytes, ...]) -> None:
        """Frames that the driver asked for."""
        for frame in frames:
            await self._session.send_frame(frame)

    async def interrupt(self, cause: str) -> None:
        for frame in self._driver.interrupt_frames():
            await self._session.interrupt(cause, frame)

    async def refuse_request(self, request: NativeRequest) -> None:
        for frame in self._driver.answer_unknown_frames(request.request_id):
            await self._session.send_frame(frame)

    # --- from the host agent ----------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Reads to the stream's end. Posts Observed or AttachBroke, exactly one of them, as the last event."""
        try:
            async for message in self._session.messages():
                await self._take(message)
            cause = self.exited or Cause("ATTACH_LOST", "The host agent ended the stream without an observation.")
            broke = AttachBroke(cause, before_forwarded=not self.frames_written, refused=False)
        except StandfastError as error:
            broke = self._broke(error)
        finally:
            self._tools.close()
        if self.observed is not None:
            self._post(Observed(self.observed.native_end_seen, self.exited))
        else:
            self._post(broke)

    def _broke(self, error: StandfastError) -> AttachBroke:
        """`before_forwarded` is the host agent's promise, or our own knowledge that nothing was handed over."""
        cause = cause_of(error)
        if not isinstance(error, ReasonedError):
            lost = Cause("ATTACH_LOST", f"The stream that carried the work broke. {cause.message}", cause.metadata)
            away = isinstance(error, HostUnavailableError) and not self.frames_written
            return AttachBroke(cause if away else lost, before_forwarded=not self.frames_written, refused=False)
        code = getattr(error, "code", None)
        said = code.name if code is not None else ""
        promised = said in ("UNAVAILABLE", "FAILED_PRECONDITION", "INVALID_ARGUMENT")
        return AttachBroke(
            cause,
            before_forwarded=promised or not self.frames_written,
            refused=said == "FAILED_PRECONDITION" and error.reason not in _NOT_A_REFUSAL,
        )

    async def _take(self, message: host_pb.AttachResponse) -> None:
        match message.WhichOneof("body"):
            case "ready":
                self._take_ready(message.ready)
            case "output":
                await self._take_output(message.output)
            case "report_jws":
                self._post(ReportCame(message.report_jws))
            case "forwarded":
                self._feed.publish(runner_pb2.TurnEvent(forwarded=runner_pb2.MessageForwarded()))
                self._post(Forwarded())
            case "exited":
                self._take_exit(message.exited)
            case "observed":
                self._finish_reading()
                self.observed = message.observed
            case other:
                _log.warning("the host agent sent something that this release does not know", body=str(other))

    def _take_ready(self, ready: host_pb.AttachReady) -> None:
        self._driver = self._agent.make_driver(replace(self._opening, start_offset=ready.tap_offset))
        self._next_offset = ready.tap_offset
        self._post(SlotReady(ready.process_is_new, ready.tap_offset, ready.native_session_id, ready.process_generation))

    async def _take_output(self, output: host_pb.AttachOutput) -> None:
        self.last_output_at = asyncio.get_running_loop().time()
        if output.offset != self._next_offset:
            _log.warning("bytes are missing", expected_offset=self._next_offset, offset=output.offset)
            self.judge.observe_gap()
        self._next_offset = output.offset + len(output.data)
        events = self._driver.feed(output.data)
        foreign = self._foreign(events)
        for event in events:
            self._take_event(event, is_foreign=event.tap_offset in foreign)
        # The CLI is not read faster than its events can be recorded: the stream's flow control does the rest.
        await self._feed.room()

    def _take_exit(self, exited: host_pb.AttachExited) -> None:
        said = exited.stderr_tail.strip()[-400:]
        self.exited = Cause(
            "CLI_DIED",
            f"The CLI process ended with {exited.exit_code}" + (f" and said: {said}" if said else "") + ".",
            (("exit_code", str(exited.exit_code)),),
        )

    def _finish_reading(self) -> None:
        for event in self._driver.end_of_stream():
            self._take_event(event)

    def _foreign(self, events: Sequence[DriverEvent]) -> frozenset[int]:
        """The places of frames that name another session: not even their raw bytes are this conversation's."""
        if not self._policy.check_identity:
            return frozenset()
        return frozenset(
            event.tap_offset
            for event in events
            if isinstance(event.body, SessionReset)
            or (isinstance(event.body, SessionSeen) and event.body.session_id != self.judge.expected)
        )

    def _take_event(self, event: DriverEvent, *, is_foreign: bool = False) -> None:
        body = event.body
        self.judge.observe(body)
        match body:
            case FrameRead() | NoiseLine():
                if not is_foreign:
                    self._take_raw(event.raw)
            case HandshakeAnswered():
                self.handshake = body
            case HandshakeRefused(_, detail):
                self.handshake_refused = detail
            case MessageStarted():
                self._held_raw.clear()
                if not self._started:
                    self._started = True
                    self._post(NativeStarted())
                if self._opened:
                    self._release_raw()
            case SessionSeen(_, source, opens_turn) if opens_turn or source in self._agent.naming_frames:
                self._opened = self._opened or opens_turn
                self._release_raw()
            case FramesDue():
                self._asked_for += 1
                if self._asked_for <= _REQUESTS_MAX:
                    self._post(body)
            case NativeTurnEnded():
                self._is_over = True
                self._post(NativeEnded(body))
            case AlreadyDelivered() if not self._is_over:
                self._is_over = True
                message = "The CLI says that it had this message before, and does not work on it again."
                self._post(WillNotEnd(Cause("NATIVE_ERROR", message)))
            case MessageClosed("cancelled") if not self._started and not self._is_over:
                self._is_over = True
                self._post(WillNotEnd(Cause("NATIVE_ERROR", "The CLI cancelled the message before it began.")))
            case NativeRequest():
                self._publish(body)
                self._requests += 1
                if self._requests <= _REQUESTS_MAX:
                    self._post(body)
            case _ if isinstance(body, NORMALISED):
                self._tools.observe(body)
                self._publish(body)
            case _:
                pass

    def _publish(self, body: object) -> None:
        """Content, unless the session is known to be another one: then it is not this conversation's."""
        if self.judge.contradiction is not None or not isinstance(body, NORMALISED):
            return
        if isinstance(body, AssistantMessage) and body.parent_id is None:
            self._on_text(body.text)
        self._feed.publish(event_to_wire(body), from_driver=True)

    def _take_raw(self, raw: bytes) -> None:
        """Raw frames follow the same rule as what is made of them: none before the session is named."""
        if self._named:
            if self.judge.contradiction is None:
                self._feed.add_raw(raw)
        elif sum(map(len, self._held_raw)) < _HELD_RAW_MAX_BYTES:
            self._held_raw.append(raw)

    def _release_raw(self) -> None:
        if not self._started or self._named or self.judge.contradiction is not None:
            return
        self._named = True
        for raw in self._held_raw:
            self._feed.add_raw(raw)
        self._held_raw.clear()


# A CLI that asks without end shall not fill the turn's mailbox; what is not posted here meets the silence limit.
_REQUESTS_MAX = 64
_HELD_RAW_MAX_BYTES = 256 * 1024
