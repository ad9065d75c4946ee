"""Between the runner's values and the protos. No decision is made here."""

from __future__ import annotations

from runner.core.events import (
    AssistantMessage,
    NativeRequest,
    Normalised,
    ProviderRetry,
    TextDelta,
    ToolCall,
    ToolResult,
    Usage,
    Warned,
)
from runner.core.settlement import Finding, ManagerAnswer
from runner.core.values import Cause, ConversationKey, NativeLocator, Outcome, TurnKey
from runner.core.verdict import Judgement, Verdict
from standfast.runner.v1 import runner_pb2
from standfast.sandbox.v1 import sandbox_manager_pb2 as sandbox_pb
from standfast.types.v1 import types_pb2

_OUTCOMES: dict[Outcome, types_pb2.Outcome.ValueType] = {
    Outcome.COMPLETED: types_pb2.OUTCOME_COMPLETED,
    Outcome.FAILED: types_pb2.OUTCOME_FAILED,
    Outcome.CANCELLED: types_pb2.OUTCOME_CANCELLED,
    Outcome.INTERRUPTED: types_pb2.OUTCOME_INTERRUPTED,
    Outcome.TIMED_OUT: types_pb2.OUTCOME_TIMED_OUT,
    Outcome.UNANSWERED_QUESTION: types_pb2.OUTCOME_UNANSWERED_QUESTION,
    Outcome.NOT_SENT: types_pb2.OUTCOME_NOT_SENT,
    Outcome.REFUSED: types_pb2.OUTCOME_REFUSED,
}
_OUTCOMES_BACK = {number: outcome for outcome, number in _OUTCOMES.items()}

_VERDICTS: dict[Verdict, types_pb2.Verdict.ValueType] = {
    Verdict.CONFIRMED: types_pb2.VERDICT_CONFIRMED,
    Verdict.CONTRADICTED: types_pb2.VERDICT_CONTRADICTED,
    Verdict.UNPROVEN: types_pb2.VERDICT_UNPROVEN,
}
_VERDICTS_BACK = {number: verdict for verdict, number in _VERDICTS.items()}


def outcome_to_wire(outcome: Outcome) -> types_pb2.Outcome.ValueType:
    return _OUTCOMES[outcome]


def outcome_from_wire(number: types_pb2.Outcome.ValueType) -> Outcome | None:
    return _OUTCOMES_BACK.get(number)


def verdict_to_wire(verdict: Verdict) -> types_pb2.Verdict.ValueType:
    return _VERDICTS[verdict]


def verdict_from_wire(number: types_pb2.Verdict.ValueType) -> Verdict | None:
    return _VERDICTS_BACK.get(number)


def conversation_to_wire(key: ConversationKey) -> types_pb2.ConversationKey:
    return types_pb2.ConversationKey(tenant=key.tenant, conversation_id=key.conversation_id)


def turn_conversation(key: TurnKey) -> types_pb2.ConversationKey:
    return types_pb2.ConversationKey(tenant=key.tenant, conversation_id=key.conversation_id)


def locator_to_wire(locator: NativeLocator | None) -> types_pb2.NativeLocator | None:
    if locator is None:
        return None
    return types_pb2.NativeLocator(
        agent=locator.agent, native_session_id=locator.native_session_id, cwd=locator.cwd, store=locator.store
    )


def locator_from_wire(locator: types_pb2.NativeLocator) -> NativeLocator | None:
    """None for one without a session id: that is how an unset field reads."""
    if not locator.native_session_id:
        return None
    return NativeLocator(locator.agent, locator.native_session_id, locator.cwd, locator.store)


def granted_from_wire(locator: types_pb2.NativeLocator) -> NativeLocator:
    """A grant's locator: what the CLI is to name itself is empty in it."""
    return NativeLocator(locator.agent, locator.native_session_id, locator.cwd, locator.store)


def failure_to_wire(cause: Cause | None) -> runner_pb2.Failure | None:
    if cause is None:
        return None
    return runner_pb2.Failure(
        reason=cause.reason,
        message=cause.message,
        provider_status=cause.provider_status,
        metadata=dict(cause.metadata),
    )


def own_findings(judgement: Judgement) -> list[types_pb2.Finding]:
    if judgement.reason is None:
        return []
    return [
        types_pb2.Finding(code=judgement.reason, expected=judgement.expected, observed=judgement.observed or "nothing")
    ]


def answer_from_wire(settlement: sandbox_pb.Settlement) -> ManagerAnswer:
    return ManagerAnswer(
        saved=settlement.saved,
        outcome=outcome_from_wire(settlement.outcome),
        verdict=verdict_from_wire(settlement.manager_verdict),
        store_verdict=types_pb2.StoreVerdict.Name(settlement.store_verdict).removeprefix("STORE_VERDICT_"),
        locator=locator_from_wire(settlement.locator) if settlement.HasField("locator") else None,
        findings=tuple(Finding(found.code, found.expected, found.observed) for found in settlement.findings),
    )


def event_to_wire(body: Normalised) -> runner_pb2.TurnEvent:
    """The event without its number and time."""
    match body:
        case TextDelta(text, parent_id):
            return runner_pb2.TurnEvent(parent_id=parent_id or "", text_delta=runner_pb2.TextDelta(text=text))
        case AssistantMessage():
            message = runner_pb2.AssistantMessage(message_id=body.message_id, text=body.text, aborted=body.aborted)
            return runner_pb2.TurnEvent(parent_id=body.parent_id or "", assistant_message=message)
        case ToolCall():
            call = runner_pb2.ToolCall(call_id=body.call_id, tool=body.tool, input_json=body.input_json)
            return runner_pb2.TurnEvent(parent_id=body.parent_id or "", tool_call=call)
        case ToolResult():
            result = runner_pb2.ToolResult(call_id=body.call_id, text=body.text, is_error=body.is_error)
            return runner_pb2.TurnEvent(parent_id=body.parent_id or "", tool_result=result)
        case Usage():
            usage = runner_pb2.Usage(
                input_tokens=body.input_tokens,
                output_tokens=body.output_tokens,
                cache_read_tokens=body.cache_read_tokens,
                cache_write_tokens=body.cache_write_tokens,
            )
            return runner_pb2.TurnEvent(usage=usage)
        case ProviderRetry():
            retry = runner_pb2.ProviderRetry(
                attempt=_int32(body.attempt),
                attempts_max=None if body.attempts_max is None else _int32(body.attempts_max),
                delay_ms=None if body.delay_ms is None else _int32(body.delay_ms),
                status=None if body.status is None else _int32(body.status),
            )
            return runner_pb2.TurnEvent(parent_id=body.parent_id or "", provider_retry=retry)
        case Warned(code, message):
            return runner_pb2.TurnEvent(warning=runner_pb2.Warning(code=code, message=message))
        case NativeRequest():
            request = runner_pb2.NativeRequest(
                request_id=body.request_id, kind=body.kind, payload_json=body.payload_json
            )
            return runner_pb2.TurnEvent(native_request=request)


def _int32(value: int) -> int:
    """A CLI can print any number; the field holds 32 bits."""
    return max(-(2**31), min(2**31 - 1, value))
