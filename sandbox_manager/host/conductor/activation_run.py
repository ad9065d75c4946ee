"""Conducts one activation: the machine of `core/activation.py`, the gate, the slot's process, the journal, and the runner's stream.

One task owns all of it; frames from the runner, news of the process and ends of waits come in through one inbox. The work does not
wait for a runner that has left: its messages are dropped, the native turn is interrupted, and how it ended is journalled.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

from sandbox_manager.agents.errors import AgentLocatorError
from sandbox_manager.agents.naming import below_home
from sandbox_manager.agents.port import GateContext, SandboxAgent
from sandbox_manager.core import codec
from sandbox_manager.core.values import (
    ActivationReport,
    Census,
    Observation,
    ProcessDisposition,
    StoreReading,
)
from sandbox_manager.host.adapters.guest_errors import GuestLinkError, GuestOperationError
from sandbox_manager.host.adapters.guest_values import OutputChunk, OutputGap, ProcessExited
from sandbox_manager.host.adapters.journal import Journal
from sandbox_manager.host.conductor.activation_limits import ActivationLimits, HostPolicy
from sandbox_manager.host.conductor.activation_record import ActivationRecord
from sandbox_manager.host.conductor.activation_spans import ActivationSpans
from sandbox_manager.host.conductor.hosted_slot import HostedCli, HostedSlot, LinkLost
from sandbox_manager.host.conductor.inbound import (
    AdmissionCame,
    FrameCame,
    Inbound,
    InterruptCame,
    ProcessReady,
    ReadyFailed,
    RunnerLeft,
    TimeOver,
    WoundUp,
)
from sandbox_manager.host.conductor.launching import program_of
from sandbox_manager.host.conductor.observing import Observer, TurnFacts
from sandbox_manager.host.conductor.outlet import Outlet
from sandbox_manager.host.conductor.sandbox import Sandbox
from sandbox_manager.host.conductor.tap_recording import TapRecording
from sandbox_manager.host.core import activation as machine
from sandbox_manager.host.core.errors import AdmissionConflictError
from sandbox_manager.host.core.gate import Admission, FrameKind, Gate, Passed, Refused, TooLate
from sandbox_manager.host.core.grant import Grant, read_admission
from sandbox_manager.host.errors import (
    CliDiedError,
    GateRefusedError,
    HandshakeFailedError,
    HostError,
    SessionNotResumedError,
    SupervisorLostError,
)
from standfast.host.v1 import host_agent_pb2 as pb
from standfast.types.v1 import types_pb2
from standfast_chassis import span_names
from standfast_chassis.errors import StandfastError
from standfast_chassis.keys import SigningKey
from standfast_chassis.trace_context import current_traceparent
from standfast_chassis.tracing import Tracing

_log = structlog.get_logger("standfast.host.activation")

_INBOX_MAX = 1024
_LIFECYCLE_WAIT_S = 1.0
_LOSS_GRACE_S = 1.0
# What is left of `slot_free_s` for ending a process that does not leave, and the least that one is given.
_CLEAN_UP_S = 1.0
_EXIT_WAIT_MIN_S = 0.2


class ActivationRun:
    """One activation from grant to observation. `run` it in a task; feed it with `offer`."""

    def __init__(
        self,
        grant: Grant,
        *,
        agent: SandboxAgent,
        sandbox: Sandbox,
        slot: HostedSlot,
        journal: Journal,
        key: SigningKey,
        tracing: Tracing,
        taps: Path,
        limits: ActivationLimits,
        policy: HostPolicy,
    ) -> None:
        self.grant = grant
        self.outlet = Outlet()
        self._agent = agent
        self._sandbox = sandbox
        self._slot = slot
        self._record = ActivationRecord(journal, key, grant.activation_id)
        self._limits = limits
        self._policy = policy
        self._observer = Observer(grant, agent, sandbox, slot, limits, policy)
        self._machine = machine.Activation()
        self._inbox: asyncio.Queue[Inbound] = asyncio.Queue(_INBOX_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._gate: Gate | None = None
        self._cli: HostedCli | None = None
        self._is_new = True
        self._store_before: StoreReading | None = None
        self._tap = TapRecording(
            agent, grant.message_id, taps / f"{grant.activation_id}.tap", limit_bytes=limits.tap_limit_bytes
        )
        self._interrupt_frame: bytes | None = None
        self._lost_at: float | None = None
        self._refusal: HostError | StandfastError | None = None
        self._waits_for_lifecycle = False
        self._census: Census | None = None
        self._traceparent: str | None = None
        self._spans = ActivationSpans(tracing, grant, slot.number)

    @property
    def observation(self) -> Observation | None:
        """What was journalled; None before."""
        return self._record.observation

    async def offer(self, message: Inbound) -> None:
        """Gives the run something to handle, in order."""
        await self._inbox.put(message)

    # --- the loop ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Conducts the activation to its end. Never raises but CancelledError; the outlet gets the error for the runner."""
        error: Exception | None = None
        self._traceparent = current_traceparent()
        try:
            self._spans.begin(span_names.ACTIVATE)
            await self._perform(self._machine.step(machine.PrepareBegun()))
            while self._machine.state not in (machine.ActivationState.CLOSED, machine.ActivationState.FAILED):
                await self._handle(await self._inbox.get())
            error = self._refusal
        except StandfastError as failure:
            # The journal itself could not be written, or a statement did not hold: what was sent is on record already.
            _log.error("an activation broke off", reason=failure.reason, activation_id=self.grant.activation_id)
            error = failure
        finally:
            for task in self._tasks:
                task.cancel()
            self._spans.close()
            self._tap.close()
            self._slot.let_go(self.grant.activation_id)
            # A piece of news that waits for room would wait for ever.
            while not self._inbox.empty():
                self._inbox.get_nowait()
            await asyncio.shield(self.outlet.finish(error))

    async def _handle(self, message: Inbound) -> None:
        match message:
            case FrameCame(data):
                await self._frame(data)
            case AdmissionCame(claims):
                await self._admit(claims)
            case InterruptCame(cause, frame):
                await self._interrupt(cause, frame)
            case RunnerLeft():
                await self._interrupt("ATTACH_LOST", None)
            case OutputChunk():
                await self._output(message)
            case OutputGap():
                self._tap.has_gap = True
            case ProcessExited():
                await self._exited()
            case LinkLost():
                await self._step(machine.SupervisorLost())
            case ProcessReady():
                await self._process_ready(message)
            case ReadyFailed(failure):
                await self._ready_failed(failure)
            case TimeOver(what):
                await self._time_over(what)
            case WoundUp(observation, census):
                self._census = census
                await self._step(machine.Quiesced(observation))

    async def _step(self, event: machine.Event) -> None:
        await self._perform(self._machine.step(event))

    async def _perform(self, effects: list[machine.Effect]) -> None:
        for effect in effects:
            match effect:
                case machine.MakeReady():
                    self._start(self._make_ready())
                case machine.SendReport(report):
                    self._spans.end(span_names.ACTIVATE)
                    await self.outlet.put(pb.AttachResponse(report_jws=self._record.report(report)))
                case machine.OpenGate(admission):
                    assert self._gate is not None
                    self._gate.admit(admission)
                case machine.RecordForwarded(admission):
                    await self._record_forwarded(admission)
                case machine.WriteMessage(frame):
                    await self._write_message(frame)
                case machine.WriteInterrupt():
                    await self._write_interrupt()
                case machine.CloseGate():
                    if self._gate is not None:
                        self._gate.end()
                case machine.AwaitLifecycle():
                    self._waits_for_lifecycle = True
                    self._spans.end(span_names.NATIVE_TURN)
                    self._timer("lifecycle", _LIFECYCLE_WAIT_S)
                    await self._look_for_lifecycle()
                case machine.Quiesce(end_process):
                    self._spans.end(span_names.NATIVE_TURN)
                    self._spans.begin(span_names.QUIESCE)
                    self._start(self._quiesce(end_process))
                case machine.ObserveBlind():
                    self._spans.end(span_names.NATIVE_TURN)
                    await self.offer(WoundUp(await self._observer.blind(self._facts()), None))
                case machine.JournalObservation(observation):
                    await self._journal_observation(observation)
                case machine.OfferObservation(observation):
                    await self._offer_observation(observation)
                case machine.ReleaseSlot(disposition):
                    await self._release(disposition)
                case machine.TellNotSent(reason):
                    await self._not_sent(reason)

    # --- before the message -----------------------------------------------------------------------------------------

    async def _make_ready(self) -> None:
        """Finds or starts the process, and reads the store before anything of the turn can have changed it."""
        try:
            grant, slot = self.grant, self._slot
            store, is_alive = await asyncio.gather(self._read_store(), self._kept_process_is_alive())
            slot.listen(self.offer)
            # What fits is looked at once more: from here to its use nothing is waited for.
            is_new = not (is_alive and self._fits())
            if is_new:
                self._cli = await slot.start(
                    grant.next_process_generation,
                    grant.locator,
                    grant.settings_digest,
                    lambda secret: program_of(self._agent, grant, self._sandbox, slot, secret),
                    traceparent=self._traceparent,
                    reclaim_timeout_s=self._limits.quiesce_timeout_s,
                    exit_wait_s=self._limits.exit_wait_s,
                )
            else:
                self._cli = slot.use_kept()
            self._sandbox.relay.begin_activation(
                self._sandbox.group_id, slot.name, grant.activation_id, self._traceparent
            )
        except (StandfastError, OSError) as failure:
            await self.offer(ReadyFailed(failure))
        else:
            await self.offer(ProcessReady(store, is_new))

    async def _read_store(self) -> StoreReading | None:
        grant = self.grant
        return await self._observer.watch.read(grant.store.prefix_length) if grant.resumes else None

    def _fits(self) -> bool:
        grant = self.grant
        return self._slot.fits(grant.reuse_process_generation, grant.locator, grant.settings_digest)

    async def _kept_process_is_alive(self) -> bool:
        return self._fits() and await self._slot.is_alive()

    async def _process_ready(self, ready: ProcessReady) -> None:
        cli = self._cli
        assert cli is not None
        if self._machine.state is not machine.ActivationState.PREPARING:
            return  # the runner left meanwhile; the slot was released by that
        self._is_new, self._store_before = ready.is_new, ready.store
        tap_from = 0 if ready.is_new else cli.tap_end
        self._gate = Gate(self._agent, self._context(), handshake_expected=ready.is_new, policy=self._policy.gate)
        self._tap.open(tap_from)
        self._record.begin_process(cli.process_generation, was_new=ready.is_new, tap_from=tap_from)
        await self.outlet.put(
            pb.AttachResponse(
                ready=pb.AttachReady(
                    process_generation=cli.process_generation,
                    process_is_new=ready.is_new,
                    tap_offset=tap_from,
                    native_session_id=self.grant.locator.native_session_id,
                )
            )
        )
        if not ready.is_new:
            await self._step(machine.Prepared(self._report(None)))
            return
        self._timer("handshake", self._limits.handshake_timeout_s)
        # A refused resume prints and exits before anything is written to it: both may have come already.
        await self._look()
        if cli.exit is not None and self._machine.state is machine.ActivationState.PREPARING:
            await self._exited()

    def _context(self) -> GateContext:
        grant = self.grant
        return GateContext(
            workspace=grant.locator.cwd,
            permission_mode=grant.permission_mode,
            model=grant.model,
            options=grant.options,
            locator=grant.locator if grant.locator.native_session_id else None,
            resumes=grant.resumes,
        )

    def _report(self, handshake: str | None) -> ActivationReport:
        cli, grant = self._cli, self.grant
        assert cli is not None
        findings = self._tap.findings()
        return ActivationReport(
            activation_id=grant.activation_id,
            turn_id=grant.turn_id,
            group_id=grant.group_id,
            member_id=grant.member_id,
            generations=self._observer.generations(cli),
            container=self._sandbox.facts,
            agent=grant.agent,
            agent_version=findings.agent_version,
            settings_digest=cli.settings_digest,
            locator=cli.locator,
            process_was_running=not self._is_new,
            tap_gap=cli.has_gap,
            written_outside=cli.was_interrupted_on_loss,
            handshake=handshake,
            observed_session_id=findings.handshake_session_id
            or (findings.session_ids[0] if findings.session_ids else None),
            store=self._store_before,
            process=cli.process,
            observed_store=below_home(findings.handshake_store, self._slot.place.home) or None,
        )

    async def _ready_failed(self, failure: Exception) -> None:
        if self._machine.state is not machine.ActivationState.PREPARING:
            return
        known = (
            failure
            if isinstance(failure, StandfastError)
            else HandshakeFailedError(f"the slot could not be made ready ({type(failure).__name__}). Nothing was sent.")
        )
        _log.warning("a slot could not be made ready", reason=known.reason, message=known.message)
        self._refusal = known
        await self._step(machine.PrepareFailed(known.reason))

    async def _handshake_answered(self, answer: str) -> None:
        if answer == "OK":
            try:
                self._take_named()
            except AgentLocatorError as failure:
                self._refusal = HandshakeFailedError(f"{failure.message}. Nothing was sent.", failure.metadata)
                await self._step(machine.PrepareFailed(self._refusal.reason))
                return
            with suppress(GuestLinkError):
                # The pump hears of a loss itself and says so in order.
                await self._slot.record_family()
            await self._step(machine.Prepared(self._report("OK")))
            return
        self._refusal = SessionNotResumedError(
            f"the CLI refused its native {'resume' if self.grant.resumes else 'start'}: {answer}. Nothing was sent.",
            {"cause": answer, "native_session_id": self.grant.locator.native_session_id},
        )
        await self._step(machine.PrepareFailed(self._refusal.reason))

    def _take_named(self) -> None:
        """A session that begins is from now on the one that the CLI named. Raises AgentLocatorError."""
        if self.grant.locator.is_whole:
            return
        assert self._cli is not None
        assert self._gate is not None
        findings = self._tap.findings()
        locator = self._agent.named_locator(self.grant.locator, findings, home=self._slot.place.home)
        self._cli.locator = self._observer.locator = locator
        self._gate.note_locator(locator)

    # --- from the runner --------------------------------------------------------------------------------------------

    async def _frame(self, data: bytes) -> None:
        if self._gate is None:
            await self._refuse(GateRefusedError("a frame came before the slot was ready; expected none until then."))
            return
        ruling = self._gate.check(data)
        if isinstance(ruling, Refused):
            await self._refuse(
                GateRefusedError(
                    f"a frame for the CLI was not passed: {ruling.why}. Nothing of it was written.",
                    {"gate_reason": ruling.reason},
                )
            )
            return
        if isinstance(ruling, TooLate):
            _log.info("an answer came too late and was not written", activation_id=self.grant.activation_id)
        elif ruling.kind is FrameKind.MESSAGE:
            await self._step(machine.MessageArrived(data))
        elif ruling.kind is FrameKind.INTERRUPT:
            self._interrupt_frame = data
            await self._step(machine.Interrupted("CANCEL"))
        elif ruling.kind is not FrameKind.FENCE or self._machine.state in _TAKES_FENCES:
            await self._write(data)

    async def _admit(self, claims: Mapping[str, Any]) -> None:
        cli = self._cli
        try:
            admission = read_admission(claims, self.grant, cli.process_generation if cli is not None else -1)
            await self._step(machine.Admitted(admission))
        except (AdmissionConflictError, StandfastError) as failure:
            await self._refuse(failure)

    async def _interrupt(self, cause: str, frame: bytes | None) -> None:
        if cause == "ATTACH_LOST":
            self._lost_at = self._lost_at or time.monotonic()
            await self.outlet.close()
        if self._machine.state in (machine.ActivationState.CLOSED, machine.ActivationState.FAILED):
            return
        if frame is not None and self._gate is not None and self._machine.is_written:
            ruling = self._gate.check(frame)
            if isinstance(ruling, Refused):
                _log.warning("an interrupt frame was not passed; our own is used", gate_reason=ruling.reason)
            elif isinstance(ruling, Passed) and ruling.kind is FrameKind.INTERRUPT:
                self._interrupt_frame = frame
        if self._machine.state in (
            machine.ActivationState.FORWARDING,
            machine.ActivationState.FORWARDED,
        ):
            await self._record.interrupted(cause)
        await self._step(machine.Interrupted(cause))

    async def _refuse(self, failure: StandfastError) -> None:
        """Ends the runner's stream with an error; the native turn, if there is one, is interrupted."""
        self._refusal = self._refusal or failure
        await self._interrupt(failure.reason, None)

    # --- to and from the CLI ----------------------------------------------------------------------------------------

    async def _record_forwarded(self, admission: Admission) -> None:
        assert self._cli is not None
        try:
            await self._record.forwarding(admission, self._cli.tap_end)
        except StandfastError as failure:
            self._refusal = failure
            await self._step(machine.ForwardNotRecorded(failure.reason))
            return
        await self._step(machine.ForwardRecorded())

    async def _write_message(self, frame: bytes) -> None:
        assert self._cli is not None
        self._spans.begin(span_names.NATIVE_TURN)
        offset = self._cli.tap_end
        # A supervisor that is told before the message knows what to write if this process dies a moment later. It takes the two in the
        # order in which they are sent; the second need not wait for the first one's answer.
        await asyncio.gather(self._deposit_interrupt(), self._write(frame))
        await self.outlet.put(pb.AttachResponse(forwarded=pb.AttachForwarded(tap_offset=offset)))

    async def _deposit_interrupt(self) -> None:
        with suppress(GuestLinkError):
            await self._slot.deposit_interrupt(
                self._agent.interrupt_frame(f"loss-{self.grant.activation_id}", self._observer.locator), _LOSS_GRACE_S
            )

    async def _write_interrupt(self) -> None:
        frame = self._interrupt_frame or self._agent.interrupt_frame(
            f"int-{self.grant.activation_id}", self._observer.locator
        )
        self._timer("interrupt", self._limits.interrupt_wait_s)
        await self._write(frame)

    async def _write(self, data: bytes) -> None:
        try:
            await self._slot.write(data, self._traceparent)
        except GuestOperationError as failure:
            # The process is gone or takes no more: its exit, or the silence, ends the turn.
            _log.info("the process took no input", reason=failure.guest_reason)
        except GuestLinkError:
            # The pump hears of the loss itself and says so in order.
            _log.info("the supervisor did not take a frame", activation_id=self.grant.activation_id)

    async def _output(self, chunk: OutputChunk) -> None:
        self._tap.take(chunk)
        await self.outlet.put(pb.AttachResponse(output=pb.AttachOutput(offset=chunk.offset, data=chunk.data)))
        await self._look()

    async def _look(self) -> None:
        """Acts on what the tap shows now."""
        findings = self._tap.findings()
        if self._gate is not None:
            self._gate.note_open_requests(findings.open_requests)
        if (
            self._machine.state is machine.ActivationState.PREPARING
            and self._gate is not None
            and findings.handshake is not None
        ):
            await self._handshake_answered(findings.handshake)
        if (
            self._machine.state is machine.ActivationState.FORWARDED
            and findings.message_started
            and not self._machine.is_started
        ):
            await self._step(machine.MessageStarted())
        if self._machine.state is machine.ActivationState.FORWARDED and findings.end is not None:
            await self._step(machine.NativeEnded(findings.end))
        elif (
            self._machine.state is machine.ActivationState.FORWARDED
            and self._machine.interrupted_by is not None
            and findings.lifecycle_closed
            and not findings.message_started
        ):
            # The interrupt found the message before the CLI had begun on it: it is cancelled there, and no end will come.
            await self._step(machine.InterruptWaitOver())
        elif self._waits_for_lifecycle:
            await self._look_for_lifecycle()

    async def _look_for_lifecycle(self) -> None:
        if self._tap.findings().lifecycle_closed:
            await self._lifecycle_over()

    async def _lifecycle_over(self) -> None:
        if self._waits_for_lifecycle and self._machine.state is machine.ActivationState.ENDED:
            self._waits_for_lifecycle = False
            await self._step(machine.LifecycleOver())

    async def _exited(self) -> None:
        cli = self._cli
        if cli is not None:
            await self.outlet.put(
                pb.AttachResponse(
                    exited=pb.AttachExited(
                        exit_code=cli.exit_code or 0, stderr_tail=cli.stderr_tail.decode("utf-8", "replace")
                    )
                )
            )
        if self._machine.state is machine.ActivationState.PREPARING:
            if self._gate is None:
                return  # the start itself says how it failed
            findings = self._tap.findings()
            self._refusal = self._refusal or CliDiedError(
                f"the CLI left with exit code {cli.exit_code if cli else None} before it answered its native start. "
                "Nothing was sent.",
                {"exit_code": cli.exit_code if cli else None, "handshake": findings.handshake},
            )
        if self._machine.state in (
            machine.ActivationState.CLOSED,
            machine.ActivationState.FAILED,
            machine.ActivationState.OBSERVED,
        ):
            return
        await self._step(machine.CliExited(cli.exit_code if cli is not None else None))

    async def _time_over(self, what: str) -> None:
        match what:
            case "handshake" if self._machine.state is machine.ActivationState.PREPARING:
                self._refusal = HandshakeFailedError(
                    f"the CLI did not answer its native start within {self._limits.handshake_timeout_s} s. "
                    "Nothing was sent; look at its stderr in the host agent's log.",
                    {"handshake_timeout_s": self._limits.handshake_timeout_s},
                )
                await self._step(machine.PrepareFailed(self._refusal.reason))
            case "lifecycle":
                await self._lifecycle_over()
            case "interrupt" if self._machine.interrupted_by is not None and self._machine.state not in (
                machine.ActivationState.CLOSED,
                machine.ActivationState.FAILED,
                machine.ActivationState.OBSERVED,
            ):
                await self._step(machine.InterruptWaitOver())
            case _:
                return

    # --- after the end ----------------------------------------------------------------------------------------------

    async def _quiesce(self, end_process: bool) -> None:
        observation, census = await self._observer.wind_up(self._facts(), end_process=end_process)
        await self.offer(WoundUp(observation, census))

    def _facts(self) -> TurnFacts:
        tap, state = self._tap, self._machine
        return TurnFacts(
            cli=self._cli,
            is_new=self._is_new,
            findings=self._tap.findings(),
            admission=state.admission,
            was_sent=state.is_written,
            interrupted_by=state.interrupted_by,
            tap_from=tap.start,
            tap_to=tap.end,
            tap_gap=tap.has_gap,
            exit_wait_s=self._exit_wait_s(),
        )

    def _exit_wait_s(self) -> float:
        """How long the process may take to leave: with its runner gone, no longer than the slot may stay taken."""
        if self._lost_at is None or self._machine.interrupted_by != "ATTACH_LOST":
            return self._limits.exit_wait_s
        left_s = self._lost_at + self._limits.slot_free_s - _CLEAN_UP_S - time.monotonic()
        return min(max(left_s, _EXIT_WAIT_MIN_S), self._limits.exit_wait_s)

    async def _journal_observation(self, observation: Observation) -> None:
        await self._tap.sync()
        await self._record.observed(observation)
        await self._step(machine.ObservationJournalled(observation))

    async def _offer_observation(self, observation: Observation) -> None:
        self._spans.end(span_names.QUIESCE)
        if self._refusal is None and observation.tap.end is None and observation.interrupted_by == "SUPERVISOR_LOST":
            self._refusal = SupervisorLostError(
                "the sandbox's supervisor went away in the middle of the turn; what was seen is journalled.",
                {"activation_id": self.grant.activation_id},
            )
        await self.outlet.put(
            pb.AttachResponse(
                observed=pb.AttachObserved(
                    observation_digest=hashlib.sha256(codec.encode(observation)).hexdigest(),
                    native_end_seen=observation.tap.end is not None,
                    disposition=_DISPOSITIONS[observation.disposition],
                    disposition_reason=observation.disposition_reason,
                )
            )
        )
        await self._step(machine.Settled(observation.disposition))

    async def _release(self, disposition: ProcessDisposition) -> None:
        if self._machine.state is machine.ActivationState.FAILED and disposition is not ProcessDisposition.KEPT:
            with suppress(GuestLinkError):
                self._census = await self._slot.reclaim((), self._limits.quiesce_timeout_s)
        self._slot.release(disposition, self._census)

    async def _not_sent(self, reason: str) -> None:
        """Nothing went to the CLI: that too is journalled, so that whoever asks later is told so."""
        observation = await self._observer.not_sent(self._facts(), self._store_before, reason)
        await self._record.observed(observation)
        self._spans.fail(reason)

    # --- small things -----------------------------------------------------------------------------------------------

    def _timer(self, what: str, delay_s: float) -> None:
        async def wait() -> None:
            await asyncio.sleep(delay_s)
            await self.offer(TimeOver(what))

        self._start(wait())

    def _start(self, work: Awaitable[None]) -> None:
        async def contained() -> None:
            await work

        task = asyncio.get_running_loop().create_task(contained())
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            _log.error("a part of an activation crashed", exc_info=failure, activation_id=self.grant.activation_id)
            with suppress(asyncio.QueueFull):
                self._inbox.put_nowait(LinkLost(GuestLinkError(f"a part of the activation crashed: {failure!r}")))


# After these a fence comes too late to mark anything, and there may be nobody left to answer it.
_TAKES_FENCES = (
    machine.ActivationState.ADMITTED,
    machine.ActivationState.FORWARDED,
    machine.ActivationState.ENDED,
)
_DISPOSITIONS = {
    ProcessDisposition.KEPT: types_pb2.PROCESS_DISPOSITION_KEPT,
    ProcessDisposition.RETIRED: types_pb2.PROCESS_DISPOSITION_RETIRED,
    ProcessDisposition.RECLAIM_FIRST: types_pb2.PROCESS_DISPOSITION_RECLAIM_FIRST,
}
