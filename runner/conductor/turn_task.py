"""One turn's task: it owns the turn's machine, performs its effects, and gives it what happens.

Whatever takes time runs beside it and posts its result into one mailbox, so a cancel is heard at once in every state.
A result of work that was given up meanwhile is dropped by its epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

import structlog
from opentelemetry.trace import Span

from runner.adapters.wire import (
    answer_from_wire,
    event_to_wire,
    failure_to_wire,
    locator_from_wire,
    outcome_from_wire,
    outcome_to_wire,
    own_findings,
    verdict_to_wire,
)
from runner.conductor.attached import AttachedReader, Posted, ReportCame, SlotReady
from runner.conductor.feed import TurnFeed
from runner.conductor.negotiation import Grant, Negotiation, activation_of, has_failed
from runner.conductor.parts import Parts, TurnRequest
from runner.conductor.replay import Activation, replay
from runner.conductor.retries import ask
from runner.conductor.standing import Standing
from runner.conductor.timers import Timers
from runner.core.errors import LocatorMismatchError, ReasonedError, cause_of
from runner.core.events import AssistantMessage, NativeRequest, NativeTurnEnded, Normalised, Warned
from runner.core.identity import IdentityJudge
from runner.core.preparation import check_activated, check_admitted
from runner.core.settlement import Settled as Decision
from runner.core.settlement import native_failure, own_failure, settle
from runner.core.turn import (
    Abandon,
    Abandoned,
    Admit,
    Admitted,
    AnnounceEnd,
    AttachBroke,
    Claimed,
    CloseAttach,
    Effect,
    Event,
    Finish,
    Forget,
    Forwarded,
    Interrupt,
    KnownOver,
    LeaseLost,
    NativeEnded,
    NativeEndFound,
    NotEnded,
    Observed,
    OpenAttach,
    Prepare,
    Prepared,
    QuiesceTimedOut,
    Refused,
    ReportReceived,
    Resumed,
    SendMessage,
    Settle,
    Settled,
    StopRequested,
    StopTimedOut,
    TurnMachine,
    TurnState,
    Unavailable,
    WillNotEnd,
)
from runner.core.values import Cause, NativeLocator, Outcome, TurnKey
from runner.core.verdict import Judgement, Verdict
from runner.drivers.registry import AgentEntry
from runner.status import is_recorded
from standfast.runner.v1 import runner_pb2
from standfast.sandbox.v1 import sandbox_manager_pb2 as sandbox_pb
from standfast.types.v1 import types_pb2
from standfast_chassis import span_names
from standfast_chassis.errors import StandfastError, StoreError
from standfast_chassis.logs import log_context
from standfast_chassis.trace_context import current_trace_id
from standfast_chassis.tracing import known, set_error

_log = structlog.get_logger("standfast.runner.turn")

MAILBOX_MAX = 256
_OPERATION = "operation"
_ATTACH = "attach"
_TIMER = "timer"
_REQUEST = "request"

_INTERRUPT_CAUSES = {
    Outcome.CANCELLED: "CANCEL",
    Outcome.TIMED_OUT: "TIMEOUT",
    Outcome.UNANSWERED_QUESTION: "UNANSWERED_QUESTION",
}


class TurnTask:
    """One turn from its claim to its end. `request` None: the turn was found unresolved after a restart."""

    def __init__(
        self,
        parts: Parts,
        key: TurnKey,
        agent: AgentEntry,
        feed: TurnFeed,
        turn: runner_pb2.Turn,
        request: TurnRequest | None,
        *,
        message_digest: str = "",
    ) -> None:
        self.key = key
        self.message_digest = request.message.digest if request is not None else message_digest
        self.feed = feed
        self._parts = parts
        self._agent = agent
        self._standing = Standing(turn)
        self._request = request
        self._talk = Negotiation(parts, key)
        self._machine = TurnMachine()
        self._mailbox: asyncio.Queue[tuple[str, int, Posted]] = asyncio.Queue(MAILBOX_MAX)
        self._epochs = {_OPERATION: 0, _ATTACH: 0, _REQUEST: 0}
        self._operation: asyncio.Task[None] | None = None
        self._reader: AttachedReader | None = None
        self._reading: asyncio.Task[None] | None = None
        self._lease: asyncio.Task[None] | None = None
        self._timers = Timers(lambda event, epoch: self._put(_TIMER, event, epoch))
        self._spans: dict[str, Span] = {}
        self._grant: Grant | None = None
        self._process_is_new = False
        self._report_jws = ""
        self._admission_jws = ""
        self._stopped_before: list[StopRequested] = []

    # --- for others -------------------------------------------------------------------------------------------------
    def snapshot(self) -> runner_pb2.Turn:
        """The turn as it stands."""
        return self._standing.snapshot(self._machine.state, self.feed.recorded_sequence)

    def request_stop(self, outcome: Outcome, cause: Cause) -> None:
        """Asks for the turn's end. May be called in any state, and again."""
        if self._machine.stop is None and not self._stopped_before and not self._machine.is_over:
            stop = StopRequested(outcome, cause)
            self._stopped_before.append(stop)
            self._put(_REQUEST, stop)

    # --- the task ---------------------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Conducts the turn to its end. When it is cancelled the record stays as it is, and the next start goes on."""
        attributes = {
            span_names.GEN_AI_OPERATION_NAME: span_names.OPERATION_TURN,
            span_names.GEN_AI_AGENT_NAME: self._agent.name,
            span_names.GEN_AI_AGENT_VERSION: self._agent.version,
            span_names.GEN_AI_CONVERSATION_ID: self.key.conversation_id,
            span_names.STANDFAST_TENANT: self.key.tenant,
            span_names.STANDFAST_TURN_ID: self.key.turn_id,
        }
        with (
            self._parts.tracing.span(span_names.turn_span(self._agent.name), attributes) as span,
            log_context(tenant=self.key.tenant, conversation_id=self.key.conversation_id, turn_id=self.key.turn_id),
        ):
            self._standing.turn.trace_id = self._standing.turn.trace_id or current_trace_id() or ""
            try:
                async with asyncio.TaskGroup() as group:
                    self._group = group
                    writing = group.create_task(self.feed.run())
                    try:
                        await self._conduct()
                    finally:
                        self._stop_everything()
                        writing.cancel()
            finally:
                for open_span in self._spans.values():
                    open_span.end()
                self._note_end(span)

    async def _conduct(self) -> None:
        if self._request is None:
            await self._perform_all(self._machine.step(Resumed()))
        else:
            self._operate(self._claim(self._request))
        while not self._machine.is_over:
            source, epoch, posted = await self._mailbox.get()
            if epoch != self._epoch(source):
                continue
            event = await self._as_event(posted)
            if event is not None:
                await self._perform_all(self._machine.step(event))

    async def _as_event(self, posted: Posted) -> Event | None:
        """What is posted, as an event of the machine; None for what the machine need not know."""
        match posted:
            case SlotReady():
                return await self._slot_ready(posted)
            case ReportCame(report_jws):
                self._report_jws = report_jws
                self._end_span(span_names.ACTIVATE)
                return ReportReceived() if self._machine.state is TurnState.ACTIVATING else None
            case NativeRequest():
                await self._native_request(posted)
                return None
            case AttachBroke():
                return self._explained(posted) if self._machine.state in _ATTACHED else None
            case Observed():
                self._note_observation()
                return posted if self._machine.state in _ATTACHED else None
            case Forwarded():
                return posted if self._machine.state in (TurnState.RUNNING, TurnState.QUIESCING) else None
            case NativeEnded():
                self._end_span(span_names.NATIVE_TURN)
                return posted if self._machine.state is TurnState.RUNNING else None
            case WillNotEnd() | StopTimedOut():
                return posted if self._machine.state is TurnState.RUNNING else None
            case QuiesceTimedOut():
                return posted if self._machine.state is TurnState.QUIESCING else None
            case LeaseLost():
                return posted if self._machine.state is not TurnState.PREPARING else None
            case _:
                return posted

    async def _perform_all(self, effects: list[Effect]) -> None:
        for effect in effects:
            await self._perform(effect)
        if self._machine.state is TurnState.QUIESCING and "quiesce" not in self._timers:
            self._begin_span(span_names.QUIESCE)
            self._timers.arm("quiesce", self._parts.limits.quiesce_timeout_s, QuiesceTimedOut())
        if self._machine.state not in (TurnState.ACTIVATING, TurnState.RUNNING, TurnState.QUIESCING):
            self._timers.disarm_all()

    async def _perform(self, effect: Effect) -> None:
        match effect:
            case Prepare():
                self._operate(self._prepare())
            case OpenAttach():
                await self._open_attach()
            case Admit():
                self._operate(self._admit())
            case SendMessage():
                await self._send_message()
            case Interrupt(outcome):
                await self._interrupt(outcome)
            case CloseAttach():
                self._close_attach()
            case AnnounceEnd(outcome, cause):
                self._announce_end(outcome, cause)
            case Settle(replay=from_journal):
                self._end_span(span_names.QUIESCE)
                self._operate(self._settle(from_journal))
            case Abandon():
                if self._lease is not None:
                    self._lease.cancel()  # whoever comes next need not wait for a lease that nobody uses
                self._operate(self._abandon(effect))
            case Finish(outcome, cause):
                await self._finish(outcome, cause)
            case Forget(cause):
                await self._durably(lambda: self._parts.store.forget(self.key))
                self.feed.abandon(cause)

    # --- operations: each posts exactly one event -------------------------------------------------------------------
    async def _claim(self, request: TurnRequest) -> Event:
        try:
            known_here = await self._parts.store.conversation(self.key.conversation)
            knows = known_here is not None and (known_here.settled_turns > 0 or known_here.locator.saved is not None)
            answer = await self._talk.claim(request, knows_conversation=knows)
            if answer.disposition == "ENDED":
                return self._known_over(answer.turn)
            if answer.HasField("unresolved"):
                await self._talk.resolve_former(answer.unresolved)
            if answer.disposition == "RESUME" and answer.turn.state == "ADMITTED":
                # This runner admitted it and then lost its own record: whether it was sent only the journal knows.
                return Resumed()
        except StandfastError as error:
            return self._not_possible(error)
        return Claimed()

    def _known_over(self, turn: sandbox_pb.ManagedTurn) -> Event:
        self._standing.take_managed(turn)
        outcome = outcome_from_wire(turn.outcome)
        if outcome is None:
            outcome = Outcome.REFUSED if turn.state == "REFUSED" else Outcome.INTERRUPTED
        cause = None
        if turn.reason:
            cause = Cause(turn.reason, f"Turn {turn.turn_id} ended before: {turn.reason}.")
        self.feed.publish(_warning("EVENTS_NOT_KEPT", "This turn was run elsewhere; its events are not kept here."))
        return KnownOver(outcome, cause)

    async def _prepare(self) -> Event:
        assert self._request is not None
        with self._parts.tracing.span(span_names.PREPARE) as span:
            try:
                known_here = await self._parts.store.conversation(self.key.conversation)
                assert known_here is not None
                grant = await self._talk.prepare(
                    self._request,
                    record=known_here.locator,
                    has_settled_turns=known_here.settled_turns > 0,
                )
            except StandfastError as error:
                set_error(span, error)
                return self._not_possible(error)
        self._grant = grant
        self._standing.take_grant(grant)
        return Prepared()

    async def _admit(self) -> Event:
        assert self._request is not None
        assert self._grant is not None
        assert self._reader is not None
        with self._parts.tracing.span(span_names.ADMIT) as span:
            try:
                answer = await self._talk.admit(self._request, self._grant, self._report_jws)
                state = types_pb2.ContextState.Name(answer.context_state).removeprefix("CONTEXT_STATE_")
                span.set_attribute(span_names.STANDFAST_CONTEXT_STATE, state)
                check_admitted(
                    context_state=state,
                    process_is_new=self._process_is_new,
                    resumes=self._grant.resumes,
                    handshake_refused=self._reader.handshake_refused,
                )
            except StandfastError as error:
                set_error(span, error)
                return self._not_possible(error)
        self._admission_jws = answer.admission_jws
        self._standing.take_admission(answer)
        context = runner_pb2.ContextDecided(
            state=answer.context_state,
            reason=answer.context_reason,
            interrupted_turn_id=self._grant.interrupted_turn_id,
        )
        self.feed.publish(runner_pb2.TurnEvent(context=context))
        return Admitted()

    async def _settle(self, from_journal: bool) -> Event:
        try:
            activation, locator = await self._where()
        except StandfastError as error:
            await self._record_end(_unsaved(error), save=None, state=TurnState.SETTLED)
            return Settled()
        if from_journal or self._reader is None:
            self.feed.ledger.begin_replay()
            self._standing.texts.clear()
            read = await replay(self._parts, self._agent, activation, publish=self._publish_replayed, for_s=None)
            judge, native_end, failed = read.judge, read.native_end, has_failed(read)
        else:
            judge, native_end = self._reader.judge, self._machine.native_end
            failed = native_end is None or native_end.failed
        with self._parts.tracing.span(span_names.VERIFY_RUNNER) as span:
            own = await self._verify(judge, locator)
            span.set_attribute(span_names.STANDFAST_VERDICT, own.verdict.value)
        with self._parts.tracing.span(span_names.SETTLE) as span:
            try:
                settlement = await self._talk.settle(
                    activation.activation_id,
                    own,
                    native_session_id=own.observed or "",
                    failed=failed,
                    for_s=None,
                )
            except StandfastError as error:
                set_error(span, error)
                if error.reason in ("NOT_ENDED", "GENERATION_STALE"):
                    return NotEnded(cause_of(error))
                # Nobody can settle it: the verdict of this side alone saves nothing.
                await self._close(
                    Decision(Outcome.FAILED, save=False, unconfirmed=True, cause=cause_of(error)), locator
                )
                return Settled()
        self._standing.take_settlement(settlement)
        self._standing.turn.runner_verdict = verdict_to_wire(own.verdict)
        self._standing.turn.findings.extend(own_findings(own))
        stop = self._machine.stop
        decision = settle(
            own=own,
            native_end=native_end,
            stopped=stop.outcome if stop is not None else None,
            stop_cause=stop.cause if stop is not None else None,
            locator=locator,
            answer=answer_from_wire(settlement),
        )
        await self._close(decision, locator)
        return Settled()

    async def _abandon(self, effect: Abandon) -> Event:
        # What was surely never sent is over at once for the client's purposes; telling the manager is a courtesy that
        # frees the activation before its lease ends. What may have been sent only the manager can answer.
        for_s = None if effect.may_have_been_sent else self._parts.limits.give_up_wait_s
        try:
            turn = await self._talk.abandon(effect.outcome, effect.cause, for_s=for_s)
        except StandfastError as error:
            if error.reason == "NATIVE_END_SEEN":
                return NativeEndFound()
            _log.warning("the manager did not take back the turn", reason=error.reason, message=error.message)
            return Abandoned(effect.outcome, effect.cause)
        if turn.state == "SETTLED":
            return NativeEndFound()
        self._standing.take_managed(turn)
        answered = outcome_from_wire(turn.outcome)
        outcome = effect.outcome
        if effect.may_have_been_sent and answered is not None:
            outcome = answered
        cause = effect.cause
        if cause is None and turn.reason:
            cause = Cause(turn.reason, f"The turn was given up: {turn.reason}.")
        return Abandoned(outcome, cause)

    # --- the stream that carries the work ---------------------------------------------------------------------------
    async def _open_attach(self) -> None:
        grant = self._grant
        assert grant is not None
        self._begin_span(span_names.ACTIVATE)
        limits = self._parts.limits
        no_answer = Cause(
            "HANDSHAKE_FAILED",
            f"The CLI was not ready within {limits.handshake_timeout_s:g} s. Nothing was sent.",
        )
        self._timers.arm("handshake", limits.handshake_timeout_s, Unavailable(no_answer))
        self._lease = self._group.create_task(self._keep_lease(grant))
        epoch = self._epochs[_ATTACH]
        session = await self._parts.hosts.attach(grant.host_address)
        reader = AttachedReader(
            session,
            self._agent,
            expected_session_id=grant.locator.native_session_id,
            message_id=grant.message_id,
            policy=self._parts.policy,
            feed=self.feed,
            post=lambda posted: self._put(_ATTACH, posted, epoch),
            on_text=self._standing.texts.append,
        )
        self._reader = reader

        async def read() -> None:
            try:
                with suppress(StandfastError):  # how the stream ended, its reader learns
                    await session.open(grant.activation_token)
                await reader.run()
            finally:
                session.close()
                self._parts.hosts.release(grant.host_address)

        self._reading = self._group.create_task(read())

    async def _slot_ready(self, ready: SlotReady) -> Event | None:
        assert self._reader is not None
        assert self._grant is not None
        self._process_is_new = ready.process_is_new
        self._standing.turn.generations.process = ready.process_generation
        try:
            if self._parts.policy.check_identity:
                check_activated(locator=self._grant.locator, native_session_id=ready.native_session_id)
        except StandfastError as error:
            return self._not_possible(error)
        with suppress(StandfastError):  # as above
            await self._reader.shake_hands(ready)
        return None

    async def _send_message(self) -> None:
        assert self._request is not None
        assert self._reader is not None
        self._begin_span(span_names.NATIVE_TURN)
        limits = self._parts.limits
        limit_s = self._request.turn_limit_s if self._request.turn_limit_s is not None else limits.turn_limit_s
        if limit_s > 0:
            late = Cause("TURN_TIMEOUT", f"The turn's time limit of {limit_s:g} s ran out.")
            self._timers.arm("turn limit", limit_s, StopRequested(Outcome.TIMED_OUT, late))
        if limits.silence_limit_s > 0:
            silent = Cause("SILENCE_TIMEOUT", f"The CLI printed nothing for {limits.silence_limit_s:g} s.")
            reader = self._reader
            reader.last_output_at = asyncio.get_running_loop().time()
            self._timers.arm_silence(
                limits.silence_limit_s, lambda: reader.last_output_at, StopRequested(Outcome.TIMED_OUT, silent)
            )
        # Once, and never again: whatever becomes of it, the message is not handed over a second time.
        with suppress(StandfastError):  # how the stream ended, its reader learns
            await self._reader.send_message(self._admission_jws, self._request.message.text)

    async def _interrupt(self, outcome: Outcome) -> None:
        assert self._reader is not None
        self._timers.arm("interrupt", self._parts.limits.interrupt_wait_s, StopTimedOut())
        with suppress(StandfastError):  # as above
            await self._reader.interrupt(_INTERRUPT_CAUSES[outcome])

    async def _native_request(self, request: NativeRequest) -> None:
        """A request of the CLI. Of unknown kind: refused natively. A question waits for its answer, bounded."""
        if self._machine.state is not TurnState.RUNNING or self._reader is None:
            return
        if request.kind == "UNKNOWN":
            self.feed.publish(
                _warning("NATIVE_REQUEST_REFUSED", "The CLI asked for something that this runner does not know.")
            )
            with suppress(StandfastError):  # as above
                await self._reader.refuse_request(request)
            return
        wait_s = self._parts.limits.question_wait_s
        cause = Cause(
            "UNANSWERED_QUESTION",
            f"The CLI asked ({request.kind.lower()}) and nobody answered within {wait_s:g} s.",
            (("request_id", request.request_id),),
        )
        self._timers.arm(f"request {request.request_id}", wait_s, StopRequested(Outcome.UNANSWERED_QUESTION, cause))

    def _close_attach(self) -> None:
        self._epochs[_ATTACH] += 1
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        for name in (span_names.ACTIVATE, span_names.NATIVE_TURN, span_names.QUIESCE):
            self._end_span(name)

    def _explained(self, broke: AttachBroke) -> AttachBroke:
        """A CLI that refuses to resume means that the session is lost, which is what the client must hear."""
        if broke.cause.reason != "SESSION_NOT_RESUMED" or self._grant is None or not self._grant.resumes:
            return broke
        self._standing.take_lost(broke.cause.reason)
        metadata = dict(broke.cause.metadata) | {
            "cause": "SESSION_NOT_RESUMED",
            "cure": "restore the session's native store, or open a new conversation",
            "readable": "the workspace and what is left of the native store",
        }
        cause = Cause("CONTEXT_LOST", broke.cause.message, tuple(sorted(metadata.items())))
        return AttachBroke(cause, broke.before_forwarded, broke.refused)

    def _note_observation(self) -> None:
        observed = self._reader.observed if self._reader is not None else None
        if observed is not None:
            self._standing.turn.process_disposition = observed.disposition
            self._standing.turn.process_reason = observed.disposition_reason

    # --- the lease --------------------------------------------------------------------------------------------------
    async def _keep_lease(self, grant: Grant) -> None:
        """Renews the activation until it is cancelled, or the manager says that it is no longer ours."""
        lease_s = grant.lease_s
        wait_s = lease_s / 3
        while True:
            await asyncio.sleep(wait_s)
            try:
                lease_s = await self._talk.renew(grant)
                wait_s = lease_s / 3
            except StandfastError as error:
                if error.reason in ("GENERATION_STALE", "ACTIVATION_EXPIRED"):
                    self._put(_REQUEST, LeaseLost(cause_of(error)))
                    return
                wait_s = min(lease_s / 3, 1.0)

    # --- verdict and end --------------------------------------------------------------------------------------------
    async def _where(self) -> tuple[Activation, NativeLocator]:
        """The activation and the locator it ran on: from the grant, or from the manager after a restart."""
        if self._grant is not None:
            grant = self._grant
            activation = Activation(
                grant.activation_id, grant.host_address, grant.message_id, grant.locator.native_session_id
            )
            return activation, grant.locator
        turn = await self._talk.lookup(for_s=None)
        self._standing.take_managed(turn)
        locator = locator_from_wire(turn.locator)
        if locator is None:
            raise ReasonedError("LOCATOR_REQUIRED", f"The manager names no locator of turn {self.key.turn_id}.")
        return activation_of(turn, locator), locator

    async def _verify(self, judge: IdentityJudge, locator: NativeLocator) -> Judgement:
        """The runner's verdict, durable before the manager is asked: a Confirmed one makes the locator VERIFIED."""
        own = judge.verdict()
        self._standing.turn.runner_verdict = verdict_to_wire(own.verdict)
        if own.verdict is Verdict.CONFIRMED:
            try:
                await self._durably(lambda: self._parts.store.verify_locator(self.key, locator, self.snapshot()))
            except LocatorMismatchError as error:
                observed = error.metadata.get("observed")
                own = Judgement(Verdict.CONTRADICTED, error.reason, error.metadata.get("expected", ""), observed)
        else:
            await self._durably(lambda: self._parts.store.save_snapshot(self.key, self.snapshot()))
        return own

    async def _close(self, decision: Decision, locator: NativeLocator) -> None:
        try:
            await self._record_end(decision, save=locator if decision.save else None, state=TurnState.SETTLED)
        except LocatorMismatchError as error:
            # The record says no at the last moment: nothing is overwritten, and the turn fails by name.
            await self._record_end(_unsaved(error), save=None, state=TurnState.SETTLED)

    async def _finish(self, outcome: Outcome, cause: Cause | None) -> None:
        decision = Decision(outcome, save=False, unconfirmed=True, cause=cause)
        state = TurnState.SETTLED if self._standing.is_settled_elsewhere else TurnState.ENDED
        await self._record_end(decision, save=None, state=state)

    async def _record_end(self, decision: Decision, *, save: NativeLocator | None, state: TurnState) -> None:
        refusal = self._standing.take_end(decision, state)
        turn = self._standing.turn
        final = None
        if refusal is None:
            final = runner_pb2.TurnEvent(settled=runner_pb2.TurnSettled(turn=turn))
        await self._durably(lambda: self.feed.close(final, turn, refusal=refusal, save=save))

    async def _durably(self, write: Callable[[], Awaitable[None]]) -> None:
        """A write that the turn cannot go on without: tried again for as long as the store cannot take it."""
        await ask(
            write,
            what="the runner's own store",
            first_s=self._parts.limits.retry_first_s,
            max_s=self._parts.limits.retry_max_s,
            for_s=None,
            again=lambda error: isinstance(error, StoreError),
        )

    def _announce_end(self, outcome: Outcome, cause: Cause | None) -> None:
        end = self._machine.native_end
        failure = cause
        if failure is None and outcome is Outcome.FAILED and end is not None:
            failure = native_failure(end)
        judge = self._reader.judge if self._reader is not None else None
        if judge is not None and judge.contradiction is not None:
            outcome, failure = Outcome.FAILED, own_failure(judge.contradiction)
        ended = runner_pb2.TurnEnded(
            outcome=outcome_to_wire(outcome),
            settlement=runner_pb2.SETTLEMENT_STATE_SETTLING,
            failure=failure_to_wire(failure),
        )
        if isinstance(end, NativeTurnEnded) and end.reason:
            self._standing.turn.end_reason = end.reason
        self.feed.publish(runner_pb2.TurnEvent(ended=ended))

    def _publish_replayed(self, body: Normalised) -> None:
        if isinstance(body, AssistantMessage) and body.parent_id is None:
            self._standing.texts.append(body.text)
        if self.feed.ledger.take_from_driver():
            self.feed.publish(event_to_wire(body), from_driver=True)

    def _not_possible(self, error: StandfastError) -> Event:
        """Before anything was sent: a recorded refusal, or something that a repeat may get past."""
        cause = cause_of(error)
        return Refused(cause) if is_recorded(error.reason) else Unavailable(cause)

    # --- plumbing ---------------------------------------------------------------------------------------------------
    def _operate(self, operation: Coroutine[Any, Any, Event]) -> None:
        """Runs one operation; the one before it, if it still runs, is given up."""
        self._epochs[_OPERATION] += 1
        epoch = self._epochs[_OPERATION]
        if self._operation is not None:
            self._operation.cancel()

        async def operate() -> None:
            self._put(_OPERATION, await operation, epoch)

        self._operation = self._group.create_task(operate())

    def _put(self, source: str, posted: Posted, epoch: int | None = None) -> None:
        # Each source posts a handful of things in a turn's life, so the bound is never met by an honest turn.
        self._mailbox.put_nowait((source, self._epoch(source) if epoch is None else epoch, posted))

    def _epoch(self, source: str) -> int:
        return self._timers.epoch if source == _TIMER else self._epochs[source]

    def _stop_everything(self) -> None:
        self._timers.disarm_all()
        for task in (self._operation, self._reading, self._lease):
            if task is not None:
                task.cancel()

    def _begin_span(self, name: str) -> None:
        self._spans[name] = self._parts.tracing.start_span(name)

    def _end_span(self, name: str) -> None:
        span = self._spans.pop(name, None)
        if span is not None:
            span.end()

    def _note_end(self, span: Span) -> None:
        for name, value in known(self._standing.span_attributes()).items():
            span.set_attribute(name, value)
        if self._standing.turn.failure.reason:
            set_error(span, self._standing.turn.failure.reason)


_ATTACHED = frozenset({TurnState.ACTIVATING, TurnState.ADMITTING, TurnState.RUNNING, TurnState.QUIESCING})


def _unsaved(error: StandfastError) -> Decision:
    return Decision(Outcome.FAILED, save=False, unconfirmed=True, cause=cause_of(error))


def _warning(code: str, message: str) -> runner_pb2.TurnEvent:
    return event_to_wire(Warned(code, message))
