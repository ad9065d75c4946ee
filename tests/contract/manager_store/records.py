"""Records with every field filled, for the store's contract."""

from __future__ import annotations

from typing import Any

from sandbox_manager.adapters.store_port import Record
from sandbox_manager.core.context import RecordedProcess
from sandbox_manager.core.records import (
    ActivationRecord,
    ActivationState,
    AdmissionRecord,
    ConversationRef,
    GroupRecord,
    HostRecord,
    KeyRecord,
    LeftoverRecord,
    LocatorRecord,
    Mark,
    Marks,
    MemberRecord,
    Names,
    Permissions,
    ProcessSettings,
    SettlementRecord,
    StoreRecordRow,
    TombstoneRecord,
    TurnRecord,
    TurnState,
)
from sandbox_manager.core.store_check import AdmittedTurn
from sandbox_manager.core.values import (
    AssistantText,
    ContextState,
    Generations,
    NativeLocator,
    ProcessDisposition,
    SlotProcess,
    StoreRecord,
    Verdict,
)

REF = ConversationRef("local", "c1")
LOCATOR = NativeLocator("claude-code", "aaaaaaaa-0000-4000-8000-000000000001", "/workspace", ".claude/a.jsonl")
KEPT = RecordedProcess(SlotProcess(12, 3400), 3, "2026-01-01T00:00:00Z", "5" * 64, "2.1.220")


def group(group_id: str = "g1", **changes: Any) -> GroupRecord:
    values: dict[str, Any] = {
        "tenant": "local",
        "conversation_id": "c1",
        "host_id": "h1",
        "state": "STOPPED",
        "container_generation": 2,
        "nonce": "n1",
        "container_id": "k1",
        "image_id": "sha256:i",
        "workspace": "/workspace",
        "started_at": "s",
        "stopped_container_id": "k1",
        "stopped_started_at": "s",
        "stopped_finished_at": "f",
    }
    return GroupRecord(group_id, **(values | changes))


def member(conversation_id: str = "c1", member_id: str = "m1", group_id: str = "g1", **changes: Any) -> MemberRecord:
    values: dict[str, Any] = {
        "last_settled_turn": "t1",
        "settled_turns": 1,
        "activation_generation": 4,
        "process_generation": 3,
        "kept": KEPT,
        "disposition": ProcessDisposition.KEPT,
        "disposition_reason": "ALL_IN_ORDER",
        "interrupted_turn": "t0",
    }
    return MemberRecord("local", conversation_id, member_id, group_id, 1, "claude-code", **(values | changes))


def turn(turn_id: str = "t1", ordinal: int = 1, state: TurnState = TurnState.CLAIMED, **changes: Any) -> TurnRecord:
    values: dict[str, Any] = {
        "tenant": "local",
        "conversation_id": "c1",
        "agent": "claude-code",
        "message_digest": "d" * 64,
        "message_length": 5,
        "runner_id": "r1",
        "runner_address": "r1:1",
    }
    return TurnRecord(turn_id=turn_id, ordinal=ordinal, state=state, **(values | changes))


def activation(activation_id: str = "a1", turn_id: str = "t1", generation: int = 4) -> ActivationRecord:
    return ActivationRecord(
        activation_id=activation_id,
        tenant="local",
        conversation_id="c1",
        turn_id=turn_id,
        member_id="m1",
        group_id="g1",
        host_id="h1",
        runner_id="r1",
        state=ActivationState.GRANTED,
        container_id="k1",
        container_generation=2,
        process_generation=3,
        activation_generation=generation,
        locator=LOCATOR,
        message_id="e1",
        resumes=True,
        first_turn=False,
        settings=ProcessSettings("m", Permissions("ask", ("Bash",), ()), (("max_retries", "1"),), "5" * 64),
        kept=KEPT,
        may_reuse=True,
        container_started=False,
        token="x.y.z",
    )


def admission(activation_id: str = "a1", turn_id: str = "t1") -> AdmissionRecord:
    return AdmissionRecord(
        activation_id=activation_id,
        tenant="local",
        conversation_id="c1",
        turn_id=turn_id,
        message_digest="d" * 64,
        message_length=5,
        message_id="e1",
        context_state=ContextState.RESTORED,
        context_reason="SANDBOX_STOPPED",
        process_generation=3,
        process=SlotProcess(12, 3400),
        agent_version="2.1.220",
        container_started_at="s",
        report_digest="b" * 64,
        admission_jws="x.y.z",
    )


def settlement(
    activation_id: str = "a1", turn_id: str = "t1", request_id: str = "q1", **changes: Any
) -> SettlementRecord:
    values: dict[str, Any] = {
        "tenant": "local",
        "conversation_id": "c1",
        "saved": True,
        "outcome": "COMPLETED",
        "manager_verdict": Verdict.CONFIRMED,
        "store_verdict": "PROMISED",
        "runner_verdict": None,
        "findings": Marks((Mark("CODE", "expected ü", "observed"),)),
        "process_disposition": ProcessDisposition.RETIRED,
        "process_reason": "STORE_PROMISED",
        "locator": LOCATOR,
        "generations": Generations(2, 3, 4),
        "container_id": "k1",
        "end_evidence_digest": "e" * 64,
        "end_reason": "completed",
        "observation_digest": "0" * 64,
    }
    return SettlementRecord(activation_id, request_id, turn_id=turn_id, **(values | changes))


def leftover(activation_id: str = "a1") -> LeftoverRecord:
    admitted = AdmittedTurn("e1", "d" * 64, (AssistantText("u", "f" * 64, aborted=True),), ("u", "v"))
    return LeftoverRecord(activation_id, "local", "c1", "t1", LOCATOR.native_session_id, admitted)


def locator(conversation_id: str = "c1", group_id: str = "g1") -> LocatorRecord:
    return LocatorRecord("local", conversation_id, group_id, "m1", LOCATOR.native_session_id, LOCATOR, "t1")


def store_record() -> StoreRecordRow:
    record = StoreRecord(100, "1" * 64, ("u1", "u2"), ("p1",), ("l1",))
    return StoreRecordRow("local", "c1", "t1", 100, "1" * 64, record)


def host(host_id: str = "h1") -> HostRecord:
    return HostRecord(
        host_id=host_id,
        state="READY",
        public_key_jwk="{}",
        address="127.0.0.1:1",
        engine="local",
        release_sha="a" * 40,
        image_id="sha256:i",
        boot_id="b",
        agents=Names(("claude-code",)),
        lease_generation=1,
        attested_by="9" * 64,
        findings=Marks((Mark("X", "a", "b"),)),
    )


def one_of_each() -> list[Record]:
    """A record of every type."""
    return [
        host(),
        group(),
        member(),
        turn(state=TurnState.ADMITTED, activation_id="a1", context_state=ContextState.LIVE),
        activation(),
        admission(),
        settlement(),
        leftover(),
        locator(),
        store_record(),
        TombstoneRecord("local", "c1", "g1"),
        KeyRecord("k", "manager", "{}"),
    ]
