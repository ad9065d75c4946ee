"""Settling over real gRPC: on whose evidence, what is saved, what never is, and only once."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from sandbox_manager.adapters.manager_store import SqliteManagerStore
from sandbox_manager.adapters.store_port import Insert
from sandbox_manager.core.records import ConversationRef
from sandbox_manager.core.values import Census, ProcessDisposition, RelayFindings, StoreReading
from sandbox_manager.policy import ManagerPolicy
from standfast.sandbox.v1 import sandbox_manager_pb2 as pb
from standfast.types.v1 import types_pb2 as types
from standfast_chassis.errors import StorageFullError
from standfast_chassis.keys import SigningKey
from tests.fake_host import FakeHost
from tests.manager_runs import Prepared, RunnerCalls, refused, release, running_manager

World = tuple[FakeHost, RunnerCalls]
OTHER = "bbbbbbbb-0000-4000-8000-000000000002"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A host and a runner."""
    async with (
        running_manager(tmp_path) as manager,
        FakeHost(manager.address, release_sha=release()) as host,
        RunnerCalls(manager.address, host) as runner,
    ):
        await host.register()
        yield host, runner


def change_tap(host: FakeHost, prepared: Prepared, **changes: Any) -> None:
    """Makes the journalled observation's tap say something else."""
    entry = host.journal[prepared.grant.activation_id]
    assert entry.observation is not None
    tap = dataclasses.replace(entry.observation.tap, **changes)
    entry.observation = dataclasses.replace(entry.observation, tap=tap)


async def test_a_settled_turn_saves_its_locator_and_keeps_its_process(world: World) -> None:
    _, runner = world
    prepared = await runner.admitted("c", "t1")
    assert not (await runner.conversation("c")).HasField("locator")
    runner.play(prepared)
    settlement = await runner.settle(prepared)
    assert settlement.saved
    assert settlement.outcome == types.OUTCOME_COMPLETED
    assert settlement.manager_verdict == types.VERDICT_CONFIRMED
    assert settlement.runner_verdict == types.VERDICT_CONFIRMED
    assert settlement.store_verdict == types.STORE_VERDICT_CONFIRMED
    assert settlement.process_disposition == types.PROCESS_DISPOSITION_KEPT
    assert settlement.end_evidence_digest == "e" * 64
    conversation = await runner.conversation("c")
    assert conversation.locator == settlement.locator == prepared.grant.locator
    assert (conversation.last_settled_turn, conversation.settled_turns) == ("t1", 1)


async def test_a_failed_turn_with_end_evidence_settles_and_its_session_is_kept(world: World) -> None:
    _, runner = world
    await runner.settled("c", "t1")
    failed = await runner.admitted("c", "t2")
    runner.play(failed, is_error=True)
    settlement = await runner.settle(failed, failed=True)
    assert (settlement.saved, settlement.outcome, settlement.end_reason) == (
        True,
        types.OUTCOME_FAILED,
        "api_error 403",
    )
    assert (await runner.turn("c", "t2")).reason == "PROVIDER_ERROR"
    after = await runner.admitted("c", "t3")
    assert after.admitted is not None
    assert after.admitted.context_state == types.CONTEXT_STATE_LIVE


@pytest.mark.parametrize(
    ("verdict", "native_session_id", "failed"),
    [
        ("CONFIRMED", OTHER, False),
        ("CONTRADICTED", None, False),
        ("UNPROVEN", None, False),
        ("UNSPECIFIED", None, False),
        ("CONFIRMED", None, True),
        ("CONTRADICTED", OTHER, True),
    ],
)
async def test_the_runners_claim_does_not_change_the_managers_verdict(
    world: World, verdict: str, native_session_id: str | None, failed: bool
) -> None:
    """The claim is replaced, the verdict is the same; a claim that differs only keeps the turn from being saved."""
    _, runner = world
    prepared = await runner.admitted("c", "t1")
    runner.play(prepared)
    settlement = await runner.settle(prepared, verdict=verdict, native_session_id=native_session_id, failed=failed)
    assert settlement.manager_verdict == types.VERDICT_CONFIRMED
    assert settlement.store_verdict == types.STORE_VERDICT_CONFIRMED
    assert not settlement.saved
    assert settlement.outcome == types.OUTCOME_FAILED
    assert settlement.findings[-1].code == "VERDICTS_DIFFER"
    assert settlement.process_disposition == types.PROCESS_DISPOSITION_RECLAIM_FIRST
    assert not (await runner.conversation("c")).HasField("locator")


