"""What the manager refuses before anything is sent: each by its reason and cause, with nothing overwritten."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from sandbox_manager.adapters.store_port import Delete
from sandbox_manager.core.records import ConversationRef
from sandbox_manager.core.values import ContainerFacts
from sandbox_manager.policy import ManagerPolicy
from standfast.types.v1 import types_pb2 as types
from standfast_chassis.keys import SigningKey
from standfast_chassis.rpc_status import RemoteError
from tests.fake_host import FakeHost, HostSaysError
from tests.manager_runs import RunnerCalls, refused, release, running_manager, until, write_manifest

World = tuple[FakeHost, RunnerCalls]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A host and a runner. The conversation `c` has one settled turn."""
    async with (
        running_manager(tmp_path) as manager,
        FakeHost(manager.address, release_sha=release()) as host,
        RunnerCalls(manager.address, host) as runner,
    ):
        await host.register()
        await runner.settled("c", "t1", "remember: plum")
        yield host, runner


async def lost(runner: RunnerCalls, turn_id: str = "t2") -> RemoteError:
    """Claims and prepares a turn that must be LOST; its refusal."""
    await runner.claim("c", turn_id)
    with refused("CONTEXT_LOST") as error:
        await runner.prepare("c", turn_id)
    found: RemoteError = error.value
    assert found.code is grpc.StatusCode.FAILED_PRECONDITION
    for name in ("cause", "cure", "readable"):
        assert found.metadata[name]
    return found


async def test_case_identity_request_vs_stored(world: World) -> None:
    """A request's locator that differs is refused and changes nothing; an absent one is filled in."""
    host, runner = world
    saved = (await runner.conversation("c")).locator
    other = types.NativeLocator()
    other.CopyFrom(saved)
    other.native_session_id = "bbbbbbbb-0000-4000-8000-000000000002"
    await runner.stop("c")
    await runner.claim("c", "t2")
    asked = len(host.calls)
    with refused("LOCATOR_MISMATCH") as error:
        await runner.prepare("c", "t2", locator=other)
    assert error.value.metadata["expected"] == saved.native_session_id
    assert error.value.metadata["found"] == other.native_session_id
    assert [call for call in host.calls[asked:] if call != "InspectSandbox"] == []  # the reconciler asks by itself
    assert (await runner.conversation("c")).locator == saved
    without = await runner.admitted("c", "t3")
    assert without.grant.locator == saved
    assert without.admitted is not None
    assert without.admitted.context_state == types.CONTEXT_STATE_RESTORED


async def test_with_the_managers_check_off_a_differing_locator_passes_the_manager(tmp_path: Path) -> None:
    async with (
        running_manager(tmp_path, ManagerPolicy(check_identity=False)) as manager,
        FakeHost(manager.address, release_sha=release()) as host,
        RunnerCalls(manager.address, host) as runner,
    ):
        await host.register()
        await runner.settled("c", "t1")
        other = (await runner.conversation("c")).locator
        other.native_session_id = "bbbbbbbb-0000-4000-8000-000000000002"
        await runner.claim("c", "t2")
        assert (await runner.prepare("c", "t2", locator=other)).grant.resumes


async def test_the_saved_locator_in_a_request_is_taken(world: World) -> None:
    _, runner = world
    saved = (await runner.conversation("c")).locator
    assert (await runner.admitted("c", "t2", locator=saved)).grant.locator == saved


async def test_a_retained_conversation_without_a_locator_anywhere_is_refused(tmp_path: Path) -> None:
    async with (
        running_manager(tmp_path) as manager,
        FakeHost(manager.address, release_sha=release()) as host,
        RunnerCalls(manager.address, host) as runner,
    ):
        await host.register()
        await runner.settled("c", "t1")
        kept = (await manager.parts.store.conversation(ConversationRef("local", "c"))).locator
        assert kept is not None
        await manager.parts.store.commit([Delete(kept)])
        await runner.claim("c", "t2")
        with refused("LOCATOR_REQUIRED"):
            await runner.prepare("c", "t2")


