"""One turn's task: it owns the turn's machine, performs its effects, and gives it what happens.

Whatever takes time runs beside it and posts its result into one mailbox, so a cancel is heard at once in every state.
A result of work that was given up meanwhile is dropped by its epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog
from opentelemetry.trace import Span

from runner.conductor.asking import Asking
from runner.conductor.attached import AttachedReader, Posted, ReportCame, RequestsCame, SlotReady
from runner.conductor.before_sending import admit, claim, not_possible, prepare
from runner.conductor.desk import Desk
from runner.conductor.ending import Ending
from runner.conductor.feed import TurnFeed
from runner.conductor.negotiation import Grant, Negotiation
from runner.conductor.parts import Parts, TurnRequest
from runner.conductor.standing import Standing
from runner.conductor.timers import Timers
from runner.core.answers import Answer
from runner.core.errors import cause_of
from runner.core.events import FramesDue
from runner.core.pending_requests import Expired, NativeRequestUnknownError
from runner.core.preparation import check_activated
from runner.core.turn import (
    Abandon,
    Admit,
    AnnounceEnd,
    AttachBroke,
    CloseAttach,
    Effect,
    Event,
    Finish,
    Forget,
    Forwarded,
    Interrupt,
    LeaseLost,
    NativeEnded,
    Observed,
    OpenAttach,
    Prepare,
    QuiesceTimedOut,
    ReportReceived,
    Resumed,
    SendMessage,
    Settle,
    StopRequested,
    StopTimedOut,
    TurnState,
    Unavailable,
    WillNotEnd,
)
from runner.core.values import Cause, Outcome, TurnKey
from runner.drivers.port import Opening
from runner.drivers.registry import AgentEntry
from standfast.runner.v1 import runner_pb2
from standfast_chassis import span_names
from standfast_chassis.errors import StandfastError, StoreError
from standfast_chassis.logs import log_context
from standfast_chassis.trace_context import current_trace_id
from standfast_chassis.tracing import known, set_error

_log = structlog.get_logger("standfast.runner.turn")

MAILBOX_MAX = 256
_FLUSH_TIMEOUT_S = 2.0
_OPERATION = "operation"
_ATTACH = "attach"
_TIMER = "timer"
_REQUEST = "request"

_INTERRUPT_CAUSES = {
    Outcome.CANCELLED: "CANCEL",
    Outcome.TIMED_OUT: "TIMEOUT",
    Outcome.UNANSWERED_QUESTION: "UNANSWERED_QUESTION",
}


@dataclass(frozen=True, slots=True)
class AnswerCame:
    """A client's answer to a native request. `told` is done when it was written, or could not be."""

    request_id: str
    answer: Answer
    told: asyncio.Future[None]


_Mail = Posted | Expired | AnswerCame


