"""The manager's verdict on a turn. Pure, and with no parameter that comes from the runner.

It has two sources: what the manager itself recorded when it granted and admitted (`Expected`), and what the host agent saw, once, at the
native end (`Observation`): ids in the supervisor's raw tap, the native store's new part, the engine's inspect, what passed the relay.
The runner's claim is compared with the result afterwards, elsewhere, and can only make a turn fail.

    identity       store          result
    Confirmed      Confirmed      SETTLED
    Confirmed      PROMISED       later turn: SETTLED, process retired, the next proof must find it
                                  first turn: READ_AGAIN once the process is ended; still not there: FAILED, no locator
    Confirmed      known cause    FAILED, STORAGE_FULL or STORE_UNWRITABLE
    anything Contradicted or Unproven    FAILED, nothing saved
    no native end                 NOT_ENDED
    nothing was forwarded         NOT_SENT
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sandbox_manager.core.judgement import Outcome, Reason, StoreVerdict, weigh
from sandbox_manager.core.store_check import EMPTY_TEXT_DIGEST, AdmittedTurn, StoreCheck, check_store
from sandbox_manager.core.values import (
    Generations,
    NativeLocator,
    Observation,
    ProcessDisposition,
    StoreReading,
    StoreRecord,
    Verdict,
)


@dataclass(frozen=True, slots=True)
class Expected:
    """What the manager recorded of this activation before the message was sent.

    `store` is the record of the newest settled turn of this native session, None before the first. `leftovers` are admitted turns of
    this session since then that did not settle, oldest first. `agent_version` is the pin.
    """

    activation_id: str
    turn_id: str
    group_id: str
    member_id: str
    generations: Generations
    container_id: str
    image_id: str
    nonce: str
    locator: NativeLocator
    message_id: str
    message_digest: str
    message_length: int
    store: StoreRecord | None
    leftovers: tuple[AdmittedTurn, ...] = ()
    agent_version: str | None = None


class Result(Enum):
    """What the verdict makes of the turn. Only SETTLED saves anything."""

    SETTLED = "SETTLED"
    FAILED = "FAILED"
    READ_AGAIN = "READ_AGAIN"  # end the process, read the store once more, judge again with `reread`
    NOT_ENDED = "NOT_ENDED"
    NOT_SENT = "NOT_SENT"


@dataclass(frozen=True, slots=True)
class ManagerVerdict:
    """`locator` and `store_record` are what to save; both are None unless the result is SETTLED."""

    identity: Verdict
    store: StoreVerdict
    result: Result
    outcome: Outcome
    reasons: tuple[Reason, ...]
    locator: NativeLocator | None
    store_record: StoreRecord | None
    disposition: ProcessDisposition
    disposition_reason: str

    @property
    def is_settled(self) -> bool:
        return self.result is Result.SETTLED


def judge(expected: Expected, observation: Observation, *, reread: StoreReading | None = None) -> ManagerVerdict:
    """Judges one observation. `reread` is a reading taken after the process was ended, in place of the observed one."""
    identity_reasons = _identity(expected, observation)
    identity = weigh(identity_reasons)
    check = check_store(
        expected.store,
        reread if reread is not None else observation.store,
        session_id=expected.locator.native_session_id,
        leftovers=expected.leftovers,
        current=_current(expected, observation),
    )
    store = _store_verdict(check)
    reasons = (*identity_reasons, *check.reasons)
    result, reasons = _result(expected, observation, identity, store, reasons, was_reread=reread is not None)
    settled = result is Result.SETTLED
    outcome = _outcome(observation, result)
    disposition, why = _disposition(observation, store, result, outcome, was_reread=reread is not None)
    return ManagerVerdict(
        identity=identity,
        store=store,
        result=result,
        outcome=outcome,
        reasons=reasons,
        locator=expected.locator if settled else None,
        store_record=check.record if settled else None,
        disposition=disposition,
        disposition_reason=why,
    )


def _result(
    expected: Expected,
    observation: Observation,
    identity: Verdict,
    store: StoreVerdict,
    reasons: tuple[Reason, ...],
    *,
    was_reread: bool,
) -> tuple[Result, tuple[Reason, ...]]:
    if not observation.forwarded:
        return Result.NOT_SENT, reasons
    if observation.tap.end is None:
        return Result.NOT_ENDED, reasons
    if identity is not Verdict.CONFIRMED:
        return Result.FAILED, reasons
    if store is StoreVerdict.CONFIRMED:
        return Result.SETTLED, reasons
    if store is StoreVerdict.PROMISED and expected.store is not None:
        return Result.SETTLED, reasons
    if store is StoreVerdict.PROMISED and not was_reread:
        return Result.READ_AGAIN, reasons
    if store is StoreVerdict.PROMISED:
        missing = Reason(
            "STORE_MISSING", "the first turn on disk after its process ended", "not all of it", Verdict.UNPROVEN
        )
        return Result.FAILED, (*reasons, missing)
    return Result.FAILED, reasons


# --- identity ------------------------------------------------------------------------------------------------------------------------
def _identity(expected: Expected, observation: Observation) -> tuple[Reason, ...]:
    """Container, activation, message, native session: everything but the store. The order is that of the reasons given."""
    return (
        *_subject(expected, observation),
        *_message(expected, observation),
        *_session(expected, observation),
        *_delivered(observation),
    )


def _subject(expected: Expected, observation: Observation) -> list[Reason]:
    """That the observation is of this activation, in this container, by this program."""
    pairs = [
        ("GENERATION_STALE", expected.generations, observation.generations),
        ("ACTIVATION_UNKNOWN", expected.activation_id, observation.activation_id),
        ("TURN_UNKNOWN", expected.turn_id, observation.turn_id),
        ("CONTAINER_CHANGED", expected.group_id, observation.group_id),
        ("CONTAINER_CHANGED", expected.container_id, observation.container.container_id),
        ("CONTAINER_CHANGED", expected.image_id, observation.container.image_id),
        ("CONTAINER_CHANGED", expected.nonce, observation.container.nonce),
        ("LOCATOR_MISMATCH", expected.member_id, observation.member_id),
        ("LOCATOR_MISMATCH", expected.locator, observation.locator),
    ]
    if expected.agent_version is not None and observation.tap.agent_version is not None:
        pairs.append(("CLI_VERSION_MISMATCH", expected.agent_version, observation.tap.agent_version))
    return [Reason(code, str(wanted), str(found)) for code, wanted, found in pairs if wanted != found]


def _message(expected: Expected, observation: Observation) -> list[Reason]:
    """That what went to the CLI is what was admitted."""
    if not observation.forwarded:
        return [Reason("NOT_FORWARDED", "a forwarded message", "none", Verdict.UNPROVEN)]
    pairs = [
        (expected.message_id, observation.message_id),
        (expected.message_digest, observation.message_digest),
        (expected.message_length, observation.message_length),
    ]
    return [Reason("ADMISSION_INVALID", str(wanted), str(found)) for wanted, found in pairs if wanted != found]


def _session(expected: Expected, observation: Observation) -> list[Reason]:
    """That every root event named the expected native session, one of them before the turn's content, up to its end."""
    tap, session_id = observation.tap, expected.locator.native_session_id
    reasons = [Reason("NATIVE_SESSION_MISMATCH", session_id, other) for other in tap.session_ids if other != session_id]
    if tap.reset_to is not None:
        reasons.append(Reason("NATIVE_SESSION_MISMATCH", session_id, f"a reset to {tap.reset_to or 'another session'}"))
    if tap.handshake not in (None, "OK"):
        reasons.append(Reason("SESSION_NOT_RESUMED", "a handshake", str(tap.handshake), Verdict.UNPROVEN))
    if observation.tap_gap:
        reasons.append(Reason("TAP_GAP", "the CLI's output without a gap", "a gap", Verdict.UNPROVEN))
    if session_id not in tap.session_ids:
        reasons.append(Reason("IDENTITY_UNPROVEN", "a root event that names the session", "none", Verdict.UNPROVEN))
    elif not tap.identity_before_output:
        found = "content before the session was named for this turn"
        reasons.append(Reason("IDENTITY_UNPROVEN", "the session's name first", found, Verdict.UNPROVEN))
    if tap.end is None:
        reasons.append(Reason("NOT_ENDED", "the native end of this turn", "none", Verdict.UNPROVEN))
    return reasons