async def test_continue_on_an_unknown_conversation_is_legacy(world: World) -> None:
    host, runner = world
    asked = len(host.calls)
    with refused("LEGACY_CONVERSATION"):
        await runner.claim("nobody", "t1", expect="CONTINUE")
    with refused("TURN_UNKNOWN"):
        await runner.turn("nobody", "t1")
    assert [call for call in host.calls[asked:] if call != "InspectSandbox"] == []  # the reconciler asks by itself


async def test_new_on_a_known_conversation_is_refused_and_continue_goes_on(world: World) -> None:
    _, runner = world
    with refused("CONVERSATION_EXISTS"):
        await runner.claim("c", "t2", expect="NEW")
    assert (await runner.claim("c", "t2", expect="CONTINUE")).conversation_known


async def test_a_repeated_turn_is_looked_up_before_its_expectation(world: World) -> None:
    _, runner = world
    assert (await runner.claim("c", "t1", "remember: plum", expect="NEW")).disposition == "ENDED"


@pytest.mark.parametrize("expect", ["NEW", "CONTINUE", "UNSPECIFIED"])
async def test_a_container_that_the_store_does_not_know_is_never_a_silent_new(tmp_path: Path, expect: str) -> None:
    async with running_manager(tmp_path) as manager, FakeHost(manager.address, release_sha=release()) as host:
        await host.register()
        async with RunnerCalls(manager.address, host) as runner:
            await runner.settled("c", "t1")
    (tmp_path / "manager" / "manager.sqlite").unlink()
    async with (
        running_manager(tmp_path, listen=manager.address) as manager,
        host,
        RunnerCalls(manager.address, host) as runner,
    ):
        await host.register()
        with refused("CONTEXT_LOST") as error:
            await runner.claim("c", "t2", expect=expect)
        assert error.value.metadata["cause"] == "STORE_BEHIND"
        assert host.container_of("c").container_id in error.value.metadata["readable"]


async def test_a_claim_from_before_the_host_came_back_is_no_silent_new(tmp_path: Path) -> None:
    """The claim found nobody to ask. When its Prepare is asked again, the host that has the container is there."""
    async with running_manager(tmp_path) as manager, FakeHost(manager.address, release_sha=release()) as host:
        await host.register()
        async with RunnerCalls(manager.address, host) as runner:
            await runner.settled("c", "t1")
    (tmp_path / "manager" / "manager.sqlite").unlink()
    async with (
        running_manager(tmp_path, listen=manager.address) as manager,
        host,
        RunnerCalls(manager.address, host) as runner,
    ):
        await runner.claim("c", "t2")
        with refused("NO_HOST"):
            await runner.prepare("c", "t2")
        await host.register()
        assert (await runner.claim("c", "t2")).disposition == "CLAIMED"
        with refused("CONTEXT_LOST") as error:
            await runner.prepare("c", "t2")
        assert error.value.metadata["cause"] == "STORE_BEHIND"
        assert (await runner.turn("c", "t2")).state == "REFUSED"
        assert len(host.containers) == 1


async def test_an_engine_that_does_not_answer_for_a_heartbeat_has_not_lost_its_containers(tmp_path: Path) -> None:
    async with running_manager(tmp_path) as manager, FakeHost(manager.address, release_sha=release()) as host:
        await host.register()
        async with RunnerCalls(manager.address, host) as runner:
            await runner.settled("c", "t1")
    (tmp_path / "manager" / "manager.sqlite").unlink()
    async with (
        running_manager(tmp_path, listen=manager.address),
        host,
        RunnerCalls(manager.address, host) as runner,
    ):
        await host.register()
        kept, host.containers = host.containers, {}
        await host.beat(engine_answers=False)
        host.containers = kept
        with refused("CONTEXT_LOST") as error:
            await runner.claim("c", "t2")
        assert error.value.metadata["cause"] == "STORE_BEHIND"


async def test_a_runner_that_knows_the_conversation_never_gets_a_new_one(world: World) -> None:
    _, runner = world
    with refused("CONTEXT_LOST") as error:
        await runner.claim("elsewhere", "t1", runner_knows_conversation=True)
    assert error.value.metadata["cause"] == "STORE_BEHIND"


