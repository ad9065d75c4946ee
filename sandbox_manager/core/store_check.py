"""Whether a native store still holds what was settled, and whether what is new in it is explained. Pure.

The store is read from byte 0: `record.length` bytes must have the recorded digest, so one changed byte in an old record shows. What lies
after them must be explained record by record:

    a user's text       by an admitted turn with that digest, each turn once; under an admitted id it must have that turn's text
    a model's text,     by an admitted turn's message above it, or by having been printed (also what an interrupted turn left);
    a tool's record     where the tap was read whole, a model's text must be one that was printed
    bookkeeping         by its kind, which the agent file lists
    a compaction        by an admitted turn; where the tap was read whole, by its CLI having printed it. What is appended again below it
                        is a new base
    anything else       by nothing

And the leaf, from which a resume starts, must lead back to what was settled: its walk leaves the new part at one of the recorded
anchors. That is where a reply that a later record skips is found out.

What it cannot see: a change that a tool made and undid inside one turn, or lines that it added under the turn's own message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from sandbox_manager.core.judgement import Reason
from sandbox_manager.core.values import (
    AssistantText,
    RecordKind,
    StoreReading,
    StoreRecord,
    StoreRecordLine,
    StoreSegment,
    Verdict,
)

EMPTY_TEXT_DIGEST = hashlib.sha256(b"").hexdigest()

CHANGED = "HISTORY_CHANGED_OUTSIDE_TURN"
BROKEN = "HISTORY_BROKEN"
TORN = "HISTORY_TORN"
MISSING = "STORE_MISSING"
UNREADABLE = "STORE_UNREADABLE"

_NOT_AS_LEFT = ("NOT_REGULAR", "SYMLINK", "OWNER", "NLINK")
_KNOWN_CAUSES = {"NO_SPACE": "STORAGE_FULL", "UNWRITABLE": "STORE_UNWRITABLE"}


@dataclass(frozen=True, slots=True)
class AdmittedTurn:
    """One admitted message that the store's new part may hold. `texts` and `bases` are None when the tap was not read whole."""

    message_id: str
    message_digest: str
    texts: tuple[AssistantText, ...] | None = None
    printed: tuple[str, ...] = ()
    bases: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class StoreCheck:
    """What the check found. `promised` and `late` are the current turn's uuids that are not on disk; `record` is what to keep if this
    settles, None when the reading has no length. `known_cause` is STORAGE_FULL or STORE_UNWRITABLE."""

    reasons: tuple[Reason, ...]
    promised: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    record: StoreRecord | None = None
    known_cause: str | None = None


def check_store(
    record: StoreRecord | None,
    reading: StoreReading | None,
    *,
    session_id: str,
    leftovers: tuple[AdmittedTurn, ...] = (),
    current: AdmittedTurn | None = None,
) -> StoreCheck:
    """Checks one reading against the record of the last settlement (None: nothing was settled).

    `leftovers` are admitted turns since then that did not settle, `current` is the turn that is being judged (None at Prepare).
    """
    if reading is None:
        return StoreCheck((Reason(UNREADABLE, "a reading of the native store", "none", Verdict.UNPROVEN),))
    if reading.error is not None:
        return _unreadable(record, reading.error, current)
    known_length = record.length if record else 0
    if reading.prefix_length != known_length:
        # Read for another record: what is new in it says nothing about this one.
        found = f"a reading from {reading.prefix_length}"
        return StoreCheck((Reason(UNREADABLE, f"a reading from byte {known_length} on", found, Verdict.UNPROVEN),))
    reasons = _prefix(record, reading)
    segment = reading.segment
    if segment is None or reading.length is None or reading.digest is None:
        reasons.append(Reason(UNREADABLE, "length, digest and new part", "not read", Verdict.UNPROVEN))
        return StoreCheck(tuple(reasons))
    names = {one.printed_as: one.uuid for one in segment.records if None not in (one.printed_as, one.uuid)}
    if names:
        record, current = _renamed(record, names), _renamed(current, names)
        leftovers = tuple(turn for one in leftovers if (turn := _renamed(one, names)) is not None)
    turns = (*leftovers, *((current,) if current else ()))
    new_part = _NewPart(record, segment, turns)
    reasons += _whole(segment)
    reasons += _sessions(segment, session_id)
    reasons += new_part.unexplained()
    reasons += new_part.off_the_chain(current)
    promised, late = new_part.not_on_disk(current)
    return StoreCheck(
        reasons=tuple(reasons),
        promised=promised,
        late=late,
        record=StoreRecord(reading.length, reading.digest, new_part.anchors(), promised, late),
    )


Named = TypeVar("Named", StoreRecord, AdmittedTurn)


