"""May this answer be committed, as far as its reasoning goes? The decision of one candidate, in the order of its rules.

DIRECT and COMPATIBLE commit. RECOVER and REJECT do not; `issue` says why, and only MISSING and INCOMPLETE may be asked
for again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from direct_agent.core.endpoint import (
    Endpoint,
    EndpointKind,
    Wire,
    allows_empty_substitute,
    requires_reasoning,
)
from direct_agent.core.native_text import converts_to_text
from direct_agent.transcript import AssistantMessage, Finish, ReasoningKind, ReasoningState


class Decision(StrEnum):
    DIRECT = "direct"
    COMPATIBLE = "compatible"
    RECOVER = "recover"
    REJECT = "reject"


class Issue(StrEnum):
    """TRUNCATED: by our own size limit. UNFINISHED: the provider stopped the answer half way."""

    MISSING = "missing"
    INCOMPLETE = "incomplete"
    TRUNCATED = "truncated"
    UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True)
class Acceptance:
    decision: Decision
    issue: Issue | None = None

    @property
    def commits(self) -> bool:
        return self.decision in (Decision.DIRECT, Decision.COMPATIBLE)


def accept(endpoint: Endpoint, message: AssistantMessage, *, is_whole: bool) -> Acceptance:
    """The decision for a complete candidate, or for a stored message (`is_whole` True)."""
    if not is_whole and endpoint.wire is Wire.RESPONSES:
        # Text that hit its limit is an answer; a call whose answer stopped half way is not one, on any endpoint.
        if message.tool_calls:
            return Acceptance(Decision.REJECT, Issue.UNFINISHED)
        return Acceptance(Decision.DIRECT)
    if not requires_reasoning(endpoint, message):
        return Acceptance(Decision.DIRECT)
    if message.reasoning_state is ReasoningState.TRUNCATED:
        return Acceptance(Decision.REJECT, Issue.TRUNCATED)
    if not is_whole:
        return Acceptance(Decision.REJECT, Issue.UNFINISHED)
    if message.reasoning_state is ReasoningState.INCOMPLETE or any(not each.is_complete for each in message.reasoning):
        return Acceptance(Decision.REJECT, Issue.INCOMPLETE)
    if is_replayable(endpoint, message):
        return Acceptance(Decision.DIRECT)
    if endpoint.kind is EndpointKind.NATIVE_CLAUDE and converts_to_text(message):
        return Acceptance(Decision.COMPATIBLE)
    if allows_empty_substitute(endpoint):
        return Acceptance(Decision.COMPATIBLE)
    return Acceptance(Decision.RECOVER, Issue.MISSING)


def is_replayable(endpoint: Endpoint, message: AssistantMessage) -> bool:
    """Whether the reasoning a message holds may be sent back as it is."""
    if not message.reasoning:
        return False
    match endpoint.wire:
        case Wire.CHAT:
            return any(each.text.strip() for each in message.reasoning)
        case Wire.RESPONSES:
            return any(
                each.kind is ReasoningKind.ITEM and (each.text.strip() or each.data) for each in message.reasoning
            )
        case Wire.MESSAGES:
            return all(
                _is_block_replayable(endpoint, each.kind, each.text, each.signature, each.data)
                for each in message.reasoning
            )


def _is_block_replayable(
    endpoint: Endpoint, kind: ReasoningKind, text: str, signature: str | None, data: str | None
) -> bool:
    if kind is ReasoningKind.REDACTED:
        return bool(data)
    if kind is not ReasoningKind.THINKING and kind is not ReasoningKind.TEXT:
        return False
    if endpoint.kind is EndpointKind.NATIVE_CLAUDE:
        return bool(signature)
    return bool(signature or text)


def is_healthy_tool_round(acceptance: Acceptance, message: AssistantMessage) -> bool:
    """Three of these end an incident of missing reasoning."""
    return acceptance.decision is Decision.DIRECT and bool(message.tool_calls) and message.finish is not Finish.LENGTH