async def test_a_removed_container_is_lost_and_the_locator_stays(world: World) -> None:
    host, runner = world
    saved = (await runner.conversation("c")).locator
    removed = host.containers.pop(host.container_of("c").group_id)
    error = await lost(runner)
    assert error.metadata["cause"] == "CONTAINER_GONE"
    assert removed.container_id in error.metadata["expected"]
    assert (await runner.turn("c", "t2")).reason == "CONTEXT_LOST"
    assert (await runner.conversation("c")).locator == saved
    assert host.containers == {}


async def test_lost_is_decided_anew_and_a_container_that_is_back_is_restored(world: World) -> None:
    host, runner = world
    container = host.containers.pop(host.container_of("c").group_id)
    await lost(runner, "t2")
    again = await runner.claim("c", "t2")
    assert (again.disposition, again.turn.state, again.turn.reason) == ("ENDED", "REFUSED", "CONTEXT_LOST")
    container.state = "exited"
    host.containers[container.group_id] = container
    restored = await runner.admitted("c", "t3")
    assert restored.admitted is not None
    assert restored.admitted.context_state == types.CONTEXT_STATE_RESTORED


@pytest.mark.parametrize("part", ["container_id", "nonce", "image_id"])
async def test_another_container_in_the_place_of_the_recorded_one_is_lost(world: World, part: str) -> None:
    host, runner = world
    container = host.container_of("c")
    setattr(container, part, "sha256:image-0" if part == "image_id" else "another")
    error = await lost(runner)
    assert error.metadata["cause"] == "CONTAINER_CHANGED"
    assert error.metadata["observed"] == getattr(container, part)


async def test_one_changed_byte_in_an_old_record_is_lost(world: World) -> None:
    host, runner = world
    container = host.container_of("c")
    (name, before), *_ = container.stores.items()
    container.stores[name] = before.replace(b"plum", b"plun")
    assert len(container.stores[name]) == len(before)
    error = await lost(runner)
    assert error.metadata["cause"] == "HISTORY_CHANGED_OUTSIDE_TURN"
    assert container.stores[name] == before.replace(b"plum", b"plun")


async def test_a_torn_store_is_lost(world: World) -> None:
    host, runner = world
    container = host.container_of("c")
    (name, before), *_ = container.stores.items()
    container.stores[name] = before + b'{"parentUuid":null,"type":"us'
    assert (await lost(runner)).metadata["cause"] == "HISTORY_TORN"


async def test_a_history_whose_leaf_skips_the_settled_reply_is_broken(world: World) -> None:
    """What the CLI left of an interrupted turn hangs above the reply: a resume would skip it."""
    host, runner = world
    container = host.container_of("c")
    (_, before), *_ = container.stores.items()
    asked = json.loads(before.splitlines()[0])["uuid"]
    interrupted = await runner.admitted("c", "t2")
    runner.play(interrupted, ends=False, parent=asked)
    await runner.abandon("c", "t2", "INTERRUPTED")
    assert (await lost(runner, "t3")).metadata["cause"] == "HISTORY_BROKEN"


async def test_case_inj_transcript_changed_between_turns(world: World) -> None:
    """A foreign record between two turns is neither removed nor gone along with."""
    host, runner = world
    container = host.container_of("c")
    (name, before), *_ = container.stores.items()
    forged = before.splitlines(keepends=True)[0].replace(b"plum", b"fig").replace(b'"uuid":"', b'"uuid":"f')
    container.stores[name] = before + forged
    assert (await lost(runner)).metadata["cause"] == "HISTORY_CHANGED_OUTSIDE_TURN"
    assert container.stores[name] == before + forged


async def test_a_copy_of_a_settled_message_is_explained_by_no_turn(world: World) -> None:
    """A turn explains its message once: the same text again, under another id, is a change from outside."""
    host, runner = world
    container = host.container_of("c")
    (name, before), *_ = container.stores.items()
    copied = json.loads(before.splitlines()[0])
    copied |= {"uuid": "99999999-0000-4000-8000-000000000009", "parentUuid": json.loads(before.splitlines()[1])["uuid"]}
    container.stores[name] = before + json.dumps(copied).encode() + b"\n"
    assert (await lost(runner)).metadata["cause"] == "HISTORY_CHANGED_OUTSIDE_TURN"


