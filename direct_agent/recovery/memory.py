"""What one conversation remembers of its repairs, between rounds and across reloads. No I/O.

It holds the active overlay, which incidents have had their repair, and every record as raw bytes. One memory belongs to
one provider configuration (`scope`): another configuration starts with its own allowances.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from direct_agent.core.acceptance import Acceptance, accept, is_healthy_tool_round
from direct_agent.core.endpoint import Endpoint
from direct_agent.recovery.attempt_machine import RepairKind
from direct_agent.recovery.overlay import (
    Overlay,
    RecordState,
    RepairRecord,
    evidence_digest,
    fingerprint,
    history_digest,
    incident_of,
    record_from,
)
from direct_agent.transcript import AssistantMessage, Transcript

HEALTHY_ROUNDS = 3
"""So many healthy tool rounds end an incident of missing reasoning."""


class RepairMemory:
    """`overlay` covers what is sent repaired; `records` are all records in order, those of other versions too."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self.scope = endpoint.scope()
        self.overlay: Overlay | None = None
        self.records: list[bytes] = []
        self.output_max: int | None = None
        self._used_incidents: set[str] = set()
        self._healthy_rounds: int | None = None
        """Healthy tool rounds since a regeneration; None while no incident is open."""

    @classmethod
    def restored(cls, endpoint: Endpoint, records: Sequence[bytes], transcript: Transcript) -> RepairMemory:
        """The memory that saved records give with the history of today.

        Kept back: an overlay of another configuration, or of a history that is no longer there. A record of another
        version is kept as it is, and the incident at hand counts as already repaired.
        """
        memory = cls(endpoint)
        memory.records = list(records)
        for raw in records:
            record = record_from(raw)
            if record is None:
                memory._used_incidents.add(incident_of(transcript))
            elif record.holds_for(memory.scope, transcript):
                memory._restore(record, transcript)
        return memory

    def _restore(self, record: RepairRecord, transcript: Transcript) -> None:
        if record.kind is RepairKind.REGENERATE:
            self._healthy_rounds = 0
            later = transcript[record.history_count :]
            answers = [each for each in later if isinstance(each, AssistantMessage)]
            # The first answer after the record is the regenerated one.
            for answer in answers[1:]:
                self._count(accept(self._endpoint, answer, is_whole=True), answer)
        if record.kind is RepairKind.HISTORY:
            self._used_incidents.add(record.incident)
        is_history = record.kind in (RepairKind.HISTORY, RepairKind.REGENERATE)
        if is_history and record.state is RecordState.ACTIVE and record.cutoff:
            self.overlay = record.overlay

    def may_repair_history(self, transcript: Transcript) -> bool:
        """False for an incident that was repaired before: a further refusal of it is final."""
        return incident_of(transcript) not in self._used_incidents

    @property
    def is_regeneration_used(self) -> bool:
        """Whether the open incident of missing reasoning has had its one regeneration."""
        return self._healthy_rounds is not None

    def record(self, record_id: str, kind: RepairKind, transcript: Transcript, overlay: Overlay | None) -> RepairRecord:
        """A record to persist before its request is sent. `overlay` None: the same messages go again."""
        return RepairRecord(
            record_id=record_id,
            kind=kind,
            state=RecordState.PENDING,
            scope=self.scope,
            incident=incident_of(transcript),
            history_digest=history_digest(transcript),
            history_count=len(transcript),
            cutoff=overlay.cutoff if overlay is not None else 0,
            anchor=overlay.anchor if overlay is not None else fingerprint(transcript[-1]) if transcript else "",
            evidence_digest=evidence_digest(transcript),
            is_selective=overlay is not None and overlay.is_selective,
        )

    def saved(self, record: RepairRecord) -> None:
        """The record is durable: its allowance is used from now on, whatever comes of the request."""
        self.records.append(record.to_bytes())
        if record.kind is RepairKind.HISTORY:
            self._used_incidents.add(record.incident)
        elif record.kind is RepairKind.REGENERATE:
            self._healthy_rounds = 0

    def activated(self, record: RepairRecord) -> RepairRecord:
        """The record of a round that succeeded: the overlay serves later rounds."""
        return replace(record, state=RecordState.ACTIVE)

    def activate(self, record: RepairRecord) -> None:
        """Its active form is durable."""
        self.records.append(record.to_bytes())
        self.overlay = record.overlay

    def committed(self, acceptance: Acceptance, message: AssistantMessage, *, was_regenerated: bool) -> None:
        """A round was committed. The regenerated answer itself does not count as a healthy round."""
        if not was_regenerated:
            self._count(acceptance, message)

    def _count(self, acceptance: Acceptance, message: AssistantMessage) -> None:
        if self._healthy_rounds is not None and is_healthy_tool_round(acceptance, message):
            self._healthy_rounds += 1
            if self._healthy_rounds >= HEALTHY_ROUNDS:
                self._healthy_rounds = None