@pytest.mark.parametrize("is_error", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {"session_ids": (OTHER,)},
        {"reset_to": OTHER},
        {"session_ids": ()},
        {"identity_before_output": False},
    ],
)
async def test_a_confirming_runner_cannot_make_up_for_what_the_host_saw(
    world: World, changes: dict[str, Any], is_error: bool
) -> None:
    """Another session at a turn's end: nothing is saved, on a good and on a failed native turn, whatever the runner says."""
    host, runner = world
    first = await runner.settled("c", "t1")
    saved = (await runner.conversation("c")).locator
    second = await runner.admitted("c", "t2")
    runner.play(second, is_error=is_error)
    change_tap(host, second, **changes)
    settlement = await runner.settle(second, failed=is_error)
    assert settlement.manager_verdict in (types.VERDICT_CONTRADICTED, types.VERDICT_UNPROVEN)
    assert not settlement.saved
    assert settlement.outcome == types.OUTCOME_FAILED
    conversation = await runner.conversation("c")
    assert (conversation.locator, conversation.last_settled_turn) == (saved, "t1")
    third = await runner.admitted("c", "t3")
    assert third.admitted is not None
    assert third.admitted.context_state == types.CONTEXT_STATE_RESTORED
    assert third.grant.locator == first.grant.locator


async def test_what_an_unsaved_turn_printed_explains_its_records_and_nothing_else(world: World) -> None:
    """The turn failed its verdict, so its texts are known: another text under its message is explained by nothing."""
    host, runner = world
    await runner.settled("c", "t1")
    failed = await runner.admitted("c", "t2")
    runner.play(failed)
    change_tap(host, failed, reset_to=OTHER)
    assert not (await runner.settle(failed)).saved
    container = host.container_of("c")
    (name, before), *_ = container.stores.items()
    container.stores[name] = before.replace(b"a reply", b"another", 2).replace(b"another", b"a reply", 1)
    await runner.claim("c", "t3")
    with refused("CONTEXT_LOST") as error:
        await runner.prepare("c", "t3")
    assert error.value.metadata["cause"] == "HISTORY_CHANGED_OUTSIDE_TURN"
    container.stores[name] = before
    assert (await runner.admitted("c", "t4")).grant.resumes


async def test_with_the_managers_check_off_the_runners_side_holds_alone(tmp_path: Path) -> None:
    async with (
        running_manager(tmp_path, ManagerPolicy(check_identity=False)) as manager,
        FakeHost(manager.address, release_sha=release()) as host,
        RunnerCalls(manager.address, host) as runner,
    ):
        await host.register()
        prepared = await runner.admitted("c", "t1")
        runner.play(prepared)
        change_tap(host, prepared, session_ids=(OTHER,))
        settlement = await runner.settle(prepared, verdict="CONTRADICTED", native_session_id=OTHER)
        assert settlement.manager_verdict == types.VERDICT_CONFIRMED
        assert not settlement.saved
        assert not (await runner.conversation("c")).HasField("locator")


@pytest.mark.parametrize(
    "changes",
    [
        {"message_digest": "0" * 64},
        {"tap_gap": True},
        {"relay": RelayFindings(1, (), False, (200,))},
        {"relay": None},
        {"store": StoreReading("UNREADABLE", None, None, 0, None, None)},
        {"store": StoreReading("NO_SPACE", None, None, 0, None, None)},
    ],
)
async def test_an_observation_that_does_not_prove_the_turn_saves_nothing(world: World, changes: dict[str, Any]) -> None:
    _, runner = world
    prepared = await runner.admitted("c", "t1")
    runner.play(prepared, **changes)
    settlement = await runner.settle(prepared)
    assert not settlement.saved
    assert settlement.outcome == types.OUTCOME_FAILED
    assert not (await runner.conversation("c")).HasField("locator")