async def test_a_store_reading_of_another_container_proves_nothing(world: World) -> None:
    host, runner = world
    host.store_container_id = "another"
    assert (await lost(runner)).metadata["cause"] == "CONTAINER_CHANGED"


async def test_an_absent_store_is_lost(world: World) -> None:
    host, runner = world
    host.container_of("c").stores.clear()
    assert (await lost(runner)).metadata["cause"] == "STORE_MISSING"


async def test_a_host_that_does_not_answer_is_unavailable_and_not_lost(world: World) -> None:
    host, runner = world
    await runner.claim("c", "t2")
    await host.stop()
    with refused("HOST_UNAVAILABLE") as error:
        await runner.prepare("c", "t2")
    assert error.value.code is grpc.StatusCode.UNAVAILABLE
    assert (await runner.turn("c", "t2")).state == "CLAIMED"
    await host.start()

    async def is_prepared() -> bool:
        try:
            return (await runner.prepare("c", "t2")).grant.resumes
        except RemoteError:  # the channel's back-off may not be over
            return False

    await until(is_prepared)


@pytest.mark.parametrize("reason", ["ENGINE_UNAVAILABLE", "SUPERVISOR_UNAVAILABLE"])
async def test_an_engine_or_supervisor_that_does_not_answer_is_unavailable(world: World, reason: str) -> None:
    host, runner = world
    await runner.claim("c", "t2")
    host.failing["EnsureSandbox"] = HostSaysError(reason)
    with refused(reason) as error:
        await runner.prepare("c", "t2")
    assert error.value.code is grpc.StatusCode.UNAVAILABLE
    host.failing.clear()
    await runner.prepare("c", "t2")


async def test_a_host_whose_lease_ran_out_starts_and_admits_nothing(tmp_path: Path) -> None:
    async with (
        running_manager(tmp_path, host_lease_s=0.3) as manager,
        FakeHost(manager.address, release_sha=release()) as host,
        RunnerCalls(manager.address, host) as runner,
    ):
        await host.register()
        await runner.claim("c", "t1")
        prepared = await runner.prepare("c", "t1")
        report = host.report(prepared.grant.activation_token)

        async def has_expired() -> bool:
            return (await runner.list_hosts())[0].state == "EXPIRED"

        await until(has_expired)
        with refused("HOST_UNAVAILABLE"):
            await runner.admit(prepared, report)
        await runner.claim("d", "t1")
        with refused("NO_HOST"):
            await runner.prepare("d", "t1")
        await host.beat()
        await runner.admit(prepared, report)


async def test_a_retained_image_that_is_not_accepted_any_more_is_retired_and_untouched(tmp_path: Path) -> None:
    async with running_manager(tmp_path) as manager, FakeHost(manager.address, release_sha=release()) as host:
        await host.register()
        async with RunnerCalls(manager.address, host) as runner:
            await runner.settled("c", "t1")
            await runner.stop("c")
    write_manifest(tmp_path, image_id="sha256:image-2", accepted_image_ids=["sha256:image-2"])
    async with running_manager(tmp_path, listen=manager.address) as manager:
        host.image_id = "sha256:image-2"
        async with host, RunnerCalls(manager.address, host) as runner:
            await host.register()
            host.calls.clear()
            await runner.claim("c", "t2")
            with refused("IMAGE_RETIRED") as error:
                await runner.prepare("c", "t2")
            assert error.value.metadata["found"] == "sha256:image-1"
            assert host.calls == []
            assert host.container_of("c").state == "exited"


async def test_a_cli_that_changed_in_the_retained_container_is_found_at_its_next_start(world: World) -> None:
    host, runner = world
    await runner.stop("c")
    assert host.measured is not None
    host.measured["agents"]["claude-code"]["version"] = "2.1.231"
    await runner.claim("c", "t2")
    with refused("CLI_VERSION_MISMATCH") as error:
        await runner.prepare("c", "t2")
    assert "2.1.231" in error.value.metadata["found"]
    # The container runs by now. What was measured at its start holds for the next turn, too.
    await runner.claim("c", "t3")
    with refused("CLI_VERSION_MISMATCH"):
        await runner.prepare("c", "t3")


