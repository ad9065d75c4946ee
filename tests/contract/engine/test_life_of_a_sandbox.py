"""Create, start, stop, kill, remove: the same semantics on both engines."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from pathlib import Path
from typing import Any

import docker
import pytest

from sandbox_manager.host.adapters import local_processes
from sandbox_manager.host.adapters.docker_engine import DockerEngine
from sandbox_manager.host.adapters.engine import ContainerState, Engine, SandboxSpec
from sandbox_manager.host.adapters.engine_choice import choose_engine
from sandbox_manager.host.adapters.engine_errors import (
    EngineUnavailableError,
    ImageMissingError,
    NameTakenError,
    SandboxAbsentError,
    SandboxPathError,
    SupervisorMissingError,
)
from sandbox_manager.host.adapters.guest_connection import ExpectedPeer
from sandbox_manager.host.adapters.guest_errors import GuestOperationError, GuestPeerError
from sandbox_manager.host.adapters.guest_link import GuestLink
from sandbox_manager.host.adapters.local_engine import LocalEngine
from tests.contract.engine.sandbox import Sandbox


async def test_a_created_sandbox_has_not_run(created: Sandbox, image_id: str) -> None:
    found = await created.inspect()
    assert found.state is ContainerState.CREATED
    assert found.image_id == image_id
    assert (found.pid, found.started_at, found.exit_code) == (None, None, None)
    assert found.labels["standfast.conversations"] == "c1"
    assert str(created.socket_dir) in found.mounts


async def test_hello_tells_slots_and_that_nothing_was_adopted(sandbox: Sandbox) -> None:
    hello = sandbox.link.hello
    assert hello.nonce is None
    assert [slot.slot for slot in hello.slots] == [1, 2, 3, 4]
    assert {slot.state for slot in hello.slots} == {"IDLE"}
    assert hello.is_isolated is sandbox.engine.is_isolated
    assert hello.processes == ()


async def test_a_second_nonce_is_refused_and_the_first_stays(sandbox: Sandbox) -> None:
    await sandbox.link.adopt("nonce-1")
    await sandbox.link.adopt("nonce-1")
    with pytest.raises(GuestOperationError) as refused:
        await sandbox.link.adopt("nonce-2")
    assert (refused.value.guest_reason, refused.value.reason) == ("NONCE_MISMATCH", "CONTAINER_CHANGED")
    assert (await sandbox.link.refresh_hello()).nonce == "nonce-1"


async def test_stop_and_start_keep_nonce_and_home_and_raise_the_start_time(sandbox: Sandbox) -> None:
    await sandbox.link.adopt("nonce-1")
    cli = await sandbox.spawn()
    await cli.run("import os; open(os.path.expanduser('~/kept'), 'w').write('x'); open('in-workspace', 'w')")
    before = await sandbox.inspect()
    boot = sandbox.link.hello.boot_id
    stopped = await sandbox.stop()
    assert (stopped.state, stopped.exit_code, stopped.pid) == (ContainerState.EXITED, 0, None)
    assert stopped.finished_at is not None
    assert before.started_at is not None
    await sandbox.start()
    after = await sandbox.inspect()
    assert after.container_id == before.container_id
    assert after.started_at is not None
    assert after.started_at > stopped.finished_at > before.started_at
    assert sandbox.link.hello.nonce == "nonce-1"
    assert sandbox.link.hello.boot_id != boot
    again = await sandbox.spawn()
    found = await again.run(
        "import os; result = [os.path.exists(p) for p in ('in-workspace', os.path.expanduser('~/kept'))]"
    )
    assert found == [True, True]


async def test_what_is_private_is_gone_after_a_stop(sandbox: Sandbox) -> None:
    cli = await sandbox.spawn()
    await cli.run("import os; open(os.environ['TMPDIR'] + '/secret', 'w')")
    await sandbox.stop()
    await sandbox.start()
    again = await sandbox.spawn()
    assert await again.run("import os; result = os.path.exists(os.environ['TMPDIR'] + '/secret')") is False


async def test_stop_lets_a_cli_leave_by_itself(sandbox: Sandbox) -> None:
    cli = await sandbox.spawn()
    await cli.run("import atexit, os; atexit.register(lambda: open(os.path.expanduser('~/left-in-order'), 'w'))")
    stopped = await sandbox.stop()
    assert stopped.exit_code == 0
    await sandbox.start()
    again = await sandbox.spawn()
    assert await again.run("import os; result = os.path.exists(os.path.expanduser('~/left-in-order'))") is True


async def test_stopping_twice_and_starting_twice_are_the_same_as_once(sandbox: Sandbox) -> None:
    running = await sandbox.inspect()
    await sandbox.engine.start(sandbox.container_id)
    assert (await sandbox.inspect()).started_at == running.started_at
    stopped = await sandbox.stop()
    await sandbox.engine.stop(sandbox.container_id, 1)
    assert await sandbox.inspect() == stopped


async def test_a_killed_supervisor_leaves_an_exited_sandbox_that_nobody_takes_for_a_clean_one(sandbox: Sandbox) -> None:
    cli = await sandbox.spawn()
    await cli.run("import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)")
    before = await sandbox.inspect()
    assert before.pid is not None
    os.kill(before.pid, signal.SIGKILL)
    found = await sandbox.wait_for_state(ContainerState.EXITED)
    assert found.exit_code == 137
    assert found.finished_at is not None
    await sandbox.start()
    assert {slot.state for slot in sandbox.link.hello.slots} == {"IDLE"}
    assert (await sandbox.link.census(1)).processes == ()


async def test_kill_ends_everything(sandbox: Sandbox) -> None:
    await sandbox.spawn()
    await sandbox.disconnect()
    await sandbox.engine.kill(sandbox.container_id)
    found = await sandbox.inspect()
    assert (found.state, found.exit_code) == (ContainerState.EXITED, 137)
    await sandbox.engine.kill(sandbox.container_id)


async def test_a_removed_sandbox_is_absent_and_removing_it_again_is_fine(sandbox: Sandbox) -> None:
    await sandbox.disconnect()
    await sandbox.engine.remove(sandbox.container_id)
    assert (await sandbox.inspect()).state is ContainerState.ABSENT
    await sandbox.engine.remove(sandbox.container_id)
    with pytest.raises(SandboxAbsentError):
        await sandbox.engine.start(sandbox.container_id)
    with pytest.raises(SandboxAbsentError):
        await sandbox.engine.stop(sandbox.container_id, 1)
    with pytest.raises(SandboxAbsentError):
        await sandbox.engine.size_bytes(sandbox.container_id)


async def test_a_taken_name_is_refused_and_found_by_name(created: Sandbox, image_id: str) -> None:
    found = await created.inspect()
    with pytest.raises(NameTakenError):
        await created.engine.create(SandboxSpec(found.name, image_id, created.socket_dir, {}))
    assert (await created.engine.inspect(found.name)).container_id == created.container_id


async def test_list_finds_by_labels(created: Sandbox) -> None:
    name = (await created.inspect()).name
    found = await created.engine.list_sandboxes({"standfast.group": name, "standfast.tenant": "local"})
    assert [row.container_id for row in found] == [created.container_id]
    assert await created.engine.list_sandboxes({"standfast.group": name, "standfast.tenant": "other"}) == []


async def test_a_missing_image_is_named(engine: Engine, tmp_path: Path) -> None:
    missing = "sha256:" + "0" * 64
    with pytest.raises(ImageMissingError, match=missing):
        await engine.image_id(missing)
    with pytest.raises(ImageMissingError):
        await engine.create(SandboxSpec("never-made", missing, tmp_path, {}))
    assert (await engine.inspect("never-made")).state is ContainerState.ABSENT


async def test_an_image_measures_itself(engine: Engine, image_id: str, request: pytest.FixtureRequest) -> None:
    measured = await engine.run_measure(image_id)
    assert measured["guest_protocol"] == 1
    probes = measured["probes"]
    assert isinstance(probes, dict)
    assert probes["reaps_orphans"] is True
    if engine.is_isolated:
        assert all(value is True for name, value in probes.items() if name != "supervisor_pid"), probes
        manifest = request.getfixturevalue("release_manifest")
        assert measured["supervisor"] == manifest["supervisor"]
    else:
        agents = measured["agents"]
        assert isinstance(agents, dict)
        assert agents["stub"]["version"] == "1.2.3"


async def test_a_running_sandbox_measures_the_same_as_its_image(sandbox: Sandbox, image_id: str) -> None:
    inside: dict[str, Any] = dict(await sandbox.link.measure())
    outside = await sandbox.engine.run_measure(image_id)
    assert inside["supervisor"] == outside["supervisor"]
    assert inside["agents"] == outside["agents"]
    assert sandbox.link.hello.supervisor_digest == inside["supervisor"]["digest"]


async def test_what_a_member_writes_counts(sandbox: Sandbox) -> None:
    before = await sandbox.engine.size_bytes(sandbox.container_id)
    cli = await sandbox.spawn()
    await cli.run("open('large', 'wb').write(b'x' * 3_000_000)")
    assert await sandbox.engine.size_bytes(sandbox.container_id) >= before + 3_000_000


async def test_another_process_behind_the_socket_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(GuestPeerError):
        await GuestLink.connect(sandbox.socket_dir, ExpectedPeer(os.getpid(), 0))


async def test_the_model_port_is_listened_on_inside_and_accepted_outside(sandbox: Sandbox) -> None:
    with await sandbox.link.listen_model_port(0) as listener:
        port = listener.getsockname()[1]
        cli = await sandbox.spawn()
        code = f"import socket; s = socket.create_connection(('127.0.0.1', {port})); s.sendall(b'ask'); result = s.recv(9).decode()"
        await cli.send({"run": code})
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(10):
            peer, _ = await loop.sock_accept(listener)
            with peer:
                peer.setblocking(False)
                assert await loop.sock_recv(peer, 9) == b"ask"
                await loop.sock_sendall(peer, b"answer")
                await cli.read_until(lambda: b"answer" in cli.stdout)
    with await sandbox.link.listen_model_port(port) as again:
        assert again.getsockname()[1] == port
    with pytest.raises(GuestOperationError):
        await sandbox.link.listen_model_port(port + 1)


async def test_shutdown_by_the_link_is_an_orderly_end(sandbox: Sandbox) -> None:
    await sandbox.spawn()
    await sandbox.link.shutdown()
    found = await sandbox.wait_for_state(ContainerState.EXITED)
    assert found.exit_code == 0


@pytest.mark.engine("docker")
async def test_an_image_without_our_supervisor_is_named(
    docker_client: docker.DockerClient, sandbox_image_id: str
) -> None:
    # The same image with another program as process 1.
    recipe = io.BytesIO(f'FROM {sandbox_image_id}\nENTRYPOINT ["/bin/echo"]\n'.encode())
    image, _ = docker_client.images.build(fileobj=recipe, rm=True, forcerm=True)
    engine = DockerEngine()
    try:
        with pytest.raises(SupervisorMissingError, match="build_image"):
            await engine.run_measure(str(image.id))
    finally:
        await engine.close()
        # noprune: else the engine also takes the images below it that have no name any more.
        docker_client.images.remove(str(image.id), force=True, noprune=True)


async def test_an_engine_that_does_not_answer_says_nothing_about_containers(tmp_path: Path) -> None:
    engine = DockerEngine(f"unix://{tmp_path}/no-engine.sock")
    try:
        with pytest.raises(EngineUnavailableError):
            await engine.inspect("anything")
        with pytest.raises(EngineUnavailableError):
            await engine.remove("anything")
        with pytest.raises(EngineUnavailableError):
            await engine.list_sandboxes({})
    finally:
        await engine.close()


async def test_auto_falls_back_to_local_and_says_so(tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/no-engine.sock"
    choice = await choose_engine("auto", groups=tmp_path, agents=tmp_path, docker_url=url)
    assert isinstance(choice.engine, LocalEngine)
    assert "falling back to local" in choice.notice
    assert "no isolation" in choice.notice
    await choice.engine.close()
    with pytest.raises(EngineUnavailableError):
        await choose_engine("docker", groups=tmp_path, agents=tmp_path, docker_url=url)


@pytest.mark.engine("docker")
async def test_auto_takes_docker_where_an_engine_answers(tmp_path: Path) -> None:
    choice = await choose_engine("auto", groups=tmp_path, agents=tmp_path)
    assert isinstance(choice.engine, DockerEngine)
    await choice.engine.close()


@pytest.mark.engine("local")
async def test_a_workspace_path_that_the_cli_would_hash_is_refused(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 90) / ("e" * 90)
    (tmp_path / "tools" / "stub").mkdir(parents=True)
    engine = LocalEngine(deep, tmp_path / "tools")
    try:
        image = await engine.image_id("local")
        with pytest.raises(SandboxPathError, match="at most 199"):
            await engine.create(SandboxSpec("g", image, tmp_path, {}))
        assert not (deep / "g").exists()
    finally:
        await engine.close()


@pytest.mark.engine("local")
async def test_a_changed_tool_folder_is_another_image(tmp_path: Path) -> None:
    folder = tmp_path / "tools" / "stub"
    folder.mkdir(parents=True)
    engine = LocalEngine(tmp_path / "groups", folder.parent)
    try:
        before = await engine.image_id("local")
        (folder / "stub").write_text("#!/bin/sh\necho 2.0.0\n")
        (folder / "stub").chmod(0o755)
        assert await engine.image_id("local") != before
        with pytest.raises(ImageMissingError):
            await engine.image_id(before)
    finally:
        await engine.close()


@pytest.mark.engine("local")
@pytest.mark.parametrize("engine_name", ["local"], indirect=True)
async def test_a_start_whose_record_was_lost_is_found_and_not_repeated(sandbox: Sandbox) -> None:
    """What a host agent leaves that dies between the start and its record."""
    before = await sandbox.inspect()
    record = Path(sandbox.link.hello.workspace).parent / "run.json"
    record.unlink()
    assert (await sandbox.inspect()).state is ContainerState.CREATED
    await sandbox.engine.start(sandbox.container_id)
    assert (await sandbox.inspect()).pid == before.pid
    record.unlink()
    await sandbox.disconnect()
    await sandbox.engine.remove(sandbox.container_id)
    assert before.pid is not None
    assert local_processes.start_time(before.pid) is None
