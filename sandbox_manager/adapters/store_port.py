"""The port of the manager's store: what any database must offer to keep the manager's records.

Reads give one snapshot each. `commit` applies a list of changes as one durable transaction or not at all; each change names the record
it was decided on, so two managers, or two tasks of one, cannot both act on the same facts. Decisions are made by the callers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from sandbox_manager.core.records import (
    ActivationRecord,
    AdmissionRecord,
    ConversationRef,
    GroupRecord,
    HostRecord,
    KeyRecord,
    LeftoverRecord,
    LocatorRecord,
    MemberRecord,
    SettlementRecord,
    StoreRecordRow,
    TombstoneRecord,
    TurnRecord,
)
from standfast_chassis.errors import StandfastError

Record = (
    HostRecord
    | GroupRecord
    | MemberRecord
    | LocatorRecord
    | StoreRecordRow
    | TurnRecord
    | ActivationRecord
    | AdmissionRecord
    | SettlementRecord
    | LeftoverRecord
    | TombstoneRecord
    | KeyRecord
)

R = TypeVar("R", bound=Record)


class WriteConflictError(StandfastError):
    """A record is not as it was when the change was decided. Nothing of the commit was written."""

    reason = "GENERATION_STALE"


@dataclass(frozen=True, slots=True)
class Insert:
    """A new record. Refused when its key, or another value that must be unique, is taken."""

    record: Record


@dataclass(frozen=True, slots=True)
class Update:
    """The record with new values; its `revision` is the one it was read with. The stored one becomes one higher."""

    record: Record


@dataclass(frozen=True, slots=True)
class Delete:
    """The record goes; its `revision` is the one it was read with."""

    record: Record


Change = Insert | Update | Delete


@dataclass(frozen=True, slots=True)
class Conversation:
    """All that is kept of one conversation, from one snapshot. `open_turns` are in the order they were claimed."""

    ref: ConversationRef
    tombstone: TombstoneRecord | None
    member: MemberRecord | None
    group: GroupRecord | None
    locator: LocatorRecord | None
    store: StoreRecordRow | None
    open_turns: tuple[TurnRecord, ...]
    leftovers: tuple[LeftoverRecord, ...]
    turns: int  # how many were ever claimed


@dataclass(frozen=True, slots=True)
class TurnStory:
    """All that is kept of one turn, from one snapshot."""

    turn: TurnRecord
    activation: ActivationRecord | None
    admission: AdmissionRecord | None
    settlement: SettlementRecord | None


class ManagerStore(Protocol):
    """The store. Every method may raise the store errors of the chassis."""

    async def conversation(self, ref: ConversationRef) -> Conversation:
        """What is kept of a conversation; of an unknown one, nothing."""

    async def conversations(self, tenant: str, after: str | None, limit: int) -> Sequence[Conversation]:
        """Members' conversations of a tenant, oldest first, behind the one whose member id is `after`."""

    async def turn(self, ref: ConversationRef, turn_id: str) -> TurnStory | None:
        """A turn and what belongs to it."""

    async def turn_of_activation(self, activation_id: str) -> TurnStory | None:
        """The turn that an activation was granted for, with what belongs to that activation: the turn may have a newer one."""

    async def settlement_by_request(self, request_id: str) -> SettlementRecord | None:
        """What a settle request was answered with."""

    async def open_turns(self) -> Sequence[TurnRecord]:
        """All turns that are neither settled nor given up."""

    async def group(self, group_id: str) -> GroupRecord | None:
        """A group."""

    async def groups(self) -> Sequence[GroupRecord]:
        """All groups whose container may exist."""

    async def hosts(self) -> Sequence[HostRecord]:
        """All hosts that ever registered."""

    async def host(self, host_id: str) -> HostRecord | None:
        """A host."""

    async def keys(self) -> Sequence[KeyRecord]:
        """All public keys that were seen."""

    async def commit(self, changes: Sequence[Change]) -> None:
        """Applies all changes in one durable transaction. Raises WriteConflictError and changes nothing when one does not apply."""
