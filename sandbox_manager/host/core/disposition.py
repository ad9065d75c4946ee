"""What becomes of the CLI process after a turn, as far as the host can tell. Pure.

KEPT only when everything it can see is in order; the manager's verdict can only lower that (`after_verdict`). RETIRED: it leaves by
itself and its store is read after the exit. RECLAIM_FIRST: it must be proved gone before the next start.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sandbox_manager.core.values import Census, ProcessDisposition, TapFindings


class LeaveBy(Enum):
    """How a retired process is asked to leave."""

    CLOSE_STDIN = "CLOSE_STDIN"
    TERMINATE = "TERMINATE"  # SIGTERM


@dataclass(frozen=True, slots=True)
class DispositionPolicy:
    """Switches that break a rule on purpose. Only the entry points of the lab and of tests inject another one than this.

    `retire_rules_on` False: an agent's own rule does not retire the process, so that a scene can show what is lost then.
    """

    retire_rules_on: bool = True


@dataclass(frozen=True, slots=True)
class AfterTurn:
    """What is known of a process when the turn's clean-up is over. `agent_rule` is the agent file's `must_retire`."""

    findings: TapFindings
    expected_session_id: str
    census: Census | None
    agent_rule: str | None
    interrupted_by: str | None
    process_alive: bool
    tap_gap: bool
    store_is_complete: bool  # everything that was printed is on disk
    settings_changed: bool = False


@dataclass(frozen=True, slots=True)
class Disposition:
    what: ProcessDisposition
    reason: str
    leave_by: LeaveBy = LeaveBy.CLOSE_STDIN


def decide(turn: AfterTurn, policy: DispositionPolicy | None = None) -> Disposition:
    """The host's word on the process, with the first reason that applies."""
    leave_by = LeaveBy.TERMINATE if turn.findings.background_pending else LeaveBy.CLOSE_STDIN
    doubt = _doubt(turn)
    if doubt is not None:
        return Disposition(ProcessDisposition.RECLAIM_FIRST, doubt, leave_by)
    rules_on = (policy or DispositionPolicy()).retire_rules_on
    rule = turn.agent_rule if rules_on else None
    if rule is not None:
        return Disposition(ProcessDisposition.RETIRED, rule, leave_by)
    if turn.interrupted_by is not None:
        return Disposition(ProcessDisposition.RETIRED, "CANCELLED", leave_by)
    if not turn.store_is_complete:
        return Disposition(ProcessDisposition.RETIRED, "STORE_PROMISED", leave_by)
    if turn.settings_changed:
        return Disposition(ProcessDisposition.RETIRED, "SETTINGS_CHANGED", leave_by)
    return Disposition(ProcessDisposition.KEPT, "ALL_IN_ORDER", leave_by)


def after_verdict(disposition: Disposition, *, settled: bool) -> Disposition:
    """A turn that did not settle leaves no process behind that could be used or waited for."""
    if settled:
        return disposition
    return Disposition(ProcessDisposition.RECLAIM_FIRST, "NOT_SETTLED", disposition.leave_by)


def _doubt(turn: AfterTurn) -> str | None:
    if not turn.process_alive:
        return "PROCESS_EXITED"
    if turn.tap_gap:
        return "TAP_GAP"
    if turn.findings.reset_to is not None or turn.findings.session_ids != (turn.expected_session_id,):
        return "SESSION_NOT_CONFIRMED"
    if turn.findings.end is None:
        return "NO_NATIVE_END"
    if turn.census is None:
        return "CENSUS_MISSING"
    if not turn.census.complete or turn.census.remaining:
        return "CENSUS_INCOMPLETE"
    return None
