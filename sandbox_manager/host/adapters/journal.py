"""The host agent's journal: what happened to each activation, outside the sandbox, in one SQLite file of its own.

A row is made when an activation is attached; FORWARDED is durable before the first byte of a message goes to a CLI; the signed
observation is written once and never changed. It also keeps the fences: the newest generation seen of each group and member.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlite_utils
from sqlite_utils import Migrations

from sandbox_manager.host.errors import (
    ActivationUnknownError,
    ActivationUsedError,
    GenerationStaleError,
)
from standfast_chassis.database import Database

OPEN = "OPEN"
FORWARDED = "FORWARDED"
OBSERVED = "OBSERVED"
NEVER_FORWARDED = "NEVER_FORWARDED"

migrations = Migrations("standfast.host_agent")


@migrations()
def m001_activations(db: sqlite_utils.Database) -> None:
    """Activations and fences."""
    activations: Any = db["activations"]
    activations.create(
        {
            "activation_id": str,
            "group_id": str,
            "member_id": str,
            "state": str,
            "token": str,
            "process_generation": int,
            "process_was_new": int,
            "tap_from": int,
            "tap_forwarded": int,
            "admission": str,
            "native_end_seen": int,
            "interrupted_by": str,
            "observation_jws": str,
            "report_jws": str,
        },
        pk="activation_id",
        not_null={"activation_id", "group_id", "member_id", "state", "token"},
    )
    activations.create_index(["state"])
    fences: Any = db["fences"]
    fences.create({"subject": str, "generation": int}, pk="subject", not_null={"subject", "generation"})


@dataclass(frozen=True, slots=True)
class ActivationRow:
    """One activation as journalled. `token` is the grant's payload."""

    activation_id: str
    group_id: str
    member_id: str
    state: str
    token: Mapping[str, Any]
    process_generation: int | None
    process_was_new: bool | None
    tap_from: int | None
    tap_forwarded: int | None
    admission: Mapping[str, Any] | None
    native_end_seen: bool
    interrupted_by: str | None
    observation_jws: str | None

    @property
    def was_forwarded(self) -> bool:
        """Whether the message's first byte may have gone to the CLI."""
        return self.tap_forwarded is not None


