"""The overlay: which part of a history is sent repaired, anchored to the history it was made from.

`cutoff` counts the messages of the source history; `anchor` is the fingerprint of its last one. Later requests repair
all up to the anchor and send what follows as it is. A history that was rewound has no anchor: the overlay then does not
apply. Also here: the record that keeps it (version 1) and how one is read back.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from direct_agent.core.acceptance import accept
from direct_agent.core.endpoint import Endpoint, EndpointKind
from direct_agent.core.native_text import with_unsigned_as_text
from direct_agent.core.projection import base_view
from direct_agent.recovery.attempt_machine import RepairKind
from direct_agent.recovery.repaired_view import Findings, Strips, no_findings, repaired
from direct_agent.transcript import AssistantMessage, Message, ToolCall, ToolResult, Transcript, run_state
from direct_agent.transcript_json import canonical_bytes, to_json

RECORD_VERSION = 1


@dataclass(frozen=True, slots=True)
class Overlay:
    """`cutoff` messages of the source; `anchor`: fingerprint of the last of them.

    `is_selective`: only what the endpoint cannot take is stripped (native Claude), not all reasoning.
    """

    cutoff: int
    anchor: str
    is_selective: bool = False

    def end_in(self, transcript: Transcript) -> int | None:
        """How many messages of `transcript` the repair covers; None when the anchor is gone."""
        for at in range(self.cutoff - 1, len(transcript)):
            if fingerprint(transcript[at]) == self.anchor:
                return at + 1
        return None


def provider_view(
    endpoint: Endpoint, transcript: Transcript, overlay: Overlay | None = None, findings: Findings = no_findings
) -> Transcript:
    """The messages to send: repaired up to the overlay's anchor, plain after it. The same object when nothing changes."""
    end = overlay.end_in(transcript) if overlay is not None else None
    if overlay is None or end is None:
        view = base_view(transcript)
    else:
        head = base_view(transcript[:end])
        strips = unsendable(endpoint) if overlay.is_selective else None
        mended = repaired(head, transcript, findings, strips)
        view = base_view(transcript) if mended is head else mended + base_view(transcript[end:])
    return with_unsigned_as_text(view) if endpoint.kind is EndpointKind.NATIVE_CLAUDE else view


def unsendable(endpoint: Endpoint) -> Strips:
    """Messages whose stored reasoning the endpoint is known to refuse, and for which no lossless form exists."""
    return lambda message: not accept(endpoint, message, is_whole=True).commits


def overlay_of(transcript: Transcript, *, is_selective: bool = False) -> Overlay:
    """The overlay that covers all of a (not empty) history."""
    return Overlay(len(transcript), fingerprint(transcript[-1]), is_selective)


def fingerprint(message: Message) -> str:
    """Hex SHA-256 over what a provider would see of the message. Intents and run states are not part of it."""
    return hashlib.sha256(canonical_bytes(_visible(message))).hexdigest()


def history_digest(transcript: Transcript) -> str:
    """Hex SHA-256 over the messages, in order, as a provider would see them."""
    digest = hashlib.sha256()
    for message in transcript:
        digest.update(fingerprint(message).encode())
    return digest.hexdigest()


def evidence_digest(transcript: Transcript) -> str:
    """Hex SHA-256 over the receipts: call id, name and run state, in order."""
    receipts = [[each.call_id, each.name, run_state(each).value] for each in transcript if isinstance(each, ToolResult)]
    return hashlib.sha256(canonical_bytes(receipts)).hexdigest()


def incident_of(transcript: Transcript) -> str:
    """Names what a refusal is about: the last assistant message with calls or reasoning. Hex; the same until another."""
    marks = [
        at
        for at, each in enumerate(transcript)
        if isinstance(each, AssistantMessage) and (each.tool_calls or each.reasoning)
    ]
    at = marks[-1] if marks else -1
    named = fingerprint(transcript[at]) if marks else "none"
    return hashlib.sha256(f"{len(marks)}:{named}".encode()).hexdigest()[:32]


def _visible(message: Message) -> dict[str, Any]:
    value = to_json(message)
    if isinstance(message, AssistantMessage):
        value = to_json(replace(message, tool_calls=tuple(_bare(call) for call in message.tool_calls)))
    return {key: each for key, each in value.items() if key not in ("state", "host")}


def _bare(call: ToolCall) -> ToolCall:
    return replace(call, intents=())


class RecordState(StrEnum):
    """PENDING: saved before the repaired request. ACTIVE: its round succeeded, later rounds use it."""

    PENDING = "pending"
    ACTIVE = "active"


@dataclass(frozen=True, slots=True)
class RepairRecord:
    """One repair, as kept. `scope` names the provider configuration. All digests are hex SHA-256."""

    record_id: str
    kind: RepairKind
    state: RecordState
    scope: str
    incident: str
    history_digest: str
    history_count: int
    cutoff: int
    anchor: str
    evidence_digest: str
    is_selective: bool = False

    def to_bytes(self) -> bytes:
        return canonical_bytes(
            {
                "version": RECORD_VERSION,
                "id": self.record_id,
                "kind": self.kind.value,
                "state": self.state.value,
                "scope": self.scope,
                "incident": self.incident,
                "history_digest": self.history_digest,
                "history_count": self.history_count,
                "cutoff": self.cutoff,
                "anchor": self.anchor,
                "evidence_digest": self.evidence_digest,
                "selective": self.is_selective,
            }
        )

    @property
    def overlay(self) -> Overlay:
        return Overlay(self.cutoff, self.anchor, self.is_selective)

    def holds_for(self, scope: str, transcript: Transcript) -> bool:
        """Whether it may be restored: the same configuration, and the history it was made from is still there."""
        return (
            self.scope == scope
            and len(transcript) >= self.history_count
            and history_digest(transcript[: self.history_count]) == self.history_digest
        )


def record_from(raw: bytes) -> RepairRecord | None:
    """The record, or None when it is of another version or not one at all; the raw bytes then stay as they are."""
    try:
        value = json.loads(raw)
        if not isinstance(value, dict) or value.get("version") != RECORD_VERSION:
            return None
        return RepairRecord(
            record_id=str(value["id"]),
            kind=RepairKind(value["kind"]),
            state=RecordState(value["state"]),
            scope=str(value["scope"]),
            incident=str(value["incident"]),
            history_digest=str(value["history_digest"]),
            history_count=int(value["history_count"]),
            cutoff=int(value["cutoff"]),
            anchor=str(value["anchor"]),
            evidence_digest=str(value["evidence_digest"]),
            is_selective=bool(value["selective"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
