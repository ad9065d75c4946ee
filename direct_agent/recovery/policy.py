"""How often and how long a round is tried: the numbers, and the delays they give.

The defaults are the policy of four attempts, 2/4/8 s, then unbounded waiting for a main conversation. `wait_budget_s`
bounds the waiting (0: none of it); `transport_retries` off ends the round at the first transport, HTTP or empty-answer
failure. Repairs are not touched by either.
"""

from __future__ import annotations

from dataclasses import dataclass

JITTER_S_MAX = 6.0


@dataclass(frozen=True, slots=True)
class Policy:
    attempts_max: int = 4
    backoff_s: float = 2.0
    waiting_s: float = 60.0
    wait_budget_s: float | None = None
    transport_retries: bool = True

    def quick_delay_s(self, attempt: int, retry_after_s: float) -> float:
        """Before the attempt after number `attempt`. The index is the attempt, not the number of network faults."""
        return max(self.backoff_s * float(2 ** min(attempt - 1, 2)), retry_after_s)

    def waiting_delay_s(self, jitter_s: float, retry_after_s: float) -> float:
        """`jitter_s`: uniform between 0 and JITTER_S_MAX."""
        return max(self.waiting_s + jitter_s, retry_after_s)


@dataclass(frozen=True, slots=True)
class RoundRole:
    """Who asks. Only a main conversation waits.

    `has_pending_unknown`: a tool call of the interrupted past has an unknown outcome that is not verified yet.
    """

    is_planner: bool = False
    subagent_depth: int = 0
    is_grace: bool = False
    has_pending_unknown: bool = False

    @property
    def may_wait(self) -> bool:
        return not (self.is_planner or self.subagent_depth > 0 or self.is_grace or self.has_pending_unknown)
