"""Which of the four context states a turn has, decided before its prompt is admitted. Pure.

From two sources: the host agent's signed report of the activation, and the manager's own record of member and container. Nothing here
comes from a runner. What it says is one ruling and one reason:

    ADMIT         NEW, LIVE or RESTORED: the prompt may be admitted
    REFUSE        LOST, with the cause, what would cure it and what can still be read; or refused without a state: IMAGE_RETIRED, a
                  handshake without an answer, and anything about a member that has no settled turn and so nothing to lose
    SETTLE_FIRST  an admitted turn has end evidence and is not settled: it is settled first
    RESTART       the running process cannot serve this turn LIVE: it leaves in order, and the session is resumed in a new one
    RETRY         somebody did not answer; that says nothing about the context

LOST is decided anew each time and never stored: a container that comes back makes the next turn RESTORED.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sandbox_manager.core.judgement import Reason, weigh
from sandbox_manager.core.store_check import AdmittedTurn, check_store
from sandbox_manager.core.values import (
    ActivationReport,
    ContextState,
    Generations,
    NativeLocator,
    SlotProcess,
    StoreRecord,
    Verdict,
)


class Presence(Enum):
    """What the engine says of the recorded container."""

    PRESENT = "PRESENT"
    GONE = "GONE"  # the engine answered, and has none of that id
    SILENT = "SILENT"  # nobody answered: not known


class Ruling(Enum):
    ADMIT = "ADMIT"
    REFUSE = "REFUSE"
    SETTLE_FIRST = "SETTLE_FIRST"
    RESTART = "RESTART"
    RETRY = "RETRY"


@dataclass(frozen=True, slots=True)
class RecordedProcess:
    """The process that the newest settled turn left running, and what it was started with."""

    process: SlotProcess
    process_generation: int
    container_started_at: str
    settings_digest: str
    agent_version: str | None


@dataclass(frozen=True, slots=True)
class ExpectedMember:
    """What the manager recorded of the member, and granted with this activation.

    `settled_turns` 0 means that there is no history to lose. `kept` is None unless the newest settled turn's process was KEPT.
    `ended_unsettled` is a turn with end evidence that is not settled; `evidence_kept` says whether journal or tap still has it.
    `interrupted` are native session ids that an admitted turn without an end was begun under: not used again.
    """

    activation_id: str
    turn_id: str
    group_id: str
    member_id: str
    generations: Generations
    locator: NativeLocator
    settings_digest: str
    settled_turns: int
    store: StoreRecord | None
    agent_version: str | None = None
    kept: RecordedProcess | None = None
    leftovers: tuple[AdmittedTurn, ...] = ()
    ended_unsettled: str | None = None
    evidence_kept: bool = True
    interrupted: tuple[str, ...] = ()
    interrupted_turn: str | None = None
    disposition_reason: str | None = None  # why the newest process was not kept


@dataclass(frozen=True, slots=True)
class ExpectedContainer:
    """What the manager recorded of the container. `accepted_images` are the image ids that this release opens."""

    presence: Presence
    container_id: str
    image_id: str
    nonce: str
    accepted_images: tuple[str, ...]
    started_now: bool = False  # it was stopped, and this activation started it


@dataclass(frozen=True, slots=True)
class ContextDecision:
    """`state` is None where no state was reached (IMAGE_RETIRED, SETTLE_FIRST, RESTART, RETRY). `reason` is a stable word."""

    ruling: Ruling
    state: ContextState | None
    reason: str
    expected: str = ""
    found: str = ""
    cure: str = ""
    readable: str = ""


_ON_DISK = "the container with its workspace and the native store as it is, and the turns' records"
_RECORDS_ONLY = "the turns' records outside the sandbox"
_CURES = {
    "CONTAINER_GONE": "bring the container with its writable layer back on its host; else open a new conversation",
    "CONTAINER_CHANGED": "bring the recorded container back; the one that answers is another",
    "STORE_MISSING": "put the native store back as it was at the last settlement",
    "HISTORY_CHANGED_OUTSIDE_TURN": "put the native store back as it was at the last settlement",
    "HISTORY_BROKEN": "put back a native store in which the settled records can be reached",
    "HISTORY_TORN": "put the native store back as it was at the last settlement",
    "NATIVE_SESSION_MISMATCH": "put the native store of the recorded session back",
    "SESSION_NOT_RESUMED": "make the CLI find the session again: its store and its working folder as recorded",
    "HANDSHAKE_FAILED": "try again; if it stays, look at the CLI's own error output",
    "END_EVIDENCE_GONE": "bring back the host's journal of the unsettled turn",
    "STORE_UNREADABLE": "make the native store readable and try again",
    "CLI_VERSION_MISMATCH": "put the pinned version of the CLI back into the sandbox",
}


def decide(report: ActivationReport | None, member: ExpectedMember, container: ExpectedContainer) -> ContextDecision:
    """Decides on one activation. `report` is None when none could be had."""
    if member.ended_unsettled is not None:
        if member.evidence_kept:
            return ContextDecision(Ruling.SETTLE_FIRST, None, "NATIVE_END_SEEN", found=member.ended_unsettled)
        return _lost("END_EVIDENCE_GONE", "the end evidence of an admitted turn", "none is left", member, container)
    refusal = _container(report, member, container)
    if refusal is not None:
        return refusal
    if report is None:
        return ContextDecision(Ruling.RETRY, None, "HOST_UNAVAILABLE", "a report of the activation", "none")
    refusal = _report(report, member, container)
    if refusal is not None:
        return refusal
    if member.settled_turns == 0:
        return _new(report, member, container)
    if report.process_was_running:
        return _live(report, member, container)
    return _restored(report, member, container)


def _container(
    report: ActivationReport | None, member: ExpectedMember, container: ExpectedContainer
) -> ContextDecision | None:
    if container.presence is Presence.SILENT:
        return ContextDecision(Ruling.RETRY, None, "HOST_UNAVAILABLE", "an answer of the engine", "none")
    if container.presence is Presence.GONE:
        if member.settled_turns == 0:
            return ContextDecision(Ruling.RETRY, None, "CONTAINER_GONE", "a container for a first turn", "none")
        return _lost("CONTAINER_GONE", container.container_id, "no such container", member, container)
    if report is not None:
        pairs = [
            (container.container_id, report.container.container_id),
            (container.image_id, report.container.image_id),
            (container.nonce, report.container.nonce),
        ]
        for wanted, found in pairs:
            if wanted != found:
                return _lost("CONTAINER_CHANGED", wanted, found, member, container)
    if container.image_id not in container.accepted_images:
        # Nothing is touched: neither lost nor ready.
        accepted = ", ".join(container.accepted_images) or "none"
        return ContextDecision(
            Ruling.REFUSE,
            None,
            "IMAGE_RETIRED",
            accepted,
            container.image_id,
            cure="open it with a release that accepts this image",
            readable=_ON_DISK,
        )
    return None


def _report(report: ActivationReport, member: ExpectedMember, container: ExpectedContainer) -> ContextDecision | None:
    """That the report is of this activation, decided on these generations, about this session."""
    fences = [
        (member.activation_id, report.activation_id),
        (member.turn_id, report.turn_id),
        (member.group_id, report.group_id),
        (member.member_id, report.member_id),
        (member.generations, report.generations),
    ]
    for wanted, found in fences:
        if wanted != found:
            return ContextDecision(Ruling.RETRY, None, "GENERATION_STALE", str(wanted), str(found))
    if report.locator != member.locator or report.agent != member.locator.agent:
        return _lost("LOCATOR_MISMATCH", str(member.locator), str(report.locator), member, container)
    if report.observed_session_id not in (None, member.locator.native_session_id):
        found = str(report.observed_session_id)
        return _lost("NATIVE_SESSION_MISMATCH", member.locator.native_session_id, found, member, container)
    if report.observed_store not in (None, member.locator.store):
        found = str(report.observed_store)
        return _lost("NATIVE_SESSION_MISMATCH", member.locator.store, found, member, container)
    if not member.locator.is_whole:
        return _lost("HANDSHAKE_FAILED", "a session and a store that the CLI named", "none", member, container)
    if None not in (member.agent_version, report.agent_version) and member.agent_version != report.agent_version:
        return _lost("CLI_VERSION_MISMATCH", str(member.agent_version), str(report.agent_version), member, container)
    return None


def _new(report: ActivationReport, member: ExpectedMember, container: ExpectedContainer) -> ContextDecision:
    if report.process_was_running:
        return ContextDecision(
            Ruling.RESTART, None, "PROCESS_NOT_RECORDED", "a new process for a first turn", "a running one"
        )
    if member.locator.native_session_id in member.interrupted:
        # What the interrupted turn left behind would be taken for the new session's history.
        return ContextDecision(
            Ruling.RETRY, None, "SESSION_NOT_FRESH", "a fresh native id", member.locator.native_session_id
        )
    if report.handshake != "OK":
        return _lost("HANDSHAKE_FAILED", "OK", str(report.handshake), member, container)
    store = report.store
    if store is not None and store.error != "ABSENT":
        found = store.error or f"a native store of {store.length} bytes"
        return ContextDecision(Ruling.RETRY, None, "SESSION_NOT_FRESH", "no native store of a fresh session", found)
    reason = "FIRST_TURN" if member.interrupted_turn is None else "AFTER_INTERRUPTED_FIRST_TURN"
    return ContextDecision(Ruling.ADMIT, ContextState.NEW, reason, found=member.interrupted_turn or "")


def _live(report: ActivationReport, member: ExpectedMember, container: ExpectedContainer) -> ContextDecision:
    kept = member.kept
    if kept is None:
        return ContextDecision(Ruling.RESTART, None, "PROCESS_NOT_RECORDED", "no running process", "a running one")
    pairs: list[tuple[str, object, object]] = [
        ("PROCESS_CHANGED", kept.process, report.process),
        ("PROCESS_CHANGED", kept.process_generation, report.generations.process),
        ("PROCESS_CHANGED", kept.container_started_at, report.container.started_at),
        ("SETTINGS_CHANGED", member.settings_digest, kept.settings_digest),
        ("SETTINGS_CHANGED", member.settings_digest, report.settings_digest),
        ("TAP_GAP", False, report.tap_gap),
        ("WRITTEN_OUTSIDE", False, report.written_outside),
        ("HANDSHAKE_FAILED", True, report.handshake in (None, "OK")),
    ]
    if kept.agent_version is not None and report.agent_version is not None:
        pairs.append(("CLI_VERSION_MISMATCH", kept.agent_version, report.agent_version))
    for reason, wanted, found in pairs:
        if wanted != found:
            return ContextDecision(Ruling.RESTART, None, reason, str(wanted), str(found))
    doubt = _store(report, member)
    if doubt is not None:
        return _lost(doubt.code, doubt.expected, doubt.found, member, container)
    return ContextDecision(Ruling.ADMIT, ContextState.LIVE, "PROCESS_KEPT")


def _restored(report: ActivationReport, member: ExpectedMember, container: ExpectedContainer) -> ContextDecision:
    # The store comes first: it says more than a CLI that does not find its session.
    doubt = _store(report, member)
    if doubt is not None:
        return _lost(doubt.code, doubt.expected, doubt.found, member, container)
    if report.handshake is None:
        return _lost("HANDSHAKE_FAILED", "OK", "no answer", member, container)
    if report.handshake != "OK":
        return _lost("SESSION_NOT_RESUMED", "OK", report.handshake, member, container)
    if report.settings_digest != member.settings_digest:
        return ContextDecision(Ruling.RESTART, None, "SETTINGS_CHANGED", member.settings_digest, report.settings_digest)
    return ContextDecision(Ruling.ADMIT, ContextState.RESTORED, _why_restored(member, container))


def _why_restored(member: ExpectedMember, container: ExpectedContainer) -> str:
    if container.started_now:
        return "SANDBOX_STOPPED"
    if member.kept is None:
        return "PROCESS_RETIRED"
    if member.kept.settings_digest != member.settings_digest:
        return "SETTINGS_CHANGED"
    return "PROCESS_GONE"


def _store(report: ActivationReport, member: ExpectedMember) -> Reason | None:
    """The first thing that speaks against the native store, None when it proves that it reaches the last settled turn."""
    if member.store is None:
        return Reason("STORE_MISSING", "a store record of the last settled turn", "none in the manager's records")
    check = check_store(
        member.store,
        report.store,
        session_id=member.locator.native_session_id,
        leftovers=member.leftovers,
    )
    if weigh(check.reasons) is Verdict.CONFIRMED:
        return None
    worst = [reason for reason in check.reasons if reason.weighs is Verdict.CONTRADICTED]
    return (worst or list(check.reasons))[0]


def _lost(
    reason: str, expected: str, found: str, member: ExpectedMember, container: ExpectedContainer
) -> ContextDecision:
    is_there = container.presence is Presence.PRESENT
    # Without a settled turn, or a native end, there is no history to lose; and a CLI that did not answer has lost nothing.
    has_history = member.settled_turns > 0 or member.ended_unsettled is not None
    is_lost = has_history and reason != "HANDSHAKE_FAILED"
    return ContextDecision(
        Ruling.REFUSE,
        ContextState.LOST if is_lost else None,
        reason,
        expected,
        found,
        cure=_CURES.get(reason, "put back what was expected, and try again"),
        readable=_ON_DISK if is_there and reason != "CONTAINER_CHANGED" else _RECORDS_ONLY,
    )