class Journal:
    """The journal over an open store. Every method is one durable transaction."""

    def __init__(self, db: Database) -> None:
        self._db = db

    @staticmethod
    def open(path: Path) -> Database:
        """The store to enter as an async context manager."""
        return Database(path, migrations)

    async def attach(self, token: Mapping[str, Any]) -> None:
        """Records that an activation is attached.

        Raises ActivationUsedError when it was before, GenerationStaleError when its group or member has been seen with a newer
        generation.
        """
        activation_id = str(token["activation_id"])
        group_id, member_id = str(token["group_id"]), str(token["member_id"])
        container_generation, activation_generation = (
            int(token["container_generation"]),
            int(token["activation_generation"]),
        )

        def write(db: sqlite_utils.Database) -> None:
            if list(db.query("select 1 from activations where activation_id = ?", [activation_id])):
                raise ActivationUsedError(activation_id)
            _raise_fence(db, f"group:{group_id}", container_generation, equal_is_newer=False)
            _raise_fence(db, f"member:{member_id}", activation_generation, equal_is_newer=True)
            activations: Any = db["activations"]
            activations.insert(
                {
                    "activation_id": activation_id,
                    "group_id": group_id,
                    "member_id": member_id,
                    "state": OPEN,
                    "token": json.dumps(dict(token), sort_keys=True),
                    "native_end_seen": 0,
                }
            )

        await self._db.write(write)

    async def fence_group(self, group_id: str, container_generation: int) -> None:
        """Raises the group's fence. Raises GenerationStaleError when a newer generation is known."""
        await self._db.write(
            lambda db: _raise_fence(db, f"group:{group_id}", container_generation, equal_is_newer=False)
        )

    async def require_group(self, group_id: str, container_generation: int) -> None:
        """Raises GenerationStaleError when a newer generation of the group is known. Writes nothing: it holds on a full disk, too."""

        def read(db: sqlite_utils.Database) -> None:
            _require_current(db, f"group:{group_id}", container_generation, equal_is_newer=False)

        await self._db.read(read)

    async def process_found(self, activation_id: str, *, process_generation: int, was_new: bool, tap_from: int) -> None:
        """Records the process that serves an activation and where its tap stood."""
        await self._update(
            activation_id,
            {"process_generation": process_generation, "process_was_new": int(was_new), "tap_from": tap_from},
        )

    async def forwarding(self, activation_id: str, admission: Mapping[str, Any], tap_offset: int) -> None:
        """Makes FORWARDED durable. To be awaited before the first byte of the message is written."""
        await self._update(
            activation_id,
            {
                "state": FORWARDED,
                "admission": json.dumps(dict(admission), sort_keys=True),
                "tap_forwarded": tap_offset,
            },
        )

    async def interrupted(self, activation_id: str, cause: str) -> None:
        """Records why a native turn is being interrupted; the first cause stays."""

        def write(db: sqlite_utils.Database) -> None:
            db.execute(
                "update activations set interrupted_by = coalesce(interrupted_by, ?) where activation_id = ?",
                [cause, activation_id],
            )

        await self._db.write(write)

    async def observed(self, activation_id: str, *, observation_jws: str, native_end_seen: bool, sent: bool) -> None:
        """Writes the observation, once. A second one for the same activation is ignored: the first is the evidence."""

        def write(db: sqlite_utils.Database) -> None:
            db.execute(
                "update activations set state = ?, observation_jws = ?, native_end_seen = ?"
                " where activation_id = ? and observation_jws is null",
                [OBSERVED if sent else NEVER_FORWARDED, observation_jws, int(native_end_seen), activation_id],
            )

        await self._db.write(write)

    async def rows(self, activation_ids: Sequence[str]) -> list[ActivationRow]:
        """The rows of known activations; unknown ones are left out."""

        def read(db: sqlite_utils.Database) -> list[ActivationRow]:
            found: list[ActivationRow] = []
            for activation_id in activation_ids:
                found += [
                    _row(row) for row in db.query("select * from activations where activation_id = ?", [activation_id])
                ]
            return found

        return await self._db.read(read)

    async def row(self, activation_id: str) -> ActivationRow:
        """One row. Raises ActivationUnknownError."""
        rows = await self.rows([activation_id])
        if not rows:
            raise ActivationUnknownError(activation_id)
        return rows[0]

    async def unobserved(self) -> list[ActivationRow]:
        """Activations that a former run of this process left without an observation."""
        return await self._db.read(
            lambda db: [
                _row(row)
                for row in db.query("select * from activations where state in (?, ?) order by rowid", [OPEN, FORWARDED])
            ]
        )

    async def _update(self, activation_id: str, values: Mapping[str, Any]) -> None:
        def write(db: sqlite_utils.Database) -> None:
            activations: Any = db["activations"]
            activations.update(activation_id, dict(values))

        await self._db.write(write)


def _require_current(db: sqlite_utils.Database, subject: str, generation: int, *, equal_is_newer: bool) -> int | None:
    """The newest generation that is known, None when there is none. Raises GenerationStaleError."""
    known = [int(row["generation"]) for row in db.query("select generation from fences where subject = ?", [subject])]
    if known and (generation < known[0] or (equal_is_newer and generation == known[0])):
        raise GenerationStaleError(subject, expected=known[0], found=generation)
    return known[0] if known else None


def _raise_fence(db: sqlite_utils.Database, subject: str, generation: int, *, equal_is_newer: bool) -> None:
    if _require_current(db, subject, generation, equal_is_newer=equal_is_newer) == generation:
        return  # nothing to write, so nothing to sync
    db.execute(
        "insert into fences (subject, generation) values (?, ?)"
        " on conflict (subject) do update set generation = excluded.generation",
        [subject, generation],
    )


def _row(row: Mapping[str, Any]) -> ActivationRow:
    return ActivationRow(
        activation_id=row["activation_id"],
        group_id=row["group_id"],
        member_id=row["member_id"],
        state=row["state"],
        token=json.loads(row["token"]),
        process_generation=row["process_generation"],
        process_was_new=None if row["process_was_new"] is None else bool(row["process_was_new"]),
        tap_from=row["tap_from"],
        tap_forwarded=row["tap_forwarded"],
        admission=None if row["admission"] is None else json.loads(row["admission"]),
        native_end_seen=bool(row["native_end_seen"]),
        interrupted_by=row["interrupted_by"],
        observation_jws=row["observation_jws"],
    )
