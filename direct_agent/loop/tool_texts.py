"""What the model is told about a call that did not simply run. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from direct_agent.intents.verify import CallProof
from direct_agent.transcript import CANCELLED_BEFORE_OUTPUT, RunState, ToolCall, ToolResult

INTERRUPTED = "Cancelled while it ran: the outcome is unknown. Look at what is there before you repeat it."
NOT_RECORDED = "not executed: the session could not be written"
REPAIRED_ALREADY = (
    "The files already hold exactly what this call asks for: an earlier call that was interrupted had written it. "
    "Nothing was repeated."
)


def result(call: ToolCall, output: str, state: RunState, *, is_error: bool = False) -> ToolResult:
    return ToolResult(call.call_id, call.name, output, state, is_error)


def cancelled_before(call: ToolCall) -> ToolResult:
    return result(call, CANCELLED_BEFORE_OUTPUT, RunState.NOT_STARTED, is_error=True)


def not_started(call: ToolCall, why: str) -> ToolResult:
    return result(call, why, RunState.NOT_STARTED, is_error=True)


def repetition_refused(call: ToolCall, proofs: Sequence[CallProof]) -> ToolResult:
    """The same call is pending with an unknown outcome, and it is not proved that its work is done."""
    found = [f"{path}: {state}" for proof in proofs for path, state in proof.states]
    states = "; ".join(found) if found else "nothing can be proved about it"
    text = (
        f"Refused: this very call was interrupted and its outcome is unknown ({states}). It was not repeated. "
        "Look at the present state with reading tools first; then do what is still missing with a call of its own."
    )
    return not_started(call, text)
