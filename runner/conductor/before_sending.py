"""The steps before a message is sent: claim, prepare, admit. Each gives exactly one event of the machine, and raises
nothing of the runner's own.
"""

from __future__ import annotations

from runner.adapters.wire import locator_from_wire, outcome_from_wire
from runner.conductor.desk import Desk
from runner.conductor.parts import TurnRequest
from runner.core.errors import cause_of
from runner.core.preparation import check_admitted, check_named
from runner.core.turn import Admitted, Claimed, Event, KnownOver, Prepared, Refused, Resumed, Unavailable
from runner.core.values import Cause, NativeLocator, Outcome
from runner.status import is_recorded
from standfast.runner.v1 import runner_pb2
from standfast.sandbox.v1 import sandbox_manager_pb2 as sandbox_pb
from standfast.types.v1 import types_pb2
from standfast_chassis import span_names
from standfast_chassis.errors import StandfastError
from standfast_chassis.tracing import set_error


async def claim(desk: Desk, request: TurnRequest) -> Event:
    """Claims the turn in the manager, and resolves what a former turn of the conversation left behind."""
    try:
        known_here = await desk.parts.store.conversation(desk.key.conversation)
        knows = known_here is not None and (known_here.settled_turns > 0 or known_here.locator.saved is not None)
        answer = await desk.talk.claim(request, knows_conversation=knows)
        if answer.disposition == "ENDED":
            return _known_over(desk, answer.turn)
        if answer.HasField("unresolved"):
            await desk.talk.resolve_former(answer.unresolved)
        if answer.disposition == "RESUME" and answer.turn.state == "ADMITTED":
            # This runner admitted it and then lost its own record: whether it was sent only the journal knows.
            return Resumed()
    except StandfastError as error:
        return not_possible(error)
    return Claimed()


def _known_over(desk: Desk, turn: sandbox_pb.ManagedTurn) -> Event:
    desk.standing.take_managed(turn)
    outcome = outcome_from_wire(turn.outcome)
    if outcome is None:
        outcome = Outcome.REFUSED if turn.state == "REFUSED" else Outcome.INTERRUPTED
    cause = None
    if turn.reason:
        cause = Cause(turn.reason, f"Turn {turn.turn_id} ended before: {turn.reason}.")
    desk.warn("EVENTS_NOT_KEPT", "This turn was run elsewhere; its events are not kept here.")
    return KnownOver(outcome, cause)


async def prepare(desk: Desk) -> Event:
    """Asks for the activation and checks the grant against the runner's own record."""
    assert desk.request is not None
    with desk.parts.tracing.span(span_names.PREPARE) as span:
        try:
            known_here = await desk.parts.store.conversation(desk.key.conversation)
            assert known_here is not None
            grant = await desk.talk.prepare(
                desk.request,
                record=known_here.locator,
                has_settled_turns=known_here.settled_turns > 0,
            )
        except StandfastError as error:
            set_error(span, error)
            return not_possible(error)
    desk.grant = grant
    desk.standing.take_grant(grant)
    return Prepared()


async def admit(desk: Desk) -> Event:
    """Asks for the admission and checks the state against what this side saw of the process."""
    assert desk.request is not None
    assert desk.grant is not None
    assert desk.reader is not None
    with desk.parts.tracing.span(span_names.ADMIT) as span:
        try:
            answer = await desk.talk.admit(desk.request, desk.grant, desk.report_jws)
            state = types_pb2.ContextState.Name(answer.context_state).removeprefix("CONTEXT_STATE_")
            span.set_attribute(span_names.STANDFAST_CONTEXT_STATE, state)
            check_admitted(
                context_state=state,
                process_is_new=desk.process_is_new,
                resumes=desk.grant.resumes,
                handshake_refused=desk.reader.handshake_refused,
            )
            desk.take_locator(_locator(desk, answer))
        except StandfastError as error:
            set_error(span, error)
            return not_possible(error)
    desk.admission_jws = answer.admission_jws
    desk.standing.take_admission(answer)
    context = runner_pb2.ContextDecided(
        state=answer.context_state,
        reason=answer.context_reason,
        interrupted_turn_id=desk.grant.interrupted_turn_id,
    )
    desk.feed.publish(runner_pb2.TurnEvent(context=context))
    return Admitted()


def _locator(desk: Desk, answer: sandbox_pb.AdmitTurnResponse) -> NativeLocator:
    assert desk.grant is not None
    assert desk.reader is not None
    admitted = locator_from_wire(answer.locator) if answer.HasField("locator") else None
    if not desk.parts.policy.check_identity:
        return admitted or desk.grant.locator
    named = desk.reader.handshake
    return check_named(
        granted=desk.grant.locator,
        admitted=admitted,
        session_id=named.session_id if named is not None else None,
        store=named.store if named is not None else None,
        process_is_new=desk.process_is_new,
    )


def not_possible(error: StandfastError) -> Event:
    """Before anything was sent: a recorded refusal, or something that a repeat may get past."""
    cause = cause_of(error)
    return Refused(cause) if is_recorded(error.reason) else Unavailable(cause)
