"""What a turn comes to, from the runner's own verdict and the manager's answer. Pure.

Both must be Confirmed, for the same locator; else the turn FAILS and nothing is saved. Neither side corrects the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from runner.core.events import NativeTurnEnded
from runner.core.values import Cause, NativeLocator, Outcome
from runner.core.verdict import Judgement, Verdict


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a verdict rests on. `code` is a stable word."""

    code: str
    expected: str
    observed: str


@dataclass(frozen=True, slots=True)
class ManagerAnswer:
    """The manager's settlement, as far as the runner decides on it. `outcome` None: it named none that is known here."""

    saved: bool
    outcome: Outcome | None
    verdict: Verdict | None
    store_verdict: str
    locator: NativeLocator | None
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Settled:
    """`save`: the locator becomes SAVED. `unconfirmed`: text that was streamed is not confirmed."""

    outcome: Outcome
    save: bool
    unconfirmed: bool
    cause: Cause | None


def settle(
    *,
    own: Judgement,
    native_end: NativeTurnEnded | None,
    stopped: Outcome | None,
    stop_cause: Cause | None,
    locator: NativeLocator,
    answer: ManagerAnswer,
) -> Settled:
    """`stopped`: the outcome that was asked for before the native end (cancel, time limit, question), if one was."""
    differing = _what_differs(own, locator, answer)
    if differing is not None:
        return Settled(Outcome.FAILED, save=False, unconfirmed=True, cause=differing)
    if stopped is not None and stopped is not Outcome.CANCELLED:
        return Settled(stopped, save=True, unconfirmed=False, cause=stop_cause)
    own_outcome = stopped or (Outcome.FAILED if native_end is None or native_end.failed else Outcome.COMPLETED)
    said = {own_outcome, answer.outcome}
    if Outcome.CANCELLED in said:
        return Settled(Outcome.CANCELLED, save=True, unconfirmed=False, cause=stop_cause)
    if Outcome.FAILED in said:
        return Settled(Outcome.FAILED, save=True, unconfirmed=False, cause=native_failure(native_end))
    return Settled(Outcome.COMPLETED, save=True, unconfirmed=False, cause=None)


def native_failure(native_end: NativeTurnEnded | None) -> Cause:
    """The CLI's own explanation of a failed turn."""
    if native_end is None or not native_end.failed:
        return Cause("NATIVE_ERROR", "The host agent saw the CLI end this turn with an error.")
    reason = "PROVIDER_ERROR" if native_end.status is not None or native_end.reason == "api_error" else "NATIVE_ERROR"
    metadata = (("native_reason", native_end.reason),) if native_end.reason is not None else ()
    message = native_end.error or "the CLI gave no explanation"
    return Cause(reason, message, metadata, native_end.status)


def own_failure(own: Judgement) -> Cause:
    """Why the runner's own verdict is not Confirmed."""
    reason = "NATIVE_SESSION_MISMATCH" if own.verdict is Verdict.CONTRADICTED else "IDENTITY_UNPROVEN"
    observed = own.observed if own.observed is not None else "nothing"
    return Cause(
        reason,
        f"The runner expected native session {own.expected} and observed {observed} ({own.reason}). Nothing was saved.",
        (
            ("expected", own.expected),
            ("finding", own.reason or ""),
            ("observed", own.observed or ""),
            ("side", "runner"),
        ),
    )


def _what_differs(own: Judgement, locator: NativeLocator, answer: ManagerAnswer) -> Cause | None:
    if own.verdict is not Verdict.CONFIRMED:
        return own_failure(own)
    if not answer.saved or answer.verdict is not Verdict.CONFIRMED:
        return _managers_failure(answer)
    if answer.locator != locator:
        observed = answer.locator.native_session_id if answer.locator is not None else "none"
        return Cause(
            "LOCATOR_MISMATCH",
            f"The manager settled this turn for native session {observed}, but it ran on "
            f"{locator.native_session_id}. Nothing was saved on this side.",
            (("expected", locator.native_session_id), ("observed", observed), ("side", "runner")),
        )
    return None


# The store's words that are themselves the reason, where no finding names a closer one.
_BY_STORE = {"UNWRITABLE": "STORE_UNWRITABLE", "CONTRADICTED": "HISTORY_CHANGED_OUTSIDE_TURN"}


def _managers_failure(answer: ManagerAnswer) -> Cause:
    finding = answer.findings[0] if answer.findings else None
    verdict = answer.verdict.value if answer.verdict is not None else "none"
    if finding is not None:
        reason = finding.code
    elif answer.verdict is Verdict.CONTRADICTED:
        reason = "NATIVE_SESSION_MISMATCH"
    elif answer.verdict is Verdict.UNPROVEN:
        reason = "IDENTITY_UNPROVEN"
    else:
        reason = _BY_STORE.get(answer.store_verdict, "VERDICTS_DIFFER")
    expected = finding.expected if finding is not None else ""
    observed = finding.observed if finding is not None else ""
    return Cause(
        reason,
        f"The manager did not confirm this turn (identity {verdict}, store {answer.store_verdict}). Nothing was saved.",
        (("expected", expected), ("observed", observed), ("side", "manager"), ("store", answer.store_verdict)),
    )
