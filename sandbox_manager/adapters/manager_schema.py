"""The tables of the manager's SQLite store and their history. A migration that was released is never changed: columns are listed here,
and a test holds them against the records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import sqlite_utils
from sqlite_utils import Migrations

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


TABLES: Mapping[type[Any], Table] = MappingProxyType(
    {
        HostRecord: Table("hosts", ("host_id",)),
        GroupRecord: Table("groups", ("group_id",)),
        MemberRecord: Table("members", _CONVERSATION),
        LocatorRecord: Table("locators", _CONVERSATION),
        StoreRecordRow: Table("store_records", _CONVERSATION),
        TurnRecord: Table("turns", (*_CONVERSATION, "turn_id")),
        ActivationRecord: Table("activations", ("activation_id",)),
        AdmissionRecord: Table("admissions", ("activation_id",)),
        SettlementRecord: Table("settlements", ("activation_id",)),
        LeftoverRecord: Table("leftovers", ("activation_id",)),
        TombstoneRecord: Table("tombstones", _CONVERSATION),
        KeyRecord: Table("keys", ("key_id",)),
    }
)


# What m001 makes: the key, and the other columns; `?` marks what may be unknown, `#` a whole number. Value objects are JSON texts.
_M001: Mapping[str, tuple[tuple[str, ...], str]] = MappingProxyType(
    {
        "hosts": (
            ("host_id",),
            "state public_key_jwk address engine release_sha image_id boot_id agents #lease_generation "
            "attested_by findings",
        ),
        "groups": (
            ("group_id",),
            "tenant conversation_id host_id state #container_generation nonce ?container_id ?image_id "
            "?workspace ?started_at ?stopped_container_id ?stopped_started_at ?stopped_finished_at #released",
        ),
        "members": (
            _CONVERSATION,
            "member_id group_id #slot agent ?last_settled_turn #settled_turns #activation_generation "
            "#process_generation ?kept ?disposition ?disposition_reason ?interrupted_turn",
        ),
        "locators": (
            _CONVERSATION,
            "group_id member_id native_session_id locator turn_id",
        ),
        "store_records": (
            _CONVERSATION,
            "turn_id #length digest record",
        ),
        "turns": (
            (*_CONVERSATION, "turn_id"),
            "#ordinal agent message_digest #message_length state runner_id runner_address ?activation_id "
            "?outcome ?reason ?cause ?context_state ?context_reason",
        ),
        "activations": (
            ("activation_id",),
            "tenant conversation_id turn_id member_id group_id host_id runner_id state container_id "
            "#container_generation #process_generation #activation_generation locator message_id #resumes "
            "#first_turn settings ?kept #may_reuse #container_started token",
        ),
        "admissions": (
            ("activation_id",),
            "tenant conversation_id turn_id message_digest #message_length message_id context_state "
            "context_reason #process_generation ?process ?agent_version container_started_at report_digest "
            "admission_jws",
        ),
        "settlements": (
            ("activation_id",),
            "request_id tenant conversation_id turn_id #saved outcome manager_verdict store_verdict "
            "?runner_verdict findings process_disposition process_reason ?locator generations container_id "
            "end_evidence_digest end_reason observation_digest",
        ),
        "leftovers": (
            ("activation_id",),
            "tenant conversation_id turn_id native_session_id admitted",
        ),
        "tombstones": (
            _CONVERSATION,
            "group_id",
        ),
        "keys": (
            ("key_id",),
            "owner jwk",
        ),
    }
)


@migrations()
def m001_records(db: sqlite_utils.Database) -> None:
    """A table for each record type."""
    for name, (key, listed) in _M001.items():
        _create(db, name, key, listed)
    for table, unique in (
        ("members", ["member_id"]),
        ("members", ["group_id", "slot"]),
        # A native session belongs to one member: two would be two writers.
        ("locators", ["group_id", "native_session_id"]),
        ("turns", [*_CONVERSATION, "ordinal"]),
        ("activations", ["member_id", "activation_generation"]),
        ("admissions", [*_CONVERSATION, "turn_id"]),
        ("settlements", ["request_id"]),
        ("settlements", [*_CONVERSATION, "turn_id"]),
    ):
        _table(db, table).create_index(unique, unique=True)
    for table, indexed in (("turns", ["state"]), ("leftovers", list(_CONVERSATION))):
        _table(db, table).create_index(indexed)
    # One unresolved prompt a conversation: a second grant is refused by the database itself.
    db.execute(
        "create unique index one_granted_turn on turns (tenant, conversation_id) where state in ('PREPARED', 'ADMITTED')"
    )


@migrations()
def m002_settings(db: sqlite_utils.Database) -> None:
    """A member's model, permissions and options. JSON; unknown for a member that was never granted any."""
    _table(db, "members").add_column("settings", str)


def _create(db: sqlite_utils.Database, name: str, key: tuple[str, ...], listed: str) -> None:
    """A table with its key columns, then those listed in their order, then the revision."""
    types: dict[str, type] = dict.fromkeys(key, str)
    optional = set()
    for column in listed.split():
        types[column.lstrip("#?")] = int if column.startswith("#") else str
        if column.startswith("?"):
            optional.add(column.lstrip("?"))
    types["revision"] = int
    pk = key[0] if len(key) == 1 else key
    _table(db, name).create(types, pk=pk, not_null=set(types) - optional)


def _table(db: sqlite_utils.Database, name: str) -> Any:
    return db[name]
