"""What the supervisor says of a native store file, and what it refuses to read."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import docker
import pytest

from sandbox_manager.host.adapters.docker_engine import DockerEngine, create_parameters
from sandbox_manager.host.adapters.engine import SandboxSpec
from sandbox_manager.host.adapters.guest_errors import GuestOperationError
from tests.contract.engine.sandbox import Sandbox, StubCli

PLACE = (".claude", "projects", "-workspace", "session.jsonl")
CONTENT = b"".join(b'{"record": %d, "text": "something that was said"}\n' % number for number in range(2000))


def in_store(code: str) -> str:
    """Code that runs in the slot with `path` as the store file and `folder` as its folder."""
    return (
        "import os, json\n"
        f"path = os.path.join(os.path.expanduser('~'), *{PLACE!r})\n"
        "folder = os.path.dirname(path)\n"
        "os.makedirs(folder, exist_ok=True)\n" + code
    )


async def with_store(sandbox: Sandbox, slot: int = 1) -> StubCli:
    cli = await sandbox.spawn(slot)
    await cli.run(in_store(f"open(path, 'wb').write(bytes.fromhex('{CONTENT.hex()}'))"))
    return cli


async def refused(sandbox: Sandbox, components: tuple[str, ...] = PLACE, base: str = "home", slot: int = 1) -> str:
    with pytest.raises(GuestOperationError) as error:
        await sandbox.link.read_store(slot, base, components)
    return error.value.guest_reason


async def test_length_digests_and_tail_are_those_of_the_file(sandbox: Sandbox) -> None:
    await with_store(sandbox)
    found = await sandbox.link.read_store(1, "home", PLACE, prefix_length=1234)
    assert found.length == len(CONTENT)
    assert found.sha256 == hashlib.sha256(CONTENT).hexdigest()
    assert found.prefix_sha256 == hashlib.sha256(CONTENT[:1234]).hexdigest()
    assert found.tail == CONTENT[1234:]
    assert not found.tail_is_cut
    assert found.free_bytes > 0


async def test_a_tail_over_its_bound_is_cut_and_says_so(sandbox: Sandbox) -> None:
    await with_store(sandbox)
    found = await sandbox.link.read_store(1, "home", PLACE, prefix_length=100, tail_bytes_max=50)
    assert (found.tail, found.tail_is_cut) == (CONTENT[100:150], True)
    assert found.sha256 == hashlib.sha256(CONTENT).hexdigest()


async def test_a_file_shorter_than_its_prefix_has_no_prefix_digest(sandbox: Sandbox) -> None:
    await with_store(sandbox)
    found = await sandbox.link.read_store(1, "home", PLACE, prefix_length=len(CONTENT) + 1)
    assert (found.prefix_sha256, found.tail, found.length) == (None, b"", len(CONTENT))
    whole = await sandbox.link.read_store(1, "home", PLACE, prefix_length=len(CONTENT))
    assert whole.prefix_sha256 == whole.sha256


async def test_a_tail_of_many_frames_arrives_whole(sandbox: Sandbox) -> None:
    cli = await with_store(sandbox)
    await cli.run(in_store("open(path, 'wb').write(bytes(range(256)) * 20000)"))
    found = await sandbox.link.read_store(1, "home", PLACE, prefix_length=3)
    assert found.tail == (bytes(range(256)) * 20000)[3:]


async def test_one_changed_byte_is_seen_with_length_and_mtime_kept(sandbox: Sandbox) -> None:
    cli = await with_store(sandbox)
    before = await sandbox.link.read_store(1, "home", PLACE, prefix_length=len(CONTENT))
    await cli.run(
        in_store(
            "facts = os.stat(path)\nwith open(path, 'r+b') as f:\n f.seek(20); f.write(b'X')\n"
            "os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))"
        )
    )
    after = await sandbox.link.read_store(1, "home", PLACE, prefix_length=len(CONTENT))
    assert after.length == before.length
    assert after.prefix_sha256 != before.prefix_sha256


async def test_an_appended_record_leaves_the_prefix_as_it_was(sandbox: Sandbox) -> None:
    cli = await with_store(sandbox)
    before = await sandbox.link.read_store(1, "home", PLACE, prefix_length=len(CONTENT))
    await cli.run(in_store("open(path, 'ab').write(b'{\"new\": 1}\\n')"))
    after = await sandbox.link.read_store(1, "home", PLACE, prefix_length=len(CONTENT))
    assert after.prefix_sha256 == before.sha256
    assert after.tail == b'{"new": 1}\n'


async def test_what_is_not_there_is_absent(sandbox: Sandbox) -> None:
    assert await refused(sandbox) == "ABSENT"
    await with_store(sandbox)
    assert await refused(sandbox, (*PLACE[:-1], "other.jsonl")) == "ABSENT"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("os.rename(path, path + '.real'); os.symlink(path + '.real', path)", "SYMLINK"),
        ("os.remove(path); os.symlink('/sf/nonce', path)", "SYMLINK"),
        ("os.remove(path); os.mkfifo(path)", "NOT_REGULAR"),
        ("os.remove(path); os.mkdir(path)", "NOT_REGULAR"),
        ("os.remove(path); os.mknod(path, 0o140600)", "NOT_REGULAR"),
        ("os.rename(folder, folder + '.real'); os.symlink(folder + '.real', folder)", "SYMLINK"),
        ("p = os.path.dirname(folder); os.rename(p, p + '.real'); os.symlink(p + '.real', p)", "SYMLINK"),
        ("os.link(path, path + '.second')", "NLINK"),
        ("import shutil; shutil.rmtree(folder); open(folder, 'w')", "NOT_REGULAR"),
    ],
)
async def test_a_store_that_was_replaced_by_something_else_is_refused(
    sandbox: Sandbox, change: str, reason: str
) -> None:
    cli = await with_store(sandbox)
    assert await cli.run(in_store(change)) is None
    assert await refused(sandbox) == reason


@pytest.mark.parametrize("components", [("..", "other"), ("a/b",), (".",), ("",), (), ("a\0b",)])
async def test_components_that_are_no_plain_names_are_refused(sandbox: Sandbox, components: tuple[str, ...]) -> None:
    assert await refused(sandbox, components) == "BAD_PATH"


async def test_a_workspace_file_is_read_too(sandbox: Sandbox) -> None:
    cli = await sandbox.spawn()
    await cli.run("open('notes.md', 'w').write('shared')")
    found = await sandbox.link.read_store(1, "workspace", ("notes.md",))
    assert found.tail == b"shared"


async def test_a_writable_store_passes_the_probe_and_a_locked_one_does_not(sandbox: Sandbox) -> None:
    cli = await with_store(sandbox)
    await sandbox.link.probe_store(1, "home", PLACE[:-1])
    assert await cli.run(in_store("result = os.listdir(folder)")) == [PLACE[-1]]
    if os.getuid() == 0 and not sandbox.engine.is_isolated:
        return  # root of the machine writes everywhere; in a container no slot is root
    await cli.run(in_store("os.chmod(folder, 0o500)"))
    with pytest.raises(GuestOperationError) as error:
        await sandbox.link.probe_store(1, "home", PLACE[:-1])
    assert (error.value.guest_reason, error.value.reason) == ("UNWRITABLE", "STORE_UNWRITABLE")


@pytest.mark.engine("docker")
@pytest.mark.parametrize("engine_name", ["docker"], indirect=True)
async def test_a_store_is_read_with_the_slots_eyes_and_no_others(sandbox: Sandbox) -> None:
    """Slot 2 opened its store to all; slot 1 put a foreign file's name where its store should be."""
    second = await with_store(sandbox, slot=2)
    await second.run(in_store("os.chmod(path, 0o444)"))
    await second.run("import shutil, os; shutil.copy('/etc/hostname', 'shared-file'); os.chmod('shared-file', 0o666)")
    first = await with_store(sandbox, slot=1)
    await first.run(in_store("os.chmod(path, 0)"))
    assert await refused(sandbox) == "UNREADABLE"
    await first.run(in_store("os.chmod(path, 0o600)"))
    assert (await sandbox.link.read_store(1, "home", PLACE)).length == len(CONTENT)


