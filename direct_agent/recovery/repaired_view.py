"""A history without reasoning that cannot be replayed: made of a view, never of what is stored.

After a refusal nothing is replayed any more: reasoning goes from every message, and an assistant message that would
need it keeps its text alone (its calls and their results become facts at the last user message), or goes whole. For
native Claude, where signatures tell good from bad beforehand, only messages that cannot be sent are treated so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from direct_agent.recovery.facts import CallFact, FileFinding, results_block, state_block
from direct_agent.transcript import (
    AssistantMessage,
    Message,
    ReasoningState,
    RunState,
    ToolCall,
    ToolResult,
    Transcript,
    UserMessage,
    run_state,
)

Strips = Callable[[AssistantMessage], bool]
"""Which messages lose their reasoning and calls."""

Findings = Callable[[ToolCall], tuple[FileFinding, ...]]


def no_findings(_call: ToolCall) -> tuple[FileFinding, ...]:
    """For a caller that verified no write."""
    return ()


def has_something_to_strip(view: Transcript, strips: Strips | None = None) -> bool:
    """Whether a repair would change anything. A refusal of a history without any of it is not retried."""
    chosen = strips or needs_reasoning
    return any(isinstance(each, AssistantMessage) and chosen(each) for each in view)


def repaired(
    view: Transcript, canonical: Transcript, findings: Findings = no_findings, strips: Strips | None = None
) -> Transcript:
    """The repaired view of `view`; the same object when there is nothing to strip.

    `canonical` holds the receipts of the calls; success is never read from a text of the view.
    """
    chosen = strips or needs_reasoning
    if not has_something_to_strip(view, chosen):
        return view
    receipts = _Receipts(canonical)
    kept: list[Message] = []
    facts: list[CallFact] = []
    user_turn = 0
    is_dropping = False
    for message in view:
        if isinstance(message, ToolResult):
            if not is_dropping:
                kept.append(message)
            continue
        is_dropping = False
        if isinstance(message, UserMessage):
            user_turn += 1
            kept.append(message)
        elif not chosen(message):
            kept.append(message)
        else:
            is_dropping = bool(message.tool_calls)
            facts.extend(receipts.fact(call, user_turn, findings) for call in message.tool_calls)
            if message.text.strip():
                kept.append(
                    AssistantMessage(message.text, reasoning_state=ReasoningState.INCOMPLETE, finish=message.finish)
                )
    return _with_facts(kept, facts, user_turn)


def needs_reasoning(message: AssistantMessage) -> bool:
    """Has reasoning of any form, or activity that now needs reasoning it does not have. The refusal proved the demand,
    so this asks no endpoint, and an empty substitute is not honoured.
    """
    has_reasoning = bool(message.reasoning) or message.reasoning_state in (
        ReasoningState.TRUNCATED,
        ReasoningState.INCOMPLETE,
    )
    # A message that a repair has made before has nothing left but its text.
    is_bare = not (message.reasoning or message.tool_calls or message.opaque)
    return not is_bare and (has_reasoning or bool(message.tool_calls or message.opaque))


def _with_facts(kept: Sequence[Message], facts: Sequence[CallFact], user_turns: int) -> Transcript:
    if not facts:
        return tuple(kept)
    last = max((at for at, each in enumerate(kept) if isinstance(each, UserMessage)), default=None)
    if last is None:
        return (UserMessage(_blocks("", facts, user_turns), is_host=True), *kept)
    user = kept[last]
    if not isinstance(user, UserMessage):
        raise TypeError("the last user message is none")
    return (*kept[:last], replace(user, text=_blocks(user.text, facts, user_turns)), *kept[last + 1 :])


def _blocks(text: str, facts: Sequence[CallFact], user_turns: int) -> str:
    after = results_block(facts, user_turns)
    return "\n\n".join(piece for piece in (state_block(facts), text, after) if piece)


class _Receipts:
    """The stored results by (call id, name). Two with one key prove nothing."""

    def __init__(self, canonical: Transcript) -> None:
        results = [each for each in canonical if isinstance(each, ToolResult)]
        self._count = Counter((each.call_id, each.name) for each in results)
        self._by_key = {(each.call_id, each.name): each for each in results}

    def fact(self, call: ToolCall, user_turn: int, findings: Findings) -> CallFact:
        key = (call.call_id, call.name)
        receipt = self._by_key.get(key)
        if receipt is None or self._count[key] > 1:
            return CallFact(call.call_id, call.name, RunState.UNKNOWN, user_turn, None, findings(call))
        state = run_state(receipt)
        output = receipt.output if state is RunState.COMPLETED else None
        checked = findings(call) if state is RunState.UNKNOWN else ()
        return CallFact(call.call_id, call.name, state, user_turn, output, checked)
