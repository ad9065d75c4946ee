"""How a turn ends: the runner's verdict, the settlement, the giving up, and the record of all that."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

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
from runner.conductor.desk import Desk
from runner.conductor.negotiation import activation_of, has_failed
from runner.conductor.replay import Activation, replay
from runner.conductor.retries import ask
from runner.core.errors import LocatorMismatchError, ReasonedError, cause_of
from runner.core.events import AssistantMessage, NativeTurnEnded, Normalised
from runner.core.identity import IdentityJudge
from runner.core.settlement import Settled as Decision
from runner.core.settlement import native_failure, own_failure, settle
from runner.core.turn import Abandon, Abandoned, Event, NativeEndFound, NotEnded, Settled, TurnState
from runner.core.values import Cause, NativeLocator, Outcome
from runner.core.verdict import Judgement, Verdict
from standfast.runner.v1 import runner_pb2
from standfast_chassis import span_names
from standfast_chassis.errors import StandfastError, StoreError
from standfast_chassis.tracing import set_error

_log = structlog.get_logger("standfast.runner.ending")


class Ending:
    """The end of one turn."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def settle(self, *, from_journal: bool) -> Event:
        """The runner's verdict, then the manager's answer, then what both come to; recorded when it returns.

        `from_journal`: the bytes are read again, because what was read live is not all, or was another runner's.
        """
        desk = self._desk
        try:
            activation, locator = await self._where()
        except StandfastError as error:
            await self._record_end(_unsaved(error), save=None, state=TurnState.SETTLED)
            return Settled()
        if from_journal or desk.reader is None:
            desk.feed.ledger.begin_replay()
            desk.standing.texts.clear()
            read = await replay(desk.parts, desk.agent, activation, publish=self._publish_replayed, for_s=None)
            judge, native_end, failed = read.judge, read.native_end, has_failed(read)
        else:
            judge, native_end = desk.reader.judge, desk.machine.native_end
            failed = native_end is None or native_end.failed
        with desk.parts.tracing.span(span_names.VERIFY_RUNNER) as span:
            own = await self._verify(judge, locator)
            span.set_attribute(span_names.STANDFAST_VERDICT, own.verdict.value)
        with desk.parts.tracing.span(span_names.SETTLE) as span:
            try:
                settlement = await desk.talk.settle(
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
                await self._record_end(_unsaved(error), save=None, state=TurnState.SETTLED)
                return Settled()
        desk.standing.take_settlement(settlement)
        desk.standing.turn.runner_verdict = verdict_to_wire(own.verdict)
        desk.standing.turn.findings.extend(own_findings(own))
        stop = desk.machine.stop
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

    async def abandon(self, effect: Abandon) -> Event:
        """Gives the turn up at the manager, which knows by the host agent's journal what really became of it."""
        desk = self._desk
        # What was surely never sent is over at once for the client's purposes; telling the manager is a courtesy that
        # frees the activation before its lease ends. What may have been sent only the manager can answer.
        for_s = None if effect.may_have_been_sent else desk.parts.limits.give_up_wait_s
        try:
            turn = await desk.talk.abandon(effect.outcome, effect.cause, for_s=for_s)
        except StandfastError as error:
            if error.reason == "NATIVE_END_SEEN":
                return NativeEndFound()
            _log.warning("the manager did not take back the turn", reason=error.reason, message=error.message)
            if error.reason == "TURN_UNKNOWN" and desk.request is None:
                # This runner died between its own record and the claim: without a claim nothing was sent.
                return Abandoned(Outcome.NOT_SENT, effect.cause)
            return Abandoned(effect.outcome, effect.cause)
        if turn.state == "SETTLED":
            return NativeEndFound()
        desk.standing.take_managed(turn)
        answered = outcome_from_wire(turn.outcome)
        outcome = effect.outcome
        if effect.may_have_been_sent and answered is not None:
            outcome = answered
        cause = effect.cause
        if cause is None and turn.reason:
            cause = Cause(turn.reason, f"The turn was given up: {turn.reason}.")
        return Abandoned(outcome, cause)

    async def _where(self) -> tuple[Activation, NativeLocator]:
        """The activation and the locator it ran on: from the grant, or from the manager after a restart."""
        desk = self._desk
        if desk.grant is not None:
            grant = desk.grant
            activation = Activation(grant.activation_id, grant.host_address, grant.message_id, grant.locator)
            return activation, grant.locator
        turn = await desk.talk.lookup(for_s=None)
        desk.standing.take_managed(turn)
        locator = locator_from_wire(turn.locator)
        if locator is None:
            raise ReasonedError("LOCATOR_REQUIRED", f"The manager names no locator of turn {desk.key.turn_id}.")
        return activation_of(turn, locator), locator

    async def _verify(self, judge: IdentityJudge, locator: NativeLocator) -> Judgement:
        """The runner's verdict, durable before the manager is asked: a Confirmed one makes the locator VERIFIED."""
        desk = self._desk
        own = judge.verdict()
        desk.standing.turn.runner_verdict = verdict_to_wire(own.verdict)
        if own.verdict is Verdict.CONFIRMED:
            try:
                await self.durably(lambda: desk.parts.store.verify_locator(desk.key, locator, desk.snapshot()))
            except LocatorMismatchError as error:
                observed = error.metadata.get("observed")
                own = Judgement(Verdict.CONTRADICTED, error.reason, error.metadata.get("expected", ""), observed)
        else:
            await self.durably(lambda: desk.parts.store.save_snapshot(desk.key, desk.snapshot()))
        return own

    async def _close(self, decision: Decision, locator: NativeLocator) -> None:
        try:
            await self._record_end(decision, save=locator if decision.save else None, state=TurnState.SETTLED)
        except LocatorMismatchError as error:
            # The record says no at the last moment: nothing is overwritten, and the turn fails by name.
            await self._record_end(_unsaved(error), save=None, state=TurnState.SETTLED)

    async def finish(self, outcome: Outcome, cause: Cause | None) -> None:
        """Records an end without a settlement of this runner's."""
        desk = self._desk
        decision = Decision(outcome, save=False, unconfirmed=True, cause=cause)
        state = TurnState.SETTLED if desk.standing.is_settled_elsewhere else TurnState.ENDED
        await self._record_end(decision, save=None, state=state)

    async def _record_end(self, decision: Decision, *, save: NativeLocator | None, state: TurnState) -> None:
        desk = self._desk
        refusal = desk.standing.take_end(decision, state)
        await self.durably(lambda: desk.feed.close(desk.standing.turn, refusal=refusal, save=save))

    async def durably(self, write: Callable[[], Awaitable[None]]) -> None:
        """A write that the turn cannot go on without: tried again for as long as the store cannot take it."""
        desk = self._desk
        await ask(
            write,
            what="the runner's own store",
            first_s=desk.parts.limits.retry_first_s,
            max_s=desk.parts.limits.retry_max_s,
            for_s=None,
            again=lambda error: isinstance(error, StoreError),
        )

    def announce(self, outcome: Outcome, cause: Cause | None) -> None:
        """Tells the client that the native turn is over; the reply need not wait for the verification."""
        desk = self._desk
        end = desk.machine.native_end
        failure = cause
        if failure is None and outcome is Outcome.FAILED and end is not None:
            failure = native_failure(end)
        judge = desk.reader.judge if desk.reader is not None else None
        if judge is not None and judge.contradiction is not None:
            outcome, failure = Outcome.FAILED, own_failure(judge.contradiction)
        ended = runner_pb2.TurnEnded(
            outcome=outcome_to_wire(outcome),
            settlement=runner_pb2.SETTLEMENT_STATE_SETTLING,
            failure=failure_to_wire(failure),
        )
        if isinstance(end, NativeTurnEnded) and end.reason:
            desk.standing.turn.end_reason = end.reason
        desk.feed.publish(runner_pb2.TurnEvent(ended=ended))

    def _publish_replayed(self, body: Normalised) -> None:
        desk = self._desk
        if isinstance(body, AssistantMessage) and body.parent_id is None:
            desk.standing.texts.append(body.text)
        if desk.feed.ledger.take_from_driver():
            desk.feed.publish(event_to_wire(body), from_driver=True)


def _unsaved(error: StandfastError) -> Decision:
    return Decision(Outcome.FAILED, save=False, unconfirmed=True, cause=cause_of(error))