def _renamed(value: Named | None, names: Mapping[str | None, str | None]) -> Named | None:
    """With the uuids of the records on disk, where the value has the ids under which the CLI printed them."""

    def on_disk(ids: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names.get(one) or one for one in ids)

    match value:
        case StoreRecord():
            return replace(value, promised=on_disk(value.promised), late=on_disk(value.late))
        case AdmittedTurn(texts=texts):
            return replace(
                value,
                message_id=names.get(value.message_id) or value.message_id,
                texts=None
                if texts is None
                else tuple(replace(one, uuid=names.get(one.uuid) or one.uuid) for one in texts),
                printed=on_disk(value.printed),
                bases=None if value.bases is None else on_disk(value.bases),
            )
        case None:
            return None


def _unreadable(record: StoreRecord | None, error: str, current: AdmittedTurn | None) -> StoreCheck:
    if error in _KNOWN_CAUSES:
        cause = _KNOWN_CAUSES[error]
        reason = Reason(cause, "a native store that can be written", error, Verdict.UNPROVEN)
        return StoreCheck((reason,), known_cause=cause)
    if error == "ABSENT" and record is None and current is not None:
        # A session whose first turn has just ended: all of it is still to come.
        promised = (current.message_id, *_lasting_texts(current))
        return StoreCheck((), promised, tuple(uuid for uuid in current.printed if uuid not in promised))
    if error == "ABSENT":
        return StoreCheck((Reason(MISSING, "the native store of the settled turns", "no such file"),))
    if error in _NOT_AS_LEFT:
        return StoreCheck((Reason(CHANGED, "a plain file of the member's own", error),))
    return StoreCheck((Reason(UNREADABLE, "a readable native store", error, Verdict.UNPROVEN),))


def _prefix(record: StoreRecord | None, reading: StoreReading) -> list[Reason]:
    if record is None:
        return []
    if reading.prefix_digest is None:
        return [Reason(MISSING, f"at least {record.length} bytes", f"{reading.length} bytes")]
    if reading.prefix_digest != record.digest:
        return [Reason(CHANGED, f"sha256 {record.digest} of the settled bytes", reading.prefix_digest)]
    return []


def _whole(segment: StoreSegment) -> list[Reason]:
    reasons = []
    if segment.bad_lines:
        lines = ", ".join(str(line) for line in segment.bad_lines[:10])
        reasons.append(Reason(TORN, "whole records", f"lines that are none, in the new part: {lines}"))
    if segment.torn_tail:
        # Not shown harmless for this kind of store: the next record is glued to the half one.
        reasons.append(Reason(TORN, "a line end after the last record", "none", Verdict.UNPROVEN))
    return reasons


def _sessions(segment: StoreSegment, session_id: str) -> list[Reason]:
    others = sorted({one.session_id for one in segment.records if one.session_id not in (None, session_id)} - {None})
    return [Reason("NATIVE_SESSION_MISMATCH", session_id, str(other)) for other in others[:3]]


def _lasting_texts(turn: AdmittedTurn) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text.uuid for text in turn.texts or () if text.uuid is not None and not text.aborted))