def _no_such_request(request_id: str) -> NativeRequestUnknownError:
    return NativeRequestUnknownError(
        "The turn does not run any more, so it has no native request that could be answered.",
        {"request_id": request_id[:200]},
    )


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
        was_queued: bool = False,
    ) -> None:
        self._was_queued = was_queued
        self._asking: Asking | None = None
        self.message_digest = request.message.digest if request is not None else message_digest
        self._desk = Desk(parts, key, agent, feed, Standing(turn), request, Negotiation(parts, key))
        self._ending = Ending(self._desk)
        self._mailbox: asyncio.Queue[tuple[str, int, _Mail]] = asyncio.Queue(MAILBOX_MAX)
        self._epochs = {_OPERATION: 0, _ATTACH: 0, _REQUEST: 0}
        self._operation: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._lease: asyncio.Task[None] | None = None
        self._timers = Timers(lambda event, epoch: self._put(_TIMER, event, epoch))
        self._spans: dict[str, Span] = {}
        self._stop_is_asked = False
        self._answers: set[asyncio.Future[None]] = set()

    @property
    def key(self) -> TurnKey:
        return self._desk.key

    @property
    def feed(self) -> TurnFeed:
        return self._desk.feed

    # --- for others -------------------------------------------------------------------------------------------------
    @property
    def was_handed_over(self) -> bool:
        """The message may have reached the CLI."""
        reader = self._desk.reader
        return self._desk.request is None or (reader is not None and reader.frames_written)

    @property
    def goes_back(self) -> bool:
        """It came out of a queue and nothing of it was sent, because somebody was away: it is to wait again."""
        return self._was_queued and self._desk.machine.state is TurnState.FORGOTTEN

    def snapshot(self) -> runner_pb2.Turn:
        """The turn as it stands."""
        return self._desk.snapshot()

    def request_stop(self, outcome: Outcome, cause: Cause) -> None:
        """Asks for the turn's end. May be called in any state, and again."""
        if not self._stop_is_asked and not self._desk.machine.is_over:
            self._stop_is_asked = True
            self._put(_REQUEST, StopRequested(outcome, cause))

    def pending(self) -> list[runner_pb2.PendingRequest]:
        """The native requests that wait for an answer."""
        return self._asking.pending() if self._asking is not None else []

    async def answer(self, request_id: str, answer: Answer) -> None:
        """Answers a native request; written to the CLI when it returns. Raises what keeps it from being given.

        The turn may end meanwhile: then the request is closed, and that is raised.
        """
        if self._desk.machine.is_over or self._mailbox.qsize() >= MAILBOX_MAX // 2:
            raise _no_such_request(request_id)
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._put(_REQUEST, AnswerCame(request_id, answer, told))
        self._answers.add(told)
        told.add_done_callback(self._answers.discard)
        await told

    # --- the task ---------------------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Conducts the turn to its end. When it is cancelled the record stays as it is, and the next start goes on."""
        attributes = {
            span_names.GEN_AI_OPERATION_NAME: span_names.OPERATION_TURN,
            span_names.GEN_AI_AGENT_NAME: self._desk.agent.name,
            span_names.GEN_AI_AGENT_VERSION: self._desk.agent.version,
            span_names.GEN_AI_CONVERSATION_ID: self._desk.key.conversation_id,
            span_names.STANDFAST_TENANT: self._desk.key.tenant,
            span_names.STANDFAST_TURN_ID: self._desk.key.turn_id,
        }
        with (
            self._desk.parts.tracing.span(span_names.turn_span(self._desk.agent.name), attributes) as span,
            log_context(
                tenant=self._desk.key.tenant,
                conversation_id=self._desk.key.conversation_id,
                turn_id=self._desk.key.turn_id,
            ),
        ):
            self._desk.standing.turn.trace_id = self._desk.standing.turn.trace_id or current_trace_id() or ""
            try:
                async with asyncio.TaskGroup() as group:
                    self._group = group
                    writing = group.create_task(self._desk.feed.run())
                    try:
                        await self._conduct()
                    finally:
                        self._stop_everything()
                        self._refuse_answers()
                        writing.cancel()
            finally:
                if not self.feed.is_closed:
                    with suppress(StoreError, TimeoutError):
                        async with asyncio.timeout(_FLUSH_TIMEOUT_S):
                            await self.feed.flush()
                for open_span in self._spans.values():
                    open_span.end()
                self._note_end(span)

    async def _conduct(self) -> None:
        if self._desk.request is None:
            await self._perform_all(self._desk.machine.step(Resumed()))
        else:
            self._operate(claim(self._desk, self._desk.request))
        while not self._desk.machine.is_over:
            source, epoch, posted = await self._mailbox.get()
            if epoch != self._epoch(source):
                continue
            event = await self._as_event(posted)
            if event is not None:
                await self._step(event)

    async def _step(self, event: Event) -> None:
        effects = self._desk.machine.step(event)
        ends = self._desk.machine.stop is not None or self._desk.machine.state not in _UP_TO_RUNNING
        if self._asking is not None and ends:
            self._asking.stop()
        await self._perform_all(effects)

    async def _as_event(self, posted: _Mail) -> Event | None:
        """What is posted, as an event of the machine; None for what the machine need not know."""
        match posted:
            case SlotReady():
                return await self._slot_ready(posted)
            case ReportCame(report_jws):
                self._desk.report_jws = report_jws
                self._end_span(span_names.ACTIVATE)
                return ReportReceived() if self._desk.machine.state is TurnState.ACTIVATING else None
            case RequestsCame():
                return await self._requests_came()
            case Expired():
                return await self._asking.expire(posted) if self._asking is not None and self._runs else None
            case AnswerCame():
                await self._answer_came(posted)
                return None
            case FramesDue(frames):
                if self._desk.machine.state in _ATTACHED and self._desk.reader is not None:
                    with suppress(StandfastError):  # how the stream ended, its reader learns
                        await self._desk.reader.send_frames(frames)
                return None
            case AttachBroke():
                return self._explained(posted) if self._desk.machine.state in _ATTACHED else None
            case Observed():
                self._note_observation()
                return posted if self._desk.machine.state in _ATTACHED else None
            case Forwarded():
                return posted if self._desk.machine.state in (TurnState.RUNNING, TurnState.QUIESCING) else None
            case NativeEnded():
                self._end_span(span_names.NATIVE_TURN)
                return posted if self._desk.machine.state is TurnState.RUNNING else None
            case WillNotEnd() | StopTimedOut():
                return posted if self._desk.machine.state is TurnState.RUNNING else None
            case QuiesceTimedOut():
                return posted if self._desk.machine.state is TurnState.QUIESCING else None
            case LeaseLost():
                return posted if self._desk.machine.state is not TurnState.PREPARING else None
            case _:
                return posted

    async def _perform_all(self, effects: list[Effect]) -> None:
        for effect in effects:
            await self._perform(effect)
        if self._desk.machine.state is TurnState.QUIESCING and "quiesce" not in self._timers:
            self._begin_span(span_names.QUIESCE)
            self._timers.arm("quiesce", self._desk.parts.limits.quiesce_timeout_s, QuiesceTimedOut())
        if self._desk.machine.state not in (TurnState.ACTIVATING, TurnState.RUNNING, TurnState.QUIESCING):
            self._timers.disarm_all()

    async def _perform(self, effect: Effect) -> None:
        match effect:
            case Prepare():
                self._operate(prepare(self._desk))
            case OpenAttach():
                await self._open_attach()
            case Admit():
                self._operate(admit(self._desk))
            case SendMessage():
                await self._send_message()
            case Interrupt(outcome):
                await self._interrupt(outcome)
            case CloseAttach():
                self._close_attach()
            case AnnounceEnd(outcome, cause):
                self._ending.announce(outcome, cause)
            case Settle(replay=from_journal):
                self._end_span(span_names.QUIESCE)
                self._operate(self._ending.settle(from_journal=from_journal))
            case Abandon():
                if self._lease is not None:
                    self._lease.cancel()  # whoever comes next need not wait for a lease that nobody uses
                self._operate(self._ending.abandon(effect))
            case Finish(outcome, cause):
                await self._ending.finish(outcome, cause)
            case Forget(cause):
                await self._ending.durably(self._forget)
                self._desk.feed.abandon(cause)

    async def _forget(self) -> None:
        if self._was_queued:
            return  # it stays in the queue, and says so: no message is lost because somebody was away
        await self._desk.parts.store.forget(self.key)
        await self._desk.parts.events.forget(self.key)

    # --- the stream that carries the work ---------------------------------------------------------------------------
    async def _open_attach(self) -> None:
        grant = self._desk.grant
        assert grant is not None
        self._begin_span(span_names.ACTIVATE)
        limits = self._desk.parts.limits
        no_answer = Cause(
            "HANDSHAKE_FAILED",
            f"The CLI was not ready within {limits.handshake_timeout_s:g} s. Nothing was sent.",
        )
        self._timers.arm("handshake", limits.handshake_timeout_s, Unavailable(no_answer))
        self._lease = self._group.create_task(self._keep_lease(grant))
        epoch = self._epochs[_ATTACH]
        session = await self._desk.parts.hosts.attach(grant.host_address)
        reader = AttachedReader(
            session,
            self._desk.agent,
            opening=self._opening(grant),
            message_id=grant.message_id,
            policy=self._desk.parts.policy,
            tracing=self._desk.parts.tracing,
            feed=self._desk.feed,
            post=lambda posted: self._put(_ATTACH, posted, epoch),
            on_text=self._desk.standing.texts.append,
            expiry_of=self._begin_asking(grant).expiry_of,
        )
        self._desk.reader = reader

        async def read() -> None:
            try:
                with suppress(StandfastError):  # how the stream ended, its reader learns
                    await session.open(grant.activation_token)
                await reader.run()
            finally:
                session.close()
                self._desk.parts.hosts.release(grant.host_address)

        self._reading = self._group.create_task(read())

    def _opening(self, grant: Grant) -> Opening:
        settings = grant.settings
        return Opening(
            native_session_id=grant.locator.native_session_id or None,
            store=grant.locator.store or None,
            resumes=grant.resumes,
            workspace=grant.locator.cwd,
            model=settings.model or None,
            permission_mode=settings.permission_mode or "auto",
            options=dict(settings.options),
        )

    @property
    def _runs(self) -> bool:
        return self._desk.machine.state is TurnState.RUNNING and self._desk.reader is not None

    def _begin_asking(self, grant: Grant) -> Asking:
        assert self._desk.request is not None
        expiry_s = self._desk.request.request_expiry_s
        self._asking = Asking(
            self._desk,
            self._timers,
            mode=grant.settings.permission_mode or "auto",
            expiry_s=expiry_s if expiry_s is not None else self._desk.parts.limits.request_expiry_s,
        )
        return self._asking

    async def _requests_came(self) -> Event | None:
        """What the CLI asks while its turn runs. At any other time there is nobody to answer it, and the gate would say so."""
        reader = self._desk.reader
        came = reader.take_requests() if reader is not None else []
        return await self._asking.take(came) if self._asking is not None and self._runs else None

    async def _answer_came(self, came: AnswerCame) -> None:
        if came.told.done():
            return  # whoever asked has left
        if self._asking is None or not self._runs:
            came.told.set_exception(_no_such_request(came.request_id))
            return
        try:
            await self._asking.answer(came.request_id, came.answer)
        except StandfastError as error:
            came.told.set_exception(error)
        else:
            if not came.told.done():
                came.told.set_result(None)

    def _refuse_answers(self) -> None:
        for told in list(self._answers):
            if not told.done():
                told.set_exception(_no_such_request(""))

    async def _slot_ready(self, ready: SlotReady) -> Event | None:
        assert self._desk.reader is not None
        assert self._desk.grant is not None
        self._desk.process_is_new = ready.process_is_new
        self._desk.standing.turn.generations.process = ready.process_generation
        try:
            if self._desk.parts.policy.check_identity:
                check_activated(locator=self._desk.grant.locator, native_session_id=ready.native_session_id)
        except StandfastError as error:
            return not_possible(error)
        with suppress(StandfastError):  # as above
            await self._desk.reader.shake_hands(ready)
        return None

    async def _send_message(self) -> None:
        assert self._desk.request is not None
        assert self._desk.reader is not None
        self._begin_span(span_names.NATIVE_TURN)
        limits = self._desk.parts.limits
        limit_s = (
            self._desk.request.turn_limit_s if self._desk.request.turn_limit_s is not None else limits.turn_limit_s
        )
        if limit_s > 0:
            late = Cause("TURN_TIMEOUT", f"The turn's time limit of {limit_s:g} s ran out.")
            self._timers.arm("turn limit", limit_s, StopRequested(Outcome.TIMED_OUT, late))
        silence_s = self._desk.request.silence_limit_s
        self._watch_silence(silence_s if silence_s is not None else limits.silence_limit_s)
        if self._was_queued:
            # From here on it may have been sent: a restart finds it among the turns, and no longer in the queue.
            await self._ending.durably(lambda: self._desk.parts.store.dequeue(self.key))
        # Once, and never again: whatever becomes of it, the message is not handed over a second time.
        with suppress(StandfastError):  # how the stream ended, its reader learns
            await self._desk.reader.send_message(self._desk.admission_jws, self._desk.request.message.text)

    def _watch_silence(self, limit_s: float) -> None:
        """A CLI that prints nothing for that long is ended. While it waits for a person it is not silent."""
        if limit_s <= 0:
            return
        reader, loop = self._desk.reader, asyncio.get_running_loop()
        assert reader is not None
        reader.last_output_at = loop.time()

        def last_sign_at() -> float:
            if self._asking is not None and self._asking.waits:
                reader.last_output_at = loop.time()
            return reader.last_output_at

        silent = Cause("SILENCE_TIMEOUT", f"The CLI printed nothing for {limit_s:g} s.")
        self._timers.arm_silence(limit_s, last_sign_at, StopRequested(Outcome.TIMED_OUT, silent))

    async def _interrupt(self, outcome: Outcome) -> None:
        assert self._desk.reader is not None
        self._timers.arm("interrupt", self._desk.parts.limits.interrupt_wait_s, StopTimedOut())
        with suppress(StandfastError):  # as above
            await self._desk.reader.interrupt(_INTERRUPT_CAUSES[outcome])

    def _close_attach(self) -> None:
        self._epochs[_ATTACH] += 1
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        for name in (span_names.ACTIVATE, span_names.NATIVE_TURN, span_names.QUIESCE):
            self._end_span(name)

    def _explained(self, broke: AttachBroke) -> AttachBroke:
        """A CLI that refuses to resume means that the session is lost, which is what the client must hear."""
        if broke.cause.reason != "SESSION_NOT_RESUMED" or self._desk.grant is None or not self._desk.grant.resumes:
            return broke
        self._desk.standing.take_lost(broke.cause.reason)
        metadata = dict(broke.cause.metadata) | {
            "cause": "SESSION_NOT_RESUMED",
            "cure": "restore the session's native store, or open a new conversation",
            "readable": "the workspace and what is left of the native store",
        }
        cause = Cause("CONTEXT_LOST", broke.cause.message, tuple(sorted(metadata.items())))
        return AttachBroke(cause, broke.before_forwarded, broke.refused)

    def _note_observation(self) -> None:
        observed = self._desk.reader.observed if self._desk.reader is not None else None
        if observed is not None:
            self._desk.standing.turn.process_disposition = observed.disposition
            self._desk.standing.turn.process_reason = observed.disposition_reason

    # --- the lease --------------------------------------------------------------------------------------------------
    async def _keep_lease(self, grant: Grant) -> None:
        """Renews the activation until it is cancelled, or the manager says that it is no longer ours."""
        lease_s = grant.lease_s
        wait_s = lease_s / 3
        while True:
            await asyncio.sleep(wait_s)
            try:
                lease_s = await self._desk.talk.renew(grant)
                wait_s = lease_s / 3
            except StandfastError as error:
                if error.reason in ("GENERATION_STALE", "ACTIVATION_EXPIRED"):
                    self._put(_REQUEST, LeaseLost(cause_of(error)))
                    return
                wait_s = min(lease_s / 3, 1.0)

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

    def _put(self, source: str, posted: _Mail, epoch: int | None = None) -> None:
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
        self._spans[name] = self._desk.parts.tracing.start_span(name)

    def _end_span(self, name: str) -> None:
        span = self._spans.pop(name, None)
        if span is not None:
            span.end()

    def _note_end(self, span: Span) -> None:
        for name, value in known(self._desk.standing.span_attributes()).items():
            span.set_attribute(name, value)
        if self._desk.standing.turn.failure.reason:
            set_error(span, self._desk.standing.turn.failure.reason)


_UP_TO_RUNNING = frozenset({TurnState.PREPARING, TurnState.ACTIVATING, TurnState.ADMITTING, TurnState.RUNNING})
_ATTACHED = frozenset({TurnState.ACTIVATING, TurnState.ADMITTING, TurnState.RUNNING, TurnState.QUIESCING})
