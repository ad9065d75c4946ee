"""Hosts register by evidence: what differs is refused by its reason, with what was expected and what was found."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from standfast.host.v1 import host_registry_pb2 as pb
from standfast_chassis.keys import SigningKey
from standfast_chassis.rpc_status import remote_error
from tests.fake_host import AGENT, VERSION, FakeHost, HostSaysError
from tests.manager_runs import RunnerCalls, refused, release, running_manager, until, write_manifest

CASES = Path(__file__).parent.parent / "cases"
HELPER = "http-agent-live-bridge=4"
World = tuple[FakeHost, RunnerCalls]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A manager and a host that has not registered yet."""
    async with (
        running_manager(tmp_path) as manager,
        FakeHost(manager.address, release_sha=release()) as host,
        RunnerCalls(manager.address, host) as runner,
    ):
        yield host, runner


async def test_a_host_with_the_right_evidence_is_ready(world: World) -> None:
    host, runner = world
    await host.register()
    (found,) = await runner.list_hosts()
    assert (found.host_id, found.state, found.engine) == ("host-1", "READY", "docker")
    assert (found.release_sha, found.image_id) == (release(), "sha256:image-1")
    assert 0 < found.lease_left_ms <= 20_000


@pytest.mark.parametrize(
    ("item", "changes", "reason"),
    [
        ("release_sha", {"release_sha": "b" * 40}, "EVIDENCE_CONTRADICTED"),
        ("release_sha", {"release_sha": None}, "EVIDENCE_CONTRADICTED"),
        ("protocol_version", {"protocol_version": 2}, "EVIDENCE_CONTRADICTED"),
        ("protocol_version", {"protocol_version": None}, "EVIDENCE_MISSING"),
        ("image_id", {"image_id": "sha256:other"}, "EVIDENCE_CONTRADICTED"),
        ("image_id", {"image_id": None}, "EVIDENCE_MISSING"),
        (
            "supervisor.version",
            {"supervisor": {"version": "2", "digest": "sha256:supervisor"}},
            "EVIDENCE_CONTRADICTED",
        ),
        ("supervisor.digest", {"supervisor": {"version": "1", "digest": "sha256:x"}}, "EVIDENCE_CONTRADICTED"),
        ("supervisor.version", {"supervisor": None}, "EVIDENCE_MISSING"),
        (f"cli.{AGENT}.version", {"agents": {}}, "EVIDENCE_MISSING"),
        (
            f"cli.{AGENT}.version",
            {"agents": {AGENT: {"version": "2.1.231", "digest": "sha256:claude"}}},
            "CLI_VERSION_MISMATCH",
        ),
        (
            f"cli.{AGENT}.digest",
            {"agents": {AGENT: {"version": VERSION, "digest": "sha256:y"}}},
            "CLI_VERSION_MISMATCH",
        ),
        (f"cli.{AGENT}.updater", {"updater": "on"}, "UPDATER_ENABLED"),
        ("host_id", {"host_id": "host-2"}, "EVIDENCE_CONTRADICTED"),
        ("engine", {"engine": "local"}, "EVIDENCE_CONTRADICTED"),
        ("host_key", {"host_key": SigningKey.generate().public.jwk_text()}, "EVIDENCE_CONTRADICTED"),
    ],
)
async def test_a_wrong_or_missing_item_is_refused_by_name(
    world: World, item: str, changes: dict[str, Any], reason: str
) -> None:
    host, runner = world
    with refused(reason) as error:
        await host.register(**changes)
    assert error.value.code is grpc.StatusCode.FAILED_PRECONDITION
    assert error.value.metadata["item"] == item
    assert error.value.metadata["expected"]
    assert error.value.metadata["found"]
    (found,) = await runner.list_hosts()
    assert (found.state, found.lease_left_ms < 0) == ("REJECTED", True)
    assert found.findings[0].code in (reason, "IMAGE_RETIRED")
    await runner.claim("c", "t1")
    with refused("NO_HOST"):
        await runner.prepare("c", "t1")


async def test_case_host_old_helper_or_self_updated_cli(tmp_path: Path) -> None:
    case = json.loads((CASES / "inputs" / "host-old-helper-or-self-updated-cli.json").read_text())
    expected = {"a1": None, "a2": "HELPER_VERSION_MISMATCH", "a3": "CLI_VERSION_MISMATCH", "a4": "UPDATER_ENABLED"}
    assert {record["id"] for record in case["records"]} == set(expected)
    write_manifest(
        tmp_path,
        helper=HELPER,
        agents={AGENT: {"version": "2.1.220", "digest": "sha256:claude"}},
    )
    async with running_manager(tmp_path) as manager, RunnerCalls(manager.address) as runner:
        for record in case["records"]:
            async with FakeHost(manager.address, host_id=record["id"], release_sha=release()) as host:
                evidence = {
                    "helper": record["helper"],
                    "agents": {AGENT: {"version": record["claude"], "digest": "sha256:claude"}},
                    "updater": record["updater"],
                }
                reason = expected[record["id"]]
                if reason is None:
                    await host.register(**evidence)
                    continue
                with refused(reason) as error:
                    await host.register(**evidence)
                assert error.value.metadata["expected"] in (HELPER, "2.1.220", "off")
                assert error.value.metadata["found"] in (record["helper"], record["claude"], record["updater"])
        states = {host.host_id: host.state for host in await runner.list_hosts()}
        assert states == {"a1": "READY", "a2": "REJECTED", "a3": "REJECTED", "a4": "REJECTED"}


