"""Admission and settlement as the manager's own store makes them durable, against one fsync'd transaction by hand; and how many at once.

By hand: the standard library's sqlite3, WAL, synchronous=FULL, one row of about the same size, one commit. The pair writes the same
records, by the same changes, as the manager's Admitting and Settling do.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sandbox_manager.adapters.manager_store import SqliteManagerStore
from sandbox_manager.adapters.store_port import Change, Delete, Insert, Update
from sandbox_manager.core.judgement import Outcome
from sandbox_manager.core.records import (
    ActivationRecord,
    ActivationState,
    AdmissionRecord,
    LeftoverRecord,
    LocatorRecord,
    Marks,
    MemberRecord,
    Permissions,
    ProcessSettings,
    SettlementRecord,
    StoreRecordRow,
    TurnRecord,
    TurnState,
)
from sandbox_manager.core.store_check import AdmittedTurn
from sandbox_manager.core.values import (
    ContextState,
    Generations,
    NativeLocator,
    ProcessDisposition,
    SlotProcess,
    StoreRecord,
    Verdict,
)
from standfast_lab.bench.figures import Figure, median, summed_up

_CLIENTS = 64
_DIGEST = "0" * 64
_TOKEN = "t" * 1200
_TENANT = "bench"
_SETTINGS = ProcessSettings(None, Permissions(), (), _DIGEST)
_RATE_GOAL = 500.0


class Client:
    """One conversation's records, as they come and go. `prepare` is not measured: claim and grant are earlier transactions."""

    def __init__(self, store: SqliteManagerStore, number: int) -> None:
        self._store = store
        self._id = f"c{number}"
        self._turns = 0
        self._locator = NativeLocator(
            "claude-code", f"session-{number}", "/workspace", f".claude/projects/w/{number}.jsonl"
        )
        self._member = MemberRecord(_TENANT, self._id, f"m{number}", f"g{number}", 1, "claude-code")
        self._saved: LocatorRecord | None = None
        self._row: StoreRecordRow | None = None
        self._turn: TurnRecord
        self._activation: ActivationRecord

    async def begin(self) -> None:
        """The member."""
        await self._store.commit([Insert(self._member)])

    async def prepare(self) -> None:
        """Turn and activation of the next pair."""
        self._turns += 1
        self._turn = TurnRecord(
            _TENANT,
            self._id,
            f"t{self._turns}",
            self._turns,
            "claude-code",
            _DIGEST,
            20,
            TurnState.PREPARED,
            "runner",
            "a:1",
        )
        self._activation = ActivationRecord(
            activation_id=f"{self._id}-{self._turns}",
            tenant=_TENANT,
            conversation_id=self._id,
            turn_id=self._turn.turn_id,
            member_id=self._member.member_id,
            group_id=self._member.group_id,
            host_id="host",
            runner_id="runner",
            state=ActivationState.GRANTED,
            container_id=_DIGEST,
            container_generation=1,
            process_generation=1,
            activation_generation=self._turns,
            locator=self._locator,
            message_id=f"message-{self._id}-{self._turns}",
            resumes=self._turns > 1,
            first_turn=self._turns == 1,
            settings=_SETTINGS,
            kept=None,
            may_reuse=True,
            container_started=False,
            token=_TOKEN,
        )
        self._turn = replace(self._turn, activation_id=self._activation.activation_id)
        await self._store.commit([Insert(self._turn), Insert(self._activation)])

    async def pair(self) -> None:
        """Admits and settles: two transactions, each durable when it returns."""
        await self._store.commit(self._admission())
        await self._store.commit(self._settlement())

    def _admission(self) -> list[Change]:
        turn, activation = self._turn, self._activation
        key = (activation.activation_id, _TENANT, self._id, turn.turn_id)
        self._leftover = LeftoverRecord(
            *key, self._locator.native_session_id, AdmittedTurn(activation.message_id, turn.message_digest)
        )
        admission = AdmissionRecord(
            *key,
            message_digest=turn.message_digest,
            message_length=turn.message_length,
            message_id=activation.message_id,
            context_state=ContextState.LIVE,
            context_reason="PROCESS_KEPT",
            process_generation=1,
            process=SlotProcess(42, 4242),
            agent_version="2.1.220",
            container_started_at="2026-01-01T00:00:00Z",
            report_digest=_DIGEST,
            admission_jws=_TOKEN[:500],
        )
        changes: list[Change] = [
            Insert(admission),
            Insert(self._leftover),
            Update(
                replace(turn, state=TurnState.ADMITTED, context_state=ContextState.LIVE, context_reason="PROCESS_KEPT")
            ),
            Update(replace(activation, state=ActivationState.ADMITTED)),
            Update(replace(self._member, disposition=None)),
        ]
        self._turn, self._activation = replace(turn, revision=1), replace(activation, revision=1)
        self._member = replace(self._member, revision=self._member.revision + 1)
        return changes

    def _settlement(self) -> list[Change]:
        turn, activation = self._turn, self._activation
        settlement = SettlementRecord(
            activation_id=activation.activation_id,
            request_id=f"settle-{activation.activation_id}",
            tenant=_TENANT,
            conversation_id=self._id,
            turn_id=turn.turn_id,
            saved=True,
            outcome=Outcome.COMPLETED.value,
            manager_verdict=Verdict.CONFIRMED,
            store_verdict=Verdict.CONFIRMED.value,
            runner_verdict=Verdict.CONFIRMED,
            findings=Marks(),
            process_disposition=ProcessDisposition.KEPT,
            process_reason="KEPT",
            locator=self._locator,
            generations=Generations(1, 1, self._turns),
            container_id=_DIGEST,
            end_evidence_digest=_DIGEST,
            end_reason="success completed",
            observation_digest=_DIGEST,
        )
        member = replace(self._member, last_settled_turn=turn.turn_id, settled_turns=self._turns)
        saved = LocatorRecord(
            _TENANT,
            self._id,
            member.group_id,
            member.member_id,
            self._locator.native_session_id,
            self._locator,
            turn.turn_id,
        )
        record = StoreRecord(self._turns * 1000, _DIGEST, (f"anchor-{self._turns}",), (), ())
        row = StoreRecordRow(_TENANT, self._id, turn.turn_id, record.length, record.digest, record)
        if self._saved is not None and self._row is not None:
            saved = replace(saved, revision=self._saved.revision)
            row = replace(row, revision=self._row.revision)
        changes: list[Change] = [
            Insert(settlement),
            Update(replace(turn, state=TurnState.SETTLED, outcome=Outcome.COMPLETED.value)),
            Update(replace(activation, state=ActivationState.ENDED)),
            Update(member),
            Insert(saved) if self._saved is None else Update(saved),
            Insert(row) if self._row is None else Update(row),
            Delete(self._leftover),
        ]
        is_first = self._saved is None
        self._saved = saved if is_first else replace(saved, revision=saved.revision + 1)
        self._row = row if is_first else replace(row, revision=row.revision + 1)
        self._member = replace(member, revision=member.revision + 1)
        return changes