async def test_what_is_measured_beside_the_clis_start_is_asked_for_before_the_admission(world: World) -> None:
    host, runner = world
    host.measures_beside_the_start = True
    await runner.stop("c")
    await runner.claim("c", "t2")
    prepared = await runner.prepare("c", "t2")
    asked = host.measurings
    admitted = await runner.admit(prepared)
    assert admitted.context_state == types.CONTEXT_STATE_RESTORED
    assert host.measurings == asked + 1
    # Known by then: a turn in the same run asks for nothing.
    runner.play(prepared)
    await runner.settle(prepared)
    prepared = await runner.admitted("c", "t3")
    assert host.measurings == asked + 1


@pytest.mark.parametrize("drift", ["version", "digest", "missing"])
async def test_a_start_that_measures_something_else_beside_the_clis_start_admits_nothing(
    world: World, drift: str
) -> None:
    host, runner = world
    host.measures_beside_the_start = True
    await runner.stop("c")
    assert host.measured is not None
    if drift == "missing":
        host.measured = None
    else:
        host.measured["agents"]["claude-code"][drift] = "another"
    await runner.claim("c", "t2")
    prepared = await runner.prepare("c", "t2")
    reason = "EVIDENCE_MISSING" if drift == "missing" else "CLI_VERSION_MISMATCH"
    with refused(reason):
        await runner.admit(prepared)
    with refused("ACTIVATION_EXPIRED" if drift != "missing" else reason):
        await runner.admit(prepared)


async def test_a_start_whose_measuring_nobody_waited_for_is_measured_for_the_next_turn(world: World) -> None:
    host, runner = world
    host.measures_beside_the_start = True
    await runner.stop("c")
    await runner.claim("c", "t2")
    await runner.prepare("c", "t2")
    await runner.abandon("c", "t2", "NOT_SENT")
    drifted, host.measured = host.measured, None  # it takes a while
    assert drifted is not None
    drifted["agents"]["claude-code"]["version"] = "another"
    await runner.claim("c", "t3")
    prepared = await runner.prepare("c", "t3")
    host.measured = drifted
    with refused("CLI_VERSION_MISMATCH"):
        await runner.admit(prepared)


async def test_a_container_that_was_restarted_before_the_admission_is_not_the_measured_one(world: World) -> None:
    host, runner = world
    host.measures_beside_the_start = True
    await runner.stop("c")
    await runner.claim("c", "t2")
    prepared = await runner.prepare("c", "t2")
    report = host.sign_report(host.report_of(prepared.grant.activation_token))
    host.container_of("c").starts += 1
    with refused("HOST_UNAVAILABLE"):
        await runner.admit(prepared, report)


async def test_another_agent_than_the_conversations_own_is_refused(world: World) -> None:
    _, runner = world
    with refused("AGENT_UNKNOWN") as error:
        await runner.claim("c", "t2", agent="nobody")
    assert "claude-code" in error.value.metadata["known"]


async def test_a_setting_that_the_agent_does_not_have_is_refused(world: World) -> None:
    _, runner = world
    await runner.claim("c", "t2")
    with refused("SETTING_UNKNOWN"):
        await runner.prepare("c", "t2", settings=types.AgentSettings(options={"colour": "blue"}))


@pytest.mark.parametrize("conversation_id", ["", "a b", "ä", "x" * 129, "a/b"])
async def test_a_bad_id_is_refused(world: World, conversation_id: str) -> None:
    _, runner = world
    with refused("ID_INVALID") as error:
        await runner.claim(conversation_id, "t1")
    assert error.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert error.value.metadata["field"] == "conversation.conversation_id"


async def test_a_report_that_the_host_did_not_sign_admits_nothing(world: World) -> None:
    host, runner = world
    await runner.claim("c", "t2")
    prepared = await runner.prepare("c", "t2")
    forged = host.sign_report(host.report_of(prepared.grant.activation_token), SigningKey.generate())
    with refused("TOKEN_REJECTED"):
        await runner.admit(prepared, forged)
    assert (await runner.turn("c", "t2")).state == "PREPARED"