async def test_evidence_that_another_key_signed_is_refused(world: World) -> None:
    host, runner = world
    with refused("TOKEN_REJECTED"):
        await host.register(key=SigningKey.generate())
    assert await runner.list_hosts() == []


async def test_evidence_over_another_nonce_is_refused(world: World) -> None:
    host, runner = world
    with refused("TOKEN_REJECTED"):
        await host.register(nonce="replayed")
    assert await runner.list_hosts() == []


async def test_another_key_cannot_take_a_registered_hosts_name(world: World) -> None:
    host, runner = world
    await host.register()
    own, host.key = host.key, SigningKey.generate()
    with refused("TOKEN_REJECTED"):
        await host.register()
    host.key = own
    await host.beat()
    assert (await runner.list_hosts())[0].state == "READY"


async def test_a_heartbeat_of_an_unknown_host_is_told_to_register(world: World) -> None:
    host, _ = world
    with refused("HOST_UNKNOWN"):
        await host.beat(lease_generation=1)


async def test_a_heartbeat_of_a_former_registration_is_refused(world: World) -> None:
    host, runner = world
    await host.register()
    old = host.lease_generation
    await host.register()
    assert host.lease_generation == old + 1
    with refused("HOST_UNKNOWN"):
        await host.beat(lease_generation=old)
    assert len(await runner.list_hosts()) == 1


async def test_a_rejected_host_that_comes_back_right_is_ready(world: World) -> None:
    host, runner = world
    with refused("UPDATER_ENABLED"):
        await host.register(updater="on")
    await host.register()
    assert (await runner.list_hosts())[0].state == "READY"


async def test_a_host_without_heartbeats_expires_and_one_brings_it_back(tmp_path: Path) -> None:
    async with (
        running_manager(tmp_path, host_lease_s=0.3) as manager,
        FakeHost(manager.address, release_sha=release()) as host,
        RunnerCalls(manager.address) as runner,
    ):
        await host.register()

        async def has_expired() -> bool:
            (found,) = await runner.list_hosts()
            return found.state == "EXPIRED" and found.lease_left_ms < 0

        await until(has_expired)
        assert await host.beat() == 300
        assert (await runner.list_hosts())[0].state == "READY"


async def test_hosts_are_kept_over_a_restart_and_their_next_heartbeat_is_taken(tmp_path: Path) -> None:
    async with running_manager(tmp_path) as manager, FakeHost(manager.address, release_sha=release()) as host:
        await host.register()
    async with running_manager(tmp_path, listen=manager.address) as manager, RunnerCalls(manager.address) as runner:
        assert (await runner.list_hosts())[0].state == "EXPIRED"
        await host.beat()
        assert (await runner.list_hosts())[0].state == "READY"


async def test_with_another_manifest_a_known_host_must_attest_anew(tmp_path: Path) -> None:
    async with running_manager(tmp_path) as manager, FakeHost(manager.address, release_sha=release()) as host:
        await host.register()
    write_manifest(tmp_path, supervisor={"version": "2", "digest": "sha256:new"})
    async with running_manager(tmp_path, listen=manager.address), host:
        with refused("HOST_UNKNOWN"):
            await host.beat()
        with refused("EVIDENCE_CONTRADICTED"):
            await host.register()


async def test_a_new_group_goes_to_the_host_with_fewer(tmp_path: Path) -> None:
    async with (
        running_manager(tmp_path) as manager,
        FakeHost(manager.address, host_id="h1", release_sha=release()) as one,
        FakeHost(manager.address, host_id="h2", release_sha=release()) as two,
        RunnerCalls(manager.address) as runner,
    ):
        await one.register()
        await two.register()
        placed = []
        for name in ("a", "b", "c", "d"):
            await runner.claim(name, "t1")
            placed.append((await runner.prepare(name, "t1")).grant.host_id)
        assert sorted(placed) == ["h1", "h1", "h2", "h2"]


async def test_before_a_new_conversation_every_living_host_is_heard_and_a_dead_one_does_not_block(
    tmp_path: Path,
) -> None:
    async with (
        running_manager(tmp_path, heartbeat_s=0.4) as manager,
        FakeHost(manager.address, release_sha=release()) as host,
        RunnerCalls(manager.address, host) as runner,
    ):
        await host.register()
        await runner.settled("c", "t1")
        await host.register(beats=False)  # it has a lease, and has said nothing of its containers
        with refused("LEGACY_CONVERSATION"):
            await runner.claim("other", "t1", expect="CONTINUE")


async def test_an_engine_that_does_not_answer_has_not_lost_its_containers(world: World) -> None:
    host, runner = world
    await host.register()
    await runner.settled("c", "t1")
    await host.beat()
    await host.beat(engine_answers=False)
    host.failing["InspectSandbox"] = HostSaysError("ENGINE_UNAVAILABLE")
    conversation = await runner.conversation("c")
    assert conversation.group_state == "RUNNING"


@pytest.mark.parametrize("rpc", ["DrainHost", "BanHost"])
async def test_what_comes_later_says_so(world: World, rpc: str) -> None:
    _, runner = world
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await getattr(runner.hosts, rpc)(getattr(pb, f"{rpc}Request")(host_id="h"), timeout=5)
    assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert remote_error(error.value).reason == "CAPABILITY_NOT_BUILT"