class _NewPart:
    """The records after the settled bytes, matched with the admitted turns."""

    def __init__(self, record: StoreRecord | None, segment: StoreSegment, turns: tuple[AdmittedTurn, ...]) -> None:
        self._record = record
        self._segment = segment
        self._turns = turns
        self._by_uuid = {one.uuid: one for one in segment.records if one.uuid is not None}
        bases = [one.line for one in segment.records if one.kind is RecordKind.NEW_BASE and self._is_compaction(one)]
        self._base_line = bases[0] if bases else None
        self._wrong_users: list[StoreRecordLine] = []
        self._turn_of: dict[str, AdmittedTurn] = {}  # a user record's uuid -> its turn
        self._match_users()
        awaited = (*record.promised, *record.late) if record else ()
        self._expected_uuids = {*awaited, *(uuid for turn in turns for uuid in turn.printed)}

    def _match_users(self) -> None:
        open_turns = list(self._turns)
        admitted_ids = {turn.message_id for turn in self._turns}
        for one in self._segment.records:
            # A user may say just what the CLI writes when a turn is interrupted: only the id tells such a message from a marker.
            is_marker_like = one.kind is RecordKind.TOOL and one.uuid in admitted_ids
            if one.kind is not RecordKind.USER and not is_marker_like:
                continue
            by_id = [turn for turn in open_turns if turn.message_id == one.uuid]
            candidates = by_id or [turn for turn in open_turns if turn.message_id not in self._by_uuid]
            match = next((turn for turn in candidates if _has_text(one, turn.message_digest)), None)
            if match is None or one.uuid is None or one.uuid in self._turn_of:
                # Below a compaction the CLI appends kept records again: an old text there is no new one.
                if not self._is_below_new_base(one):
                    self._wrong_users.append(one)
            else:
                open_turns.remove(match)
                self._turn_of[one.uuid] = match

    def unexplained(self) -> list[Reason]:
        found = [(one, "a user's text that no turn was admitted with") for one in self._wrong_users]
        for one in self._segment.records:
            why = self._why_unexplained(one)
            if why is not None:
                found.append((one, why))
        expected = "only what admitted turns and bookkeeping explain"
        # One reason names the first of them; a whole forged history would only repeat it.
        return [
            Reason(CHANGED, expected, f"record {one.line} of the new part: {why} ({len(found)} in all)")
            for one, why in sorted(found, key=lambda pair: pair[0].line)[:1]
        ]

    def _why_unexplained(self, one: StoreRecordLine) -> str | None:
        match one.kind:
            case RecordKind.BOOKKEEPING | RecordKind.USER:
                return None  # users were matched before
            case RecordKind.TOOL if one.uuid in self._turn_of:
                return None
            case RecordKind.NEW_BASE:
                return None if self._is_compaction(one) else "a compaction that no admitted turn's CLI printed"
            case RecordKind.FOREIGN:
                return "a kind that this agent does not write"
        if self._is_below_new_base(one):
            return None
        if one.uuid is not None and one.uuid in self._expected_uuids:
            return None if one.kind is RecordKind.TOOL else self._why_text_differs(one)
        turn = self._turn_above(one)
        if turn is None:
            return "a model's or a tool's record outside every admitted turn"
        if one.kind is RecordKind.ASSISTANT and turn.texts is not None:
            printed = {text.text_digest for text in turn.texts}
            if not set(one.text_digests) <= printed:
                return "a model's text that the CLI never printed"
        return None

    def _is_compaction(self, one: StoreRecordLine) -> bool:
        """Whether an admitted turn explains this new base: a tool that writes one into the store explains nothing below it."""
        return any(turn.bases is None or one.uuid in turn.bases for turn in self._turns)

    def _why_text_differs(self, one: StoreRecordLine) -> str | None:
        for turn in self._turns:
            printed = {text.text_digest for text in turn.texts or () if text.uuid == one.uuid}
            if printed and not set(one.text_digests) <= printed:
                return "another text than was printed under that id"
        return None

    def _turn_above(self, one: StoreRecordLine) -> AdmittedTurn | None:
        seen: set[str] = set()
        at = one.parent
        while at is not None and at not in seen:
            if at in self._turn_of:
                return self._turn_of[at]
            seen.add(at)
            parent = self._by_uuid.get(at)
            at = parent.parent if parent is not None else None
        return None

    def _is_below_new_base(self, one: StoreRecordLine) -> bool:
        return self._base_line is not None and one.line > self._base_line

    def off_the_chain(self, current: AdmittedTurn | None) -> list[Reason]:
        """Whether a resume would see everything: the settled part, what was promised, and the current turn."""
        segment, reasons = self._segment, []
        if segment.dangling is not None:
            reasons.append(Reason(BROKEN, "a parent that exists", f"none with the id {segment.dangling}"))
        elif segment.leaf is not None and not self._leads_to_settled():
            found = f"the leaf's walk leaves the new part at {segment.chain_exit}"
            reasons.append(Reason(BROKEN, "a walk from the leaf to the newest settled record", found))
        chain = set(segment.chain)
        wanted = list(self._record.promised) if self._record else []
        absent = [uuid for uuid in wanted if uuid not in self._by_uuid]
        if absent:
            reasons.append(Reason(BROKEN, f"the promised record {absent[0]}", "not in the store"))
        if current is not None:
            wanted += [uuid for uuid, turn in self._turn_of.items() if turn is current]
            wanted += [uuid for uuid in _lasting_texts(current) if uuid in self._by_uuid]
        if self._base_line is None:
            unreached = [uuid for uuid in wanted if uuid in self._by_uuid and uuid not in chain]
            if unreached:
                reasons.append(Reason(BROKEN, f"record {unreached[0]} on the way from the leaf", "not reached"))
        return reasons

    def _leads_to_settled(self) -> bool:
        exit_ = self._segment.chain_exit
        if self._record is None:
            return exit_ is None
        if exit_ is not None:
            return exit_ in self._record.anchors
        on_chain = (self._by_uuid[uuid] for uuid in self._segment.chain if uuid in self._by_uuid)
        return any(one.kind is RecordKind.NEW_BASE and self._is_compaction(one) for one in on_chain)

    def not_on_disk(self, current: AdmittedTurn | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What of the current turn is not there yet: what must come (message and lasting texts), and what may."""
        if current is None:
            return (), ()
        message = () if current in self._turn_of.values() else (current.message_id,)
        texts = tuple(uuid for uuid in _lasting_texts(current) if uuid not in self._by_uuid)
        late = tuple(uuid for uuid in current.printed if uuid not in self._by_uuid and uuid not in texts)
        return (*message, *texts), late

    def anchors(self) -> tuple[str, ...]:
        """Where the next new part may hang: the newest lasting record of this one and what is below it; or, where this one has
        none, the old anchors and what is below those."""
        if self._segment.hanging:
            return self._segment.hanging
        found = dict.fromkeys(self._record.anchors if self._record else ())
        for one in self._segment.records:
            if one.uuid is not None and one.parent in found:
                found[one.uuid] = None
        return tuple(found)


def _has_text(one: StoreRecordLine, digest: str) -> bool:
    """One block with the admitted text, or that and an empty one: the listed decoration."""
    return one.text_digests in ((digest,), (digest, EMPTY_TEXT_DIGEST))
