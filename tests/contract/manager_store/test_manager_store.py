"""The contract of the manager's store, kept by every implementation: what is written comes back, at once or not at all, and only once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.adapters.turn_schema import migrations as runners_migrations
from sandbox_manager.adapters.manager_schema import TABLES, migrations
from sandbox_manager.adapters.manager_store import SqliteManagerStore
from sandbox_manager.adapters.record_rows import columns
from sandbox_manager.adapters.store_port import Delete, Insert, ManagerStore, Record, Update, WriteConflictError
from sandbox_manager.core.records import TurnState
from standfast_chassis.database import Database
from standfast_chassis.errors import StoreForeignError, StoreTooNewError
from tests.contract.manager_store import records as made


@pytest.fixture(params=["sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ManagerStore]:
    """An empty store of each implementation."""
    assert request.param == "sqlite"
    async with SqliteManagerStore.database(tmp_path / "manager.sqlite") as db:
        yield SqliteManagerStore(db)


async def everything(store: ManagerStore) -> list[Record]:
    """One of each, as the store gives it back."""
    found = await store.conversation(made.REF)
    story = await store.turn(made.REF, "t1")
    assert story is not None
    read: list[Record | None] = [
        await store.host("h1"),
        found.group,
        found.member,
        story.turn,
        story.activation,
        story.admission,
        story.settlement,
        found.leftovers[0],
        found.locator,
        found.store,
        found.tombstone,
        (await store.keys())[0],
    ]
    return [one for one in read if one is not None]


async def test_every_record_comes_back_as_it_was_written(store: ManagerStore) -> None:
    written = made.one_of_each()
    assert {type(record) for record in written} == set(TABLES)
    await store.commit([Insert(record) for record in written])
    assert await everything(store) == written


@pytest.mark.parametrize("position", range(len(made.one_of_each())))
async def test_a_change_that_was_decided_on_an_old_revision_is_refused(store: ManagerStore, position: int) -> None:
    """Compare-and-set for every kind of record: the second of two changes of the same revision does not come through."""
    await store.commit([Insert(record) for record in made.one_of_each()])
    record = (await everything(store))[position]
    await store.commit([Update(record)])
    after = await everything(store)
    assert after[position] == replace(record, revision=record.revision + 1)
    for change in (Update(record), Delete(record), Update(replace(record, revision=9))):
        with pytest.raises(WriteConflictError):
            await store.commit([change])
    assert await everything(store) == after


@pytest.mark.parametrize("position", range(len(made.one_of_each())))
async def test_a_key_is_taken_once_and_a_commit_is_all_or_nothing(store: ManagerStore, position: int) -> None:
    await store.commit([Insert(record) for record in made.one_of_each()])
    with pytest.raises(WriteConflictError):
        await store.commit([Insert(made.host("h2")), Insert(made.one_of_each()[position])])
    assert await store.host("h2") is None


@pytest.mark.parametrize(
    "second",
    [
        made.member("c2"),  # the member id
        made.member("c2", "m2"),  # the slot of the group
        made.locator("c2"),  # the native session of the group
        made.turn("t2", ordinal=1),  # the place among the turns
        made.turn("t2", 2, TurnState.PREPARED),  # the one grant of the conversation
        made.activation("a2", "t2"),  # the activation generation of the member
        made.admission("a2"),  # the admission of the turn
        made.settlement("a2"),  # the settlement of the turn
        made.settlement("a2", "t2"),  # the request
    ],
)
async def test_what_must_be_unique_is_refused_a_second_time(store: ManagerStore, second: Record) -> None:
    await store.commit([Insert(record) for record in made.one_of_each()])
    with pytest.raises(WriteConflictError):
        await store.commit([Insert(second)])


async def test_turns_that_are_over_or_only_claimed_stand_beside_a_granted_one(store: ManagerStore) -> None:
    await store.commit(
        [
            Insert(made.turn("t1", 1, TurnState.SETTLED)),
            Insert(made.turn("t2", 2, TurnState.ADMITTED)),
            Insert(made.turn("t3", 3, TurnState.CLAIMED)),
            Insert(made.turn("t4", 4, TurnState.REFUSED)),
            Insert(made.turn("t1", 1, TurnState.PREPARED, conversation_id="c2")),
        ]
    )
    found = await store.conversation(made.REF)
    assert [turn.turn_id for turn in found.open_turns] == ["t2", "t3"]
    assert found.turns == 4
    assert {(turn.conversation_id, turn.turn_id) for turn in await store.open_turns()} == {
        ("c1", "t2"),
        ("c1", "t3"),
        ("c2", "t1"),
    }


async def test_of_two_commits_at_once_one_wins(store: ManagerStore) -> None:
    await store.commit([Insert(made.turn())])
    (turn,) = await store.open_turns()
    answers = await asyncio.gather(
        *(store.commit([Update(replace(turn, runner_id=f"r{number}"))]) for number in range(20)),
        return_exceptions=True,
    )
    assert sum(answer is None for answer in answers) == 1
    assert sum(isinstance(answer, WriteConflictError) for answer in answers) == 19


async def test_what_is_not_there_is_none_or_empty(store: ManagerStore) -> None:
    found = await store.conversation(made.REF)
    assert (found.member, found.group, found.locator, found.store, found.tombstone) == (None,) * 5
    assert (found.open_turns, found.leftovers, found.turns) == ((), (), 0)
    assert await store.turn(made.REF, "t1") is None
    assert await store.turn_of_activation("a1") is None
    assert await store.settlement_by_request("q1") is None
    assert await store.group("g1") is None
    assert await store.host("h1") is None
    assert [len(await every()) for every in (store.hosts, store.groups, store.open_turns, store.keys)] == [0, 0, 0, 0]


async def test_a_turn_is_found_by_its_activation_and_a_settlement_by_its_request(store: ManagerStore) -> None:
    await store.commit([Insert(record) for record in made.one_of_each()])
    story = await store.turn_of_activation("a1")
    assert story == await store.turn(made.REF, "t1")
    assert await store.settlement_by_request("q1") == made.settlement()


async def test_a_former_activation_is_found_as_itself_and_not_as_the_turns_newer_one(store: ManagerStore) -> None:
    await store.commit(
        [
            Insert(made.turn(state=TurnState.PREPARED, activation_id="a2")),
            Insert(made.activation("a1", generation=4)),
            Insert(made.activation("a2", generation=5)),
            Insert(made.admission("a2")),
        ]
    )
    former = await store.turn_of_activation("a1")
    newer = await store.turn_of_activation("a2")
    assert former is not None
    assert newer is not None
    assert former.turn == newer.turn
    assert (former.activation, former.admission) == (made.activation("a1", generation=4), None)
    assert (newer.activation, newer.admission) == (made.activation("a2", generation=5), made.admission("a2"))


async def test_conversations_of_a_tenant_come_in_pages_in_the_order_they_were_made(store: ManagerStore) -> None:
    for number in range(5):
        await store.commit(
            [
                Insert(made.group(f"g{number}")),
                Insert(made.member(f"c{number}", f"m{number}", f"g{number}")),
            ]
        )
    await store.commit([Insert(replace(made.member("c9", "m9", "g9"), tenant="other"))])
    first = await store.conversations("local", None, 3)
    second = await store.conversations("local", "m2", 3)
    assert [one.ref.conversation_id for one in (*first, *second)] == ["c0", "c1", "c2", "c3", "c4"]
    assert [one.group.group_id for one in first if one.group is not None] == ["g0", "g1", "g2"]
    assert await store.conversations("local", "m4", 3) == []


async def test_a_released_group_is_listed_no_more_and_still_known(store: ManagerStore) -> None:
    await store.commit([Insert(made.group("g1")), Insert(made.group("g2", released=True))])
    assert [group.group_id for group in await store.groups()] == ["g1"]
    assert (await store.group("g2")) is not None


async def test_a_deleted_record_is_gone(store: ManagerStore) -> None:
    await store.commit([Insert(made.leftover())])
    (found,) = (await store.conversation(made.REF)).leftovers
    await store.commit([Delete(found)])
    assert (await store.conversation(made.REF)).leftovers == ()


async def test_what_was_written_is_there_after_closing_and_opening(tmp_path: Path) -> None:
    path = tmp_path / "manager.sqlite"
    async with SqliteManagerStore.database(path) as db:
        await SqliteManagerStore(db).commit([Insert(record) for record in made.one_of_each()])
    async with SqliteManagerStore.database(path) as db:
        assert await everything(SqliteManagerStore(db)) == made.one_of_each()


async def test_the_tables_have_exactly_the_records_columns(tmp_path: Path) -> None:
    """A field without a migration, or a column that no record has, shows here."""
    async with SqliteManagerStore.database(tmp_path / "manager.sqlite") as db:

        def shapes(opened: Any) -> dict[str, list[tuple[str, str, bool]]]:
            return {
                name: [(one.name, one.type, bool(one.notnull) or bool(one.is_pk)) for one in opened[name].columns]
                for name in opened.table_names()
            }

        found = await db.read(shapes)
    for record_type, table in TABLES.items():
        expected = {
            (column.name, "INTEGER" if column.sql_type is int else "TEXT", not column.is_optional)
            for column in columns(record_type)
        }
        assert set(found[table.name]) == expected, table.name


async def test_a_store_of_a_newer_release_or_of_another_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "manager.sqlite"
    async with SqliteManagerStore.database(path) as db:
        later = "insert into _sqlite_migrations (migration_set, name, applied_at) values (?, 'm999_later', '2030')"
        await db.write(lambda opened: opened.conn.execute(later, [migrations.name]).rowcount)
    with pytest.raises(StoreTooNewError, match="m999_later"):
        async with SqliteManagerStore.database(path):
            pytest.fail("opened a newer store")
    other = tmp_path / "other.sqlite"
    async with Database(other, runners_migrations):
        pass
    with pytest.raises((StoreForeignError, StoreTooNewError)):
        async with SqliteManagerStore.database(other):
            pytest.fail("opened another process's store")
