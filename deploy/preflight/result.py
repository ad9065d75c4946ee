"""The result of a preflight as a value: what was asked, what came back, and what the sample can and cannot show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

RESULT_VERSION = 1
CAN_SHOW = (
    "This sample shows whether, in these calls, the model's answers used the history that was sent. It cannot show that "
    "every later call will, nor what a gateway does with longer histories, tools, images or other models."
)
THINKING_SEEN = "Thinking that was seen does not prove which effort reached the engine."
THINKING_ABSENT = "Thinking that was not seen does not prove that history was lost."
LOOK = (
    "Answers flagged for a sentence about unseen history were matched conservatively: an answer that quotes such a sentence "
    "to correct it may be flagged too. A person must look at each."
)


@dataclass(frozen=True, slots=True)
class Call:
    """One call. `error` is for a person; None when the protocol went well. `request_id` as the gateway named it."""

    group: str
    repetition: int
    answer: str
    thinking_seen: bool
    request_id: str | None
    error: str | None
    missing_facts: tuple[str, ...]
    lost_sentence: str | None
    output_tokens: int | None

    @property
    def recalled(self) -> bool:
        return self.error is None and not self.missing_facts and self.lost_sentence is None


@dataclass(frozen=True, slots=True)
class PreflightResult:
    """`gateway`: scheme, host and port. `pins`: CLI versions by agent. `checked_at`: s since 1970."""

    gateway: str
    model: str
    pins: Mapping[str, str]
    checked_at: float
    calls: Sequence[Call]

    @property
    def recall_passed(self) -> bool:
        return bool(self.calls) and all(call.recalled for call in self.calls)

    @property
    def thinking_observed(self) -> bool:
        return any(call.thinking_seen for call in self.calls)

    @property
    def exit_code(self) -> int:
        """0 all well, 1 recall or protocol failed, 3 only thinking was absent."""
        if not self.recall_passed:
            return 1
        return 0 if self.thinking_observed else 3

    def to_json(self) -> dict[str, Any]:
        return {
            "version": RESULT_VERSION,
            "gateway": self.gateway,
            "model": self.model,
            "pins": dict(self.pins),
            "checked_at": self.checked_at,
            "recall_passed": self.recall_passed,
            "thinking_observed": self.thinking_observed,
            "calls_with_thinking": sum(call.thinking_seen for call in self.calls),
            "calls": [asdict(call) | {"recalled": call.recalled} for call in self.calls],
            "notes": self.notes(),
        }

    def notes(self) -> list[str]:
        """What the sample can and cannot show."""
        notes = [CAN_SHOW, THINKING_SEEN if self.thinking_observed else THINKING_ABSENT]
        if any(call.lost_sentence for call in self.calls):
            notes.append(LOOK)
        return notes


def stale_reasons(saved: Mapping[str, Any], gateway: str, model: str, pins: Mapping[str, str]) -> list[str]:
    """Why a saved result no longer speaks for the present: what has changed since. Empty: it still does."""
    reasons = []
    if saved.get("version") != RESULT_VERSION:
        reasons.append(f"the result is of version {saved.get('version')!r}, expected {RESULT_VERSION}")
    for name, now in (("gateway", gateway), ("model", model)):
        if saved.get(name) != now:
            reasons.append(f"the {name} was {saved.get(name)!r} and is now {now!r}")
    before = saved.get("pins")
    before = before if isinstance(before, Mapping) else {}
    for agent in sorted({*before, *pins}):
        if before.get(agent) != pins.get(agent):
            reasons.append(f"the pin of {agent} was {before.get(agent)!r} and is now {pins.get(agent)!r}")
    return reasons