def _delivered(observation: Observation) -> list[Reason]:
    """That the relay delivered every assistant text which the CLI printed.

    Without it a settings file could have sent the CLI to another model. A text that an interrupt cut is left out: the relay was in the
    middle of it. An empty text has nothing to deliver.
    """
    printed = [text.text_digest for text in observation.tap.assistant if not text.aborted]
    wanted = [digest for digest in printed if digest != EMPTY_TEXT_DIGEST]
    if not wanted:
        return []
    relay = observation.relay
    if relay is None:
        return [Reason("NOT_DELIVERED_BY_RELAY", "the relay's account of this turn", "none", Verdict.UNPROVEN)]
    absent = [digest for digest in wanted if digest not in set(relay.delivered_text_digests)]
    if not absent:
        return []
    expected = f"{len(wanted)} assistant texts that passed the relay"
    # An answer that the relay could not read excuses nothing: whoever can make one could switch this check off.
    because = "; some answers could not be read" if relay.unread else ""
    return [Reason("NOT_DELIVERED_BY_RELAY", expected, f"{len(absent)} that did not{because}", Verdict.UNPROVEN)]


# --- store ---------------------------------------------------------------------------------------------------------------------------
def _current(expected: Expected, observation: Observation) -> AdmittedTurn:
    tap = observation.tap
    return AdmittedTurn(
        message_id=tap.message_printed_as or expected.message_id,
        message_digest=expected.message_digest,
        texts=None if observation.tap_gap else tap.assistant,
        printed=tap.printed,
        bases=None if observation.tap_gap else tap.bases,
    )