async def test_no_space_for_the_history_is_named(world: World) -> None:
    _, runner = world
    await runner.settled("c", "t1")
    saved = (await runner.conversation("c")).locator
    prepared = await runner.admitted("c", "t2")
    runner.play(prepared, store=StoreReading("NO_SPACE", None, None, 0, None, None))
    settlement = await runner.settle(prepared)
    assert settlement.store_verdict == types.STORE_VERDICT_UNWRITABLE
    assert (await runner.turn("c", "t2")).reason == "STORAGE_FULL"
    assert (await runner.conversation("c")).locator == saved


async def test_case_disk_full_while_recording(tmp_path: Path) -> None:
    """While there is no room nothing is settled and nothing truncated; when there is, the turn settles, once."""
    async with (
        running_manager(tmp_path) as manager,
        FakeHost(manager.address, release_sha=release()) as host,
        RunnerCalls(manager.address, host) as runner,
    ):
        await host.register()
        await runner.settled("c", "t1")
        saved = (await runner.conversation("c")).locator
        prepared = await runner.admitted("c", "t2")
        runner.play(prepared)
        assert isinstance(manager.parts.store, SqliteManagerStore)
        database = manager.parts.store.database_in_use
        pages = await database.read(lambda db: int(db.conn.execute("pragma page_count").fetchone()[0]))
        await database.write(lambda db: db.conn.execute(f"pragma max_page_count = {pages}").fetchone()[0])
        story = await manager.parts.store.turn(ConversationRef("local", "c"), "t1")
        assert story is not None
        assert story.settlement is not None
        template = story.settlement

        async def fill() -> None:
            for number in range(100):
                name = f"f{number}"
                filler = dataclasses.replace(template, activation_id=name, request_id=name, turn_id=name)
                await manager.parts.store.commit([Insert(filler)])

        with pytest.raises(StorageFullError):
            await fill()
        with refused("STORAGE_FULL") as refusal:
            await runner.settle(prepared)
        assert refusal.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        conversation = await runner.conversation("c")
        assert (conversation.locator, conversation.last_settled_turn) == (saved, "t1")
        await database.write(lambda db: db.conn.execute("pragma max_page_count = 100000").fetchone()[0])
        settlement = await runner.settle(prepared)
        assert settlement.saved
        assert await runner.settle(prepared) == settlement


async def test_a_census_with_leftovers_keeps_no_process(world: World) -> None:
    host, runner = world
    prepared = await runner.admitted("c", "t1")
    process = host.container_of("c").process
    assert process is not None
    runner.play(prepared, census=Census(False, (process,), 1, (process,), 0))
    settlement = await runner.settle(prepared)
    assert settlement.saved
    assert settlement.process_disposition == types.PROCESS_DISPOSITION_RECLAIM_FIRST
    after = await runner.admitted("c", "t2")
    assert after.admitted is not None
    assert after.admitted.context_state == types.CONTEXT_STATE_RESTORED


async def test_a_retired_process_makes_the_next_turn_restored_in_the_same_container(world: World) -> None:
    _, runner = world
    first = await runner.settled("c", "t1", keep=False)
    second = await runner.admitted("c", "t2")
    assert second.admitted is not None
    assert (second.admitted.context_state, second.admitted.context_reason) == (
        types.CONTEXT_STATE_RESTORED,
        "PROCESS_RETIRED",
    )
    assert second.grant.container_id == first.grant.container_id


async def test_a_promised_store_settles_a_later_turn_and_is_demanded_by_the_next(world: World) -> None:
    _, runner = world
    await runner.settled("c", "t1")
    second = await runner.admitted("c", "t2")
    runner.play(second, writes_store=False)
    settlement = await runner.settle(second)
    assert (settlement.saved, settlement.store_verdict) == (True, types.STORE_VERDICT_PROMISED)
    assert settlement.process_disposition == types.PROCESS_DISPOSITION_RETIRED
    await runner.claim("c", "t3")
    with refused("CONTEXT_LOST") as error:
        await runner.prepare("c", "t3")
    assert error.value.metadata["cause"] == "HISTORY_BROKEN"