class ByHand:
    """One fsync'd transaction at a time, with nothing around it."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute("CREATE TABLE records (id INTEGER PRIMARY KEY, record TEXT NOT NULL)")

    def write(self) -> None:
        """BEGIN, one row, COMMIT."""
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute("INSERT INTO records (record) VALUES (?)", [_TOKEN])
        self._db.execute("COMMIT")

    def close(self) -> None:
        """Closes the file."""
        self._db.close()


async def commit_figures(rounds: int, progress: Callable[[int], None]) -> list[Figure]:
    """`rounds` pairs at one client, in turn with a transaction by hand; then `rounds` times 4 pairs at 64 clients, with the same beside."""
    with tempfile.TemporaryDirectory(prefix="sf-bench-") as folder:
        async with SqliteManagerStore.database(Path(folder) / "manager.sqlite") as db:
            store = SqliteManagerStore(db)
            clients = [Client(store, number) for number in range(_CLIENTS)]
            for client in clients:
                await client.begin()
            by_hand = ByHand(Path(folder) / "by-hand.sqlite")
            try:
                ours_ms, bare_ms = await _alone(clients[0], by_hand, rounds, progress)
            finally:
                by_hand.close()
            pairs, taken_s = await _together(clients, max(1, rounds * 4 // _CLIENTS))
    return [
        Figure(
            "commit",
            "admit + settle, durable, over one fsync'd transaction by hand",
            median(ours_ms) / median(bare_ms),
            "x",
            4.0,
            detail=summed_up("pair", ours_ms) | summed_up("by_hand", bare_ms),
        ),
        Figure(
            "commit",
            f"admit + settle pairs a second at {_CLIENTS} clients",
            pairs / taken_s,
            "/s",
            _RATE_GOAL,
            "at least",
            detail={"pairs": pairs, "seconds": round(taken_s, 3)},
        ),
    ]


async def _alone(
    client: Client, by_hand: ByHand, rounds: int, progress: Callable[[int], None]
) -> tuple[list[float], list[float]]:
    ours_ms: list[float] = []
    bare_ms: list[float] = []
    for number in range(-10, rounds):
        await client.prepare()
        begun = time.perf_counter()
        await client.pair()
        between = time.perf_counter()
        by_hand.write()
        over = time.perf_counter()
        if number >= 0:
            ours_ms.append((between - begun) * 1000)
            bare_ms.append((over - between) * 1000)
            progress(number + 1)
    return ours_ms, bare_ms


async def _together(clients: list[Client], times: int) -> tuple[int, float]:
    """Pairs of all clients at once. Only the pairs' time counts: what prepares them is done between."""
    taken_s = 0.0
    for _ in range(times):
        await asyncio.gather(*(client.prepare() for client in clients))
        begun = time.perf_counter()
        await asyncio.gather(*(client.pair() for client in clients))
        taken_s += time.perf_counter() - begun
    return len(clients) * times, taken_s