@pytest.mark.engine("docker")
@pytest.mark.parametrize("engine_name", ["docker"], indirect=True)
async def test_a_foreign_file_in_the_stores_place_is_refused(sandbox: Sandbox) -> None:
    """A file of another user, moved there through the workspace both may write."""
    first = await with_store(sandbox, slot=1)
    second = await sandbox.spawn(2)
    await second.run(
        "import os; os.mkdir('drop', 0o777); os.chmod('drop', 0o777); open('drop/file', 'w').write('forged')"
    )
    moved = await first.run(in_store("os.remove(path); os.rename('drop/file', path); result = 'moved'"))
    assert moved == "moved"
    assert await refused(sandbox) in ("OWNER", "UNREADABLE")


@pytest.mark.engine("docker")
async def test_a_full_file_system_is_named_and_the_store_stays_readable(
    docker_client: docker.DockerClient, sandbox_image_id: str, tmp_path: Path, test_labels: dict[str, str]
) -> None:
    """The case disk-full-while-recording, seen from below: the slot's home has 1 MiB, and its owner fills it."""
    (tmp_path / "sockets").mkdir(mode=0o700)
    parameters = create_parameters(
        SandboxSpec(f"full-{tmp_path.name}", sandbox_image_id, tmp_path / "sockets", test_labels)
    )
    parameters["tmpfs"]["/members/1/home"] = "size=1m,mode=0700,uid=20001,gid=20001"
    engine = DockerEngine()
    container_id = str(docker_client.containers.create(**parameters).id)
    sandbox = Sandbox(engine, container_id, tmp_path / "sockets")
    try:
        await sandbox.start()
        cli = await with_store(sandbox)
        await sandbox.link.probe_store(1, "home", PLACE[:-1])
        assert await cli.run(FILL_HOME) == {"errno": errno.ENOSPC}
        reading = await sandbox.link.read_store(1, "home", PLACE)
        assert (reading.tail, reading.free_bytes) == (CONTENT, 0)
        with pytest.raises(GuestOperationError) as error:
            await sandbox.link.probe_store(1, "home", PLACE[:-1])
        assert (error.value.guest_reason, error.value.reason) == ("ENOSPC", "STORAGE_FULL")
        await cli.run("import os; os.remove(os.path.expanduser('~/fill'))")
        await sandbox.link.probe_store(1, "home", PLACE[:-1])
    finally:
        await sandbox.disconnect()
        await engine.remove(container_id)
        await engine.close()


FILL_HOME = """
import os
with open(os.path.expanduser('~/fill'), 'wb', buffering=0) as file:
    while True: file.write(b'x' * 4096)
"""
