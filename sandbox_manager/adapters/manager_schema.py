"""The tables of the manager's SQLite store and their history. A migration that was released is never changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import sqlite_utils
from sqlite_utils import Migrations

from sandbox_manager.adapters.record_rows import columns
from sandbox_manager.core.records import (
    ActivationRecord,
    AdmissionRecord,
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

migrations = Migrations("standfast.sandbox_manager")

_CONVERSATION = ("tenant", "conversation_id")


@dataclass(frozen=True, slots=True)
class Table:
    """Where a record type is kept. `key` are the columns that name one record."""

    name: str
    key: tuple[str, ...]
    unique: tuple[tuple[str, ...], ...] = ()
    indexed: tuple[tuple[str, ...], ...] = ()


TABLES: Mapping[type[Any], Table] = MappingProxyType(
    {
        HostRecord: Table("hosts", ("host_id",)),
        GroupRecord: Table("groups", ("group_id",)),
        MemberRecord: Table("members", _CONVERSATION, unique=(("member_id",), ("group_id", "slot"))),
        # A native session belongs to one member: two would be two writers.
        LocatorRecord: Table("locators", _CONVERSATION, unique=(("group_id", "native_session_id"),)),
        StoreRecordRow: Table("store_records", _CONVERSATION),
        TurnRecord: Table(
            "turns", (*_CONVERSATION, "turn_id"), unique=((*_CONVERSATION, "ordinal"),), indexed=(("state",),)
        ),
        ActivationRecord: Table(
            "activations",
            ("activation_id",),
            unique=(("member_id", "activation_generation"),),
            indexed=((*_CONVERSATION, "turn_id"),),
        ),
        AdmissionRecord: Table("admissions", ("activation_id",), unique=((*_CONVERSATION, "turn_id"),)),
        SettlementRecord: Table(
            "settlements", ("activation_id",), unique=(("request_id",), (*_CONVERSATION, "turn_id"))
        ),
        LeftoverRecord: Table("leftovers", ("activation_id",), indexed=(_CONVERSATION,)),
        TombstoneRecord: Table("tombstones", _CONVERSATION),
        KeyRecord: Table("keys", ("key_id",)),
    }
)


@migrations()
def m001_records(db: sqlite_utils.Database) -> None:
    """A table for each record type."""
    for record_type, table in TABLES.items():
        shape = columns(record_type)
        made: Any = db[table.name]
        made.create(
            {column.name: column.sql_type for column in shape},
            pk=table.key if len(table.key) > 1 else table.key[0],
            not_null={column.name for column in shape if not column.is_optional},
        )
        for names in table.unique:
            made.create_index(list(names), unique=True)
        for names in table.indexed:
            made.create_index(list(names))
    # One unresolved prompt per conversation: a second grant is refused by the database itself.
    db.execute(
        "create unique index one_granted_turn on turns (tenant, conversation_id) where state in ('PREPARED', 'ADMITTED')"
    )
