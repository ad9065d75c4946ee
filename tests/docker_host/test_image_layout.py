"""The sandbox image has the users, owners and modes that keep members apart, and the CLI that is pinned."""

from __future__ import annotations

import json
from typing import Any

import docker
import pytest

from deploy.release.pins import load_pins
from tests.docker_host.sandbox_container import CLAUDE, SLOTS, SandboxContainer

pytestmark = pytest.mark.engine("docker")

OWNED = {
    "/sf": "0:0 700",
    "/sf/host": "0:0 700",
    "/members": "0:0 711",
    "/run/slots": "0:0 711",
    "/workspace": "0:20000 2770",
    CLAUDE: "0:0 711",
    "/etc/claude-code": "0:0 755",
    "/etc/claude-code/managed-settings.json": "0:0 644",
    "/etc/gitconfig": "0:0 644",
    "/opt/standfast/supervisor": "0:0 755",
    **{f"/members/{slot}": f"{20000 + slot}:{20000 + slot} 700" for slot in SLOTS},
    **{f"/members/{slot}/home": f"{20000 + slot}:{20000 + slot} 700" for slot in SLOTS},
    **{f"/run/slots/{slot}": f"{20000 + slot}:{20000 + slot} 700" for slot in SLOTS},
}


@pytest.mark.parametrize(("path", "expected"), OWNED.items())
def test_a_path_has_its_owner_and_mode(open_sandbox: SandboxContainer, path: str, expected: str) -> None:
    assert open_sandbox.as_root(f"stat -c '%u:%g %a' {path}").output.strip() == expected


def test_the_mount_points_of_the_slots_are_private_in_the_image_itself(
    docker_client: docker.DockerClient, sandbox_image_id: str, test_labels: dict[str, str]
) -> None:
    # With a tmpfs over it the mode is the tmpfs's at the first start, and the folder's at every later one.
    printed = docker_client.containers.run(
        sandbox_image_id,
        ["-c", "%u:%g %a", *(f"/run/slots/{slot}" for slot in SLOTS)],
        entrypoint=["stat"],
        network_mode="none",
        labels=test_labels,
        remove=True,
    )
    assert printed.decode().split("\n")[:-1] == [f"{20000 + slot}:{20000 + slot} 700" for slot in SLOTS]


@pytest.mark.parametrize("slot", SLOTS)
def test_a_slot_has_a_user_of_its_own_and_the_common_group(sandbox: SandboxContainer, slot: int) -> None:
    assert sandbox.as_slot(slot, "id -u; id -g; id -G").output.split("\n")[:3] == [
        str(20000 + slot),
        str(20000 + slot),
        f"{20000 + slot} 20000",
    ]


def test_the_cli_runs_under_a_slot_without_network_and_is_the_pinned_one(sandbox: SandboxContainer) -> None:
    ran = sandbox.as_slot(1, f"{CLAUDE} --version")
    assert (ran.code, ran.output.split()[0]) == (0, load_pins()["claude-code"].version)


@pytest.mark.parametrize("attempt", [f"cat {CLAUDE}", f"cp {CLAUDE} /run/slots/1/copy", f"dd if={CLAUDE} count=1"])
def test_a_slot_cannot_read_the_cli(sandbox: SandboxContainer, attempt: str) -> None:
    ran = sandbox.as_slot(1, attempt)
    assert ran.code != 0
    assert "Permission denied" in ran.output


def test_there_is_no_second_copy_of_the_cli(open_sandbox: SandboxContainer) -> None:
    found = open_sandbox.as_root("find / -xdev -type f -size +100M").output.split()
    assert sorted(found) == sorted(set(found)), "each once"
    assert [path for path in found if not path.startswith("/opt/standfast/agents/")] == []
    assert [path for path in found if path.startswith("/opt/standfast/agents/claude-code/")] == [CLAUDE]
    assert open_sandbox.as_root(f"stat -c %h {CLAUDE}").output.strip() == "1"


@pytest.mark.parametrize(
    "attempt",
    [
        "ls /sf",
        "ls /sf/host",
        "touch /sf/host/x",
        "ls /members",
        "ls /members/2",
        "ls /members/2/home",
        "ls /run/slots/2",
        "touch /run/slots/x",
        "echo {} > /etc/claude-code/managed-settings.json",
        "echo {} > /etc/claude-code/other.json",
        "rm /etc/claude-code/managed-settings.json",
        "touch /opt/standfast/supervisor/guest/x.py",
        "echo > /opt/standfast/supervisor/__main__.py",
        "touch /opt/standfast/agents/claude-code/x",
        "touch /etc/gitconfig",
    ],
)
def test_a_slot_gets_nowhere_it_must_not(sandbox: SandboxContainer, attempt: str) -> None:
    ran = sandbox.as_slot(1, attempt)
    assert ran.code != 0
    assert "Permission denied" in ran.output


def test_root_of_the_sandbox_cannot_look_into_a_members_home(sandbox: SandboxContainer) -> None:
    assert "Permission denied" in sandbox.as_root("ls /members/1").output


def test_nothing_in_the_image_gains_rights_by_its_mode(open_sandbox: SandboxContainer) -> None:
    assert open_sandbox.as_root("find / -xdev -type f -perm /6000").output == ""


def test_members_share_a_repository_in_the_workspace(sandbox: SandboxContainer) -> None:
    identity = "-c user.name=m -c user.email=m@example.com"
    made = sandbox.as_slot(
        1,
        f"umask 0007; cd /workspace && git init -q r && cd r && echo a > f && git add f && git {identity} commit -qm one",
    )
    assert made.code == 0, made.output
    added = sandbox.as_slot(
        2, f"umask 0007; cd /workspace/r && echo b >> f && git {identity} commit -qam two && git log --oneline"
    )
    assert added.code == 0, added.output
    assert len(added.output.splitlines()) == 2


def test_the_tools_of_an_agent_are_there(sandbox: SandboxContainer) -> None:
    ran = sandbox.as_slot(
        1, "git --version && rg --version && ps --version && curl --version && python3 -c 'import asyncio, ssl'"
    )
    assert ran.code == 0, ran.output


def test_the_image_measures_itself_as_its_manifest_says(
    docker_client: docker.DockerClient,
    sandbox_image_id: str,
    release_manifest: dict[str, Any],
    test_labels: dict[str, str],
) -> None:
    printed = docker_client.containers.run(
        sandbox_image_id, ["measure"], network_mode="none", labels=test_labels, remove=True, stderr=False
    )
    measured = json.loads(printed)
    assert measured["supervisor"] == release_manifest["supervisor"]
    agents = {name: {key: cli[key] for key in ("version", "digest")} for name, cli in measured["agents"].items()}
    assert agents == release_manifest["agents"]
    assert sandbox_image_id in release_manifest["accepted_image_ids"]


def test_the_image_starts_the_supervisor_with_nobody_elses_modules(
    docker_client: docker.DockerClient, sandbox_image_id: str
) -> None:
    image = docker_client.images.get(sandbox_image_id)
    config = image.attrs["Config"]
    assert config["Entrypoint"] == ["/usr/bin/python3", "-I", "-S", "-B", "/opt/standfast/supervisor"]
    assert config["Cmd"] == ["--layout", "container"]
    assert config["WorkingDir"] == "/"
    assert not config["Volumes"]
    assert not config["User"]
    assert image.labels["standfast.agents"] == ",".join(f"{name}={pin.version}" for name, pin in load_pins().items())
    assert image.labels["standfast.protocol"] == "1"