def _store_verdict(check: StoreCheck) -> StoreVerdict:
    match weigh(check.reasons):
        case Verdict.CONTRADICTED:
            return StoreVerdict.CONTRADICTED
        case Verdict.UNPROVEN:
            return StoreVerdict.UNPROVEN if check.known_cause is None else StoreVerdict.UNWRITABLE
        case Verdict.CONFIRMED:
            return StoreVerdict.PROMISED if check.promised else StoreVerdict.CONFIRMED


# --- what follows --------------------------------------------------------------------------------------------------------------------
_OUTCOME_WITHOUT_END = {
    "CANCEL": Outcome.CANCELLED,
    "TIMEOUT": Outcome.TIMED_OUT,
    "UNANSWERED_QUESTION": Outcome.UNANSWERED_QUESTION,
}


def _outcome(observation: Observation, result: Result) -> Outcome:
    end = observation.tap.end
    match result:
        case Result.NOT_SENT:
            return Outcome.NOT_SENT
        case Result.NOT_ENDED:
            return _OUTCOME_WITHOUT_END.get(observation.interrupted_by or "", Outcome.INTERRUPTED)
        case Result.FAILED | Result.READ_AGAIN:
            return Outcome.FAILED
        case Result.SETTLED:
            pass
    if end is not None and end.cancelled:
        return _OUTCOME_WITHOUT_END.get(observation.interrupted_by or "", Outcome.CANCELLED)
    if observation.interrupted_by == "CANCEL":
        # The native end came after the cancel, whatever it says of itself.
        return Outcome.CANCELLED
    return Outcome.FAILED if end is not None and end.is_error else Outcome.COMPLETED


def _disposition(
    observation: Observation, store: StoreVerdict, result: Result, outcome: Outcome, *, was_reread: bool
) -> tuple[ProcessDisposition, str]:
    """The host's word, lowered by the verdict. It is never raised here."""
    if result is Result.READ_AGAIN:
        return ProcessDisposition.RETIRED, "STORE_PROMISED"
    if result is not Result.SETTLED:
        return ProcessDisposition.RECLAIM_FIRST, "NOT_SETTLED"
    if observation.disposition is not ProcessDisposition.KEPT:
        return observation.disposition, observation.disposition_reason
    census = observation.census
    if not observation.process_alive or census is None or not census.complete or census.remaining:
        return ProcessDisposition.RECLAIM_FIRST, "CENSUS_INCOMPLETE"
    if outcome is Outcome.CANCELLED:
        return ProcessDisposition.RETIRED, "CANCELLED"
    if was_reread or store is StoreVerdict.PROMISED:
        return ProcessDisposition.RETIRED, "STORE_PROMISED"
    return ProcessDisposition.KEPT, observation.disposition_reason