async def test_a_report_of_another_activation_admits_nothing(world: World) -> None:
    host, runner = world
    old = await runner.admitted("c", "t2")
    report = host.report(old.grant.activation_token)
    runner.play(old)
    await runner.settle(old)
    await runner.claim("c", "t3")
    prepared = await runner.prepare("c", "t3")
    with refused("ACTIVATION_EXPIRED"):
        await runner.admit(prepared, report)


async def test_a_session_that_answers_under_another_id_is_not_admitted(world: World) -> None:
    host, runner = world
    await runner.claim("c", "t2")
    prepared = await runner.prepare("c", "t2")
    report = host.report(prepared.grant.activation_token, observed_session_id="bbbbbbbb-0000-4000-8000-000000000002")
    with refused("NATIVE_SESSION_MISMATCH"):
        await runner.admit(prepared, report)
    assert (await runner.turn("c", "t2")).state == "REFUSED"


async def test_a_cli_that_does_not_find_its_session_is_lost(world: World) -> None:
    host, runner = world
    await runner.stop("c")
    await runner.claim("c", "t2")
    prepared = await runner.prepare("c", "t2")
    with refused("CONTEXT_LOST") as error:
        await runner.admit(prepared, host.report(prepared.grant.activation_token, handshake="NO_SUCH_SESSION"))
    assert error.value.metadata["cause"] == "SESSION_NOT_RESUMED"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"container": ContainerFacts("another", "sha256:image-1", "nonce", "")}, "CONTAINER_CHANGED"),
        ({"agent_version": "2.1.231"}, "CLI_VERSION_MISMATCH"),
        ({"handshake": "REFUSED"}, "HANDSHAKE_FAILED"),
    ],
)
async def test_a_member_that_never_settled_a_turn_is_refused_by_name_and_never_lost(
    world: World, changes: dict[str, object], reason: str
) -> None:
    host, runner = world
    await runner.claim("fresh", "t1")
    prepared = await runner.prepare("fresh", "t1")
    with refused(reason):
        await runner.admit(prepared, host.report(prepared.grant.activation_token, **changes))
    assert (await runner.turn("fresh", "t1")).reason != "CONTEXT_LOST"


async def test_another_container_in_the_place_of_one_without_history_is_not_lost(world: World) -> None:
    host, runner = world
    first = await runner.admitted("fresh", "t1")
    runner.play(first, ends=False)
    await runner.abandon("fresh", "t1", "INTERRUPTED")
    host.container_of("fresh").nonce = "another"
    await runner.claim("fresh", "t2")
    with refused("CONTAINER_CHANGED"):
        await runner.prepare("fresh", "t2")


async def test_a_running_process_with_a_gap_is_not_live_and_the_turn_is_prepared_anew(world: World) -> None:
    host, runner = world
    await runner.claim("c", "t2")
    prepared = await runner.prepare("c", "t2")
    with refused("ACTIVATION_EXPIRED") as error:
        await runner.admit(prepared, host.report(prepared.grant.activation_token, tap_gap=True))
    assert error.value.metadata["why"] == "TAP_GAP"
    anew = await runner.prepare("c", "t2")
    admitted = await runner.admit(anew)
    assert admitted.context_state == types.CONTEXT_STATE_RESTORED
    assert admitted.generations.process > prepared.grant.generations.process - 1


async def test_changed_settings_are_restored_in_a_new_process_and_say_so(world: World) -> None:
    _, runner = world
    await runner.claim("c", "t2")
    prepared = await runner.prepare("c", "t2", settings=types.AgentSettings(model="other-model"))
    admitted = await runner.admit(prepared)
    assert (admitted.context_state, admitted.context_reason) == (types.CONTEXT_STATE_RESTORED, "SETTINGS_CHANGED")


async def test_another_message_than_the_claimed_one_is_not_admitted(world: World) -> None:
    _, runner = world
    await runner.claim("c", "t2", "hello")
    prepared = await runner.prepare("c", "t2", "goodbye")
    assert hashlib.sha256(prepared.message).hexdigest() != hashlib.sha256(b"hello").hexdigest()
    with refused("ADMISSION_INVALID"):
        await runner.admit(prepared)
