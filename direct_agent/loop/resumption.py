"""What a new turn begins with when the one before was cut off: results for calls that have none, and facts for the model.

    no result, a change call without an intent            not started: nothing is written before the intent is durable
    no result, not recorded as started, may change        not started
    no result, anything else                              unknown: placeholder, never shown as success
    unknown, with intents                                 each target is looked at now; all satisfied: do not repeat

Nothing here writes. `look` blocks on the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from direct_agent.intents.pending import PendingCalls, unknown_calls, unresolved_calls
from direct_agent.intents.verify import CallProof, Look, prove
from direct_agent.loop.ports import Past
from direct_agent.loop.tool_texts import result
from direct_agent.recovery.facts import CallFact, FileFinding, state_block
from direct_agent.transcript import (
    INTERRUPTED_OUTPUT,
    AssistantMessage,
    Message,
    RunState,
    ToolCall,
    ToolResult,
    Transcript,
    UserMessage,
)

NOT_STARTED_OUTPUT = "Not executed: the turn was interrupted before this call began."
SATISFIED_LINE = (
    "Postcondition satisfied, do not repeat: the targets of these interrupted calls hold exactly what they asked for: "
)
_TOOLS_SHOWN_MAX = 24


@dataclass(frozen=True, slots=True)
class Resumption:
    """`placeholders` come before the new message, `facts` with it; `pending` are what must not be repeated blindly."""

    placeholders: tuple[ToolResult, ...] = ()
    facts: str | None = None
    pending: tuple[ToolCall, ...] = ()
    past: Past = field(default_factory=Past)


class CallKinds:
    """What the toolbox says of a tool's name. A name that it does not know may have done anything."""

    def __init__(self, read_only: Sequence[str], changes: Sequence[str]) -> None:
        self._read_only, self._changes = frozenset(read_only), frozenset(changes)

    def is_read_only(self, name: str) -> bool:
        return name in self._read_only

    def is_change(self, name: str) -> bool:
        return name in self._changes


def resume(unsettled: Transcript, kinds: CallKinds, has_started: Callable[[ToolCall], bool], look: Look) -> Resumption:
    """`unsettled`: the messages since the last completed turn."""
    placeholders = tuple(_placeholder(call, kinds, has_started) for call in unresolved_calls(unsettled))
    past: tuple[Message, ...] = (*unsettled, *placeholders)
    unknown = tuple(call for call in unknown_calls(past) if not kinds.is_read_only(call.name))
    if not placeholders and not unknown:
        return Resumption()
    proofs = {id(call): prove(call.intents, look) for call in unknown}
    findings = {call.call_id: _findings(proofs[id(call)]) for call in unknown}
    text = state_block(_facts(past, placeholders, unknown, findings))
    satisfied = [call.name for call in unknown if proofs[id(call)].is_satisfied]
    if satisfied:
        text = f"{text}\n{SATISFIED_LINE}{', '.join(satisfied[:_TOOLS_SHOWN_MAX])}."
    has_unknown = any(not proof.is_satisfied for proof in proofs.values())
    return Resumption(placeholders, text, unknown, Past(has_unknown, findings))


def pending_of(resumption: Resumption) -> PendingCalls:
    return PendingCalls(resumption.pending)


def _placeholder(call: ToolCall, kinds: CallKinds, has_started: Callable[[ToolCall], bool]) -> ToolResult:
    is_untouched = kinds.is_change(call.name) and not call.intents
    may_have_run = kinds.is_change(call.name) or kinds.is_read_only(call.name) or has_started(call)
    if is_untouched or not may_have_run:
        return result(call, NOT_STARTED_OUTPUT, RunState.NOT_STARTED, is_error=True)
    return result(call, INTERRUPTED_OUTPUT, RunState.UNKNOWN, is_error=True)


def _findings(proof: CallProof) -> tuple[FileFinding, ...]:
    return tuple(FileFinding(path, state.value) for path, state in proof.states)


def _facts(
    past: Sequence[Message],
    placeholders: Sequence[ToolResult],
    unknown: Sequence[ToolCall],
    findings: Mapping[str, tuple[FileFinding, ...]],
) -> list[CallFact]:
    """One fact a call that was left open, in order; the newest cut-off turns only."""
    ours = {result.call_id for result in placeholders} | {call.call_id for call in unknown}
    states = {each.call_id: each.state for each in past if isinstance(each, ToolResult)}
    facts = []
    user_turn = 0
    for message in past:
        if isinstance(message, UserMessage):
            user_turn += 1
        elif isinstance(message, AssistantMessage):
            facts += [
                CallFact(
                    call.call_id,
                    call.name,
                    states.get(call.call_id) or RunState.UNKNOWN,
                    user_turn,
                    findings=findings.get(call.call_id, ()),
                )
                for call in message.tool_calls
                if call.call_id in ours
            ]
    return facts
