"""One call to the gateway, by the provider code of the direct agent: one HTTP request, no retry, no repair."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from deploy.preflight.judgement import judge
from deploy.preflight.questions import Question
from deploy.preflight.result import Call
from direct_agent.adapters.http_transport import HttpTransport
from direct_agent.adapters.real_clock import RealClock
from direct_agent.conductors.attempt import AttemptResult, ReadLimits, run_attempt
from direct_agent.core.endpoint import Endpoint, Thinking, Wire, kind_of
from direct_agent.core.request_settings import RequestSettings
from direct_agent.providers.request import frozen_request
from direct_agent.transcript import Finish

OUTPUT_TOKENS_MAX = 16_000
_CUT = (Finish.LENGTH, Finish.INCOMPLETE, Finish.CONTENT_FILTER)


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Seconds. `call_s` bounds one whole call."""

    call_s: float = 600.0
    idle_s: float = 120.0


def endpoint_of(url: str, model: str) -> Endpoint:
    """The gateway as an endpoint: Messages, native adaptive thinking at high effort."""
    kind = kind_of(Wire.MESSAGES, url)
    name, variable = "the gateway", "the file named by CLOUD_AGENT_TEST_API_KEY_FILE"
    return Endpoint(Wire.MESSAGES, kind, url, model, Thinking.ADAPTIVE, "high", OUTPUT_TOKENS_MAX, name, variable)


async def asked(
    endpoint: Endpoint, transport: HttpTransport, question: Question, repetition: int, limits: CallLimits
) -> Call:
    """Asks one question once."""
    request = frozen_request(endpoint, question.history, RequestSettings())
    read = ReadLimits(idle_s=limits.idle_s)
    try:
        async with asyncio.timeout(limits.call_s):
            result = await run_attempt(
                endpoint, request, endpoint.max_tokens, transport, RealClock(), read, lambda _delta: None
            )
    except TimeoutError:
        error = f"no complete answer within {limits.call_s:.0f} s"
        return Call(question.group, repetition, "", False, None, error, (), None, None)
    return _call(question, repetition, result)


def _call(question: Question, repetition: int, result: AttemptResult) -> Call:
    if result.candidate is None:
        message = result.fault.message if result.fault is not None else "the call ended without an answer"
        return Call(question.group, repetition, "", False, result.request_id, message, (), None, None)
    answer = result.candidate.message
    judgement = judge(answer.text, question.facts)
    error = (
        f"the answer is not whole ({answer.finish.value})"
        if answer.finish in _CUT or not result.candidate.is_whole
        else None
    )
    return Call(
        question.group,
        repetition,
        answer.text,
        any(each.text.strip() or each.data or each.signature for each in answer.reasoning),
        result.request_id or result.candidate.response_id,
        error,
        judgement.missing_facts,
        judgement.lost_sentence,
        result.candidate.usage.completion,
    )