async def test_a_promised_first_turn_is_read_once_more_and_saved_when_it_is_there(world: World) -> None:
    host, runner = world
    prepared = await runner.admitted("c", "t1")
    absent = StoreReading("ABSENT", None, None, 0, None, None)
    runner.play(prepared, store=absent, process_alive=False, disposition=ProcessDisposition.RETIRED)
    settlement = await runner.settle(prepared)
    assert (settlement.saved, settlement.store_verdict) == (True, types.STORE_VERDICT_CONFIRMED)
    assert "ReadStore" in host.calls


async def test_a_promised_first_turn_that_never_comes_fails_without_a_locator(world: World) -> None:
    _, runner = world
    prepared = await runner.admitted("c", "t1")
    runner.play(prepared, writes_store=False, process_alive=False, disposition=ProcessDisposition.RETIRED)
    settlement = await runner.settle(prepared)
    assert (settlement.saved, settlement.outcome) == (False, types.OUTCOME_FAILED)
    again = await runner.admitted("c", "t2")
    assert again.admitted is not None
    assert again.admitted.context_state == types.CONTEXT_STATE_NEW
    assert again.grant.locator.native_session_id != prepared.grant.locator.native_session_id


async def test_a_settle_request_is_answered_once_and_the_same_again(world: World) -> None:
    host, runner = world
    prepared = await runner.admitted("c", "t1")
    runner.play(prepared)
    answers = await asyncio.gather(*(runner.settle(prepared) for _ in range(6)))
    assert all(answer == answers[0] for answer in answers)
    assert host.calls.count("ListJournal") == 1
    assert (await runner.conversation("c")).settled_turns == 1
    # Another claim under the same request changes nothing that is settled.
    assert await runner.settle(prepared, verdict="CONTRADICTED") == answers[0]
    assert await runner.settle(prepared, request_id="another request") == answers[0]


async def test_nothing_is_settled_while_the_host_is_still_observing(world: World) -> None:
    _, runner = world
    prepared = await runner.admitted("c", "t1")
    with refused("OBSERVATION_PENDING"):
        await runner.settle(prepared)
    with refused("OBSERVATION_PENDING"):
        await runner.abandon("c", "t1", "INTERRUPTED")
    runner.play(prepared)
    assert (await runner.settle(prepared)).saved


async def test_without_a_native_end_nothing_is_settled_and_the_turn_is_interrupted(world: World) -> None:
    _, runner = world
    prepared = await runner.admitted("c", "t1")
    runner.play(prepared, ends=False)
    with refused("NOT_ENDED"):
        await runner.settle(prepared)
    turn = await runner.abandon("c", "t1", "INTERRUPTED")
    assert (turn.state, turn.outcome) == ("ABANDONED", types.OUTCOME_INTERRUPTED)
    assert await runner.abandon("c", "t1", "NOT_SENT") == turn
    again = await runner.admitted("c", "t2")
    assert again.admitted is not None
    assert again.admitted.context_state == types.CONTEXT_STATE_NEW
    assert again.grant.interrupted_turn_id == "t1"
    assert again.grant.locator.native_session_id != prepared.grant.locator.native_session_id
    # It is named to the turn that comes after it, and to no later one.
    runner.play(again)
    assert (await runner.settle(again)).saved
    assert (await runner.admitted("c", "t3")).grant.interrupted_turn_id == ""


async def test_a_container_that_went_before_anything_was_settled_in_it_gives_way_to_another(world: World) -> None:
    host, runner = world
    prepared = await runner.admitted("c", "t1")
    runner.play(prepared, ends=False)
    await runner.abandon("c", "t1", "INTERRUPTED")
    gone = host.containers.pop(host.container_of("c").group_id)
    again = await runner.admitted("c", "t2")
    assert again.admitted is not None
    assert again.admitted.context_state == types.CONTEXT_STATE_NEW
    assert again.grant.generations.container == prepared.grant.generations.container + 1
    # The former one may come back: its nonce must not pass for the new one's.
    assert host.container_of("c").nonce != gone.nonce


async def test_a_kept_process_that_a_lost_grant_may_have_touched_serves_no_turn(world: World) -> None:
    host, runner = world
    await runner.settled("c", "t1")
    await runner.claim("c", "t2")
    lost = await runner.prepare("c", "t2")
    assert host.grant(lost.grant.activation_token)["reuse_process_generation"] is not None
    await runner.abandon("c", "t2", "NOT_SENT")
    await runner.claim("c", "t3")
    prepared = await runner.prepare("c", "t3")
    assert host.grant(prepared.grant.activation_token)["reuse_process_generation"] is None


async def test_an_interrupted_turn_after_a_settled_one_is_explained_and_the_next_is_restored(world: World) -> None:
    _, runner = world
    await runner.settled("c", "t1")
    interrupted = await runner.admitted("c", "t2", "half of it")
    runner.play(interrupted, ends=False)
    await runner.abandon("c", "t2", "INTERRUPTED")
    third = await runner.settled("c", "t3")
    assert third.admitted is not None
    assert third.admitted.context_state == types.CONTEXT_STATE_RESTORED


async def test_what_an_interrupted_turn_left_explains_nothing_after_the_next_settlement(world: World) -> None:
    """Its message was sent, and never came to stand in the history. After another turn has settled it is too late for that."""
    host, runner = world
    await runner.settled("c", "t1")
    interrupted = await runner.admitted("c", "t2", "half of it")
    runner.play(interrupted, ends=False, writes_store=False)
    await runner.abandon("c", "t2", "INTERRUPTED")
    await runner.settled("c", "t3")
    container = host.container_of("c")
    ((name, before),) = container.stores.items()
    records = [json.loads(line) for line in before.splitlines()]
    late = next(record for record in records if record["type"] == "user") | {
        "uuid": interrupted.grant.message_id,
        "parentUuid": records[-1]["uuid"],
        "message": {"role": "user", "content": [{"type": "text", "text": "half of it"}]},
    }
    container.stores[name] = before + json.dumps(late).encode() + b"\n"
    await runner.claim("c", "t4")
    with refused("CONTEXT_LOST") as error:
        await runner.prepare("c", "t4")
    assert error.value.metadata["cause"] == "HISTORY_CHANGED_OUTSIDE_TURN"


async def test_a_turn_with_a_native_end_is_not_given_up(world: World) -> None:
    _, runner = world
    prepared = await runner.admitted("c", "t1")
    runner.play(prepared)
    with refused("NATIVE_END_SEEN"):
        await runner.abandon("c", "t1", "CANCELLED")
    assert (await runner.settle(prepared)).saved


@pytest.mark.parametrize(
    ("wish", "outcome"), [("INTERRUPTED", "NOT_SENT"), ("NOT_SENT", "NOT_SENT"), ("CANCELLED", "CANCELLED")]
)
async def test_a_turn_that_was_never_forwarded_is_not_called_interrupted(world: World, wish: str, outcome: str) -> None:
    host, runner = world
    prepared = await runner.admitted("c", "t1")
    host.never_forwarded(prepared.grant.activation_token)
    turn = await runner.abandon("c", "t1", wish)
    assert types.Outcome.Name(turn.outcome) == f"OUTCOME_{outcome}"


async def test_a_native_end_after_a_cancel_settles_as_cancelled(world: World) -> None:
    _, runner = world
    await runner.settled("c", "t1")
    prepared = await runner.admitted("c", "t2")
    runner.play(prepared, interrupted_by="CANCEL", keep=False)
    settlement = await runner.settle(prepared)
    assert (settlement.saved, settlement.outcome) == (True, types.OUTCOME_CANCELLED)


async def test_a_stale_activation_settles_nothing(world: World) -> None:
    _, runner = world
    old = await runner.settled("c", "t1")
    new = await runner.admitted("c", "t2")
    runner.play(new)
    mixed = Prepared("c", "t2", b"hello", pb.PrepareTurnResponse())
    mixed.grant.CopyFrom(old.grant)
    with refused("GENERATION_STALE"):
        await runner.settle(mixed)
    assert (await runner.turn("c", "t2")).state == "ADMITTED"


async def test_the_observation_must_be_the_hosts_own(world: World) -> None:
    host, runner = world
    prepared = await runner.admitted("c", "t1")
    runner.play(prepared)
    own, host.key = host.key, SigningKey.generate()
    with refused("TOKEN_REJECTED"):
        await runner.settle(prepared)
    host.key = own
    assert (await runner.settle(prepared)).saved
