"""The demo's story, line by line, and what happens to it when one rule is off."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import docker
import pytest

from sandbox_manager.host.adapters.docker_engine import DockerEngine
from sandbox_manager.host.adapters.local_engine import LocalEngine
from standfast_client.errors import ContextLostError
from standfast_client.sdk import StandfastClient
from standfast_lab.demo.play import containers_folder, play
from standfast_lab.demo.story import STORY, Line, Step, differences
from standfast_lab.fleet.fleet import Fleet, Parts
from standfast_lab.fleet.switches import Switches
from standfast_lab.provider import LabProvider
from tests.conftest import CACHE
from tests.real_cli.talk import Talk


@pytest.mark.timeout(240)
async def test_every_line_of_the_story_is_as_it_must_be(parts: Parts, folder: Path, lab: LabProvider) -> None:
    wrong: list[str] = []
    told: list[Line] = []

    def tell(step: Step, line: Line) -> None:
        wrong.extend(f"step {step.number}: {one}" for one in differences(step, line, tuple(told)))
        told.append(line)

    async with Fleet(folder, parts, lab.base_url, switches=Switches(let_slash_through=True)) as fleet:

        async def remove(container_id: str) -> None:
            engine = (
                DockerEngine()
                if parts.engine == "docker"
                else LocalEngine(containers_folder(fleet.folder), parts.tools or Path())
            )
            await engine.remove(container_id)
            await engine.close()

        await play(STORY, fleet, lab, remove, tell)
    assert wrong == []
    assert len(told) == len(STORY)


@pytest.mark.timeout(180)
async def test_without_the_retire_rule_the_reply_after_a_retry_is_lost_and_that_is_refused(
    parts: Parts, folder: Path, lab: LabProvider
) -> None:
    """The CLI's own defect (2.1.220): a late api_error record makes a later resume skip the reply. With the rule off, the
    proof of the history finds the broken chain; nothing is restored without the reply.
    """
    async with (
        Fleet(folder, parts, lab.base_url, switches=Switches(retire_rules_on=False)) as fleet,
        StandfastClient(fleet.runner.address) as client,
    ):
        talk = Talk(client)
        assert (await talk.turn("remember: the word is plum")).outcome == "COMPLETED"
        retried = await talk.turn("[[lab:status=529 times=1]] tell me something")
        assert (retried.outcome, retried.disposition) == ("COMPLETED", "KEPT"), "the rule is not off"
        broken = await talk.turn("what is the word?")
        assert (broken.outcome, broken.reason) == ("FAILED", "HISTORY_BROKEN")
        with pytest.raises(ContextLostError) as lost:
            await talk.turn("repeat your last reply")
        assert lost.value.metadata["cause"] == "HISTORY_BROKEN"


@pytest.mark.engine("docker")
@pytest.mark.timeout(120)
async def test_the_provider_key_is_in_no_sandbox(
    folder: Path,
    lab: LabProvider,
    sandbox_image_id: str,
    own_labels: dict[str, str],
    docker_client: docker.DockerClient,
) -> None:
    key = "sk-test-4711-not-a-real-key"
    key_file = folder / "key"
    key_file.write_text(key + "\n")
    parts = Parts("docker", CACHE / "release-manifest.json", image=sandbox_image_id, labels=own_labels)
    async with (
        Fleet(folder / "f", parts, lab.base_url, provider_key_file=key_file) as fleet,
        StandfastClient(fleet.runner.address) as client,
    ):
        turn = await Talk(client).turn(
            "[[lab:tool=Bash {\"command\":\"env; cat /proc/*/environ 2>/dev/null | tr '\\\\0' '\\\\n'\"}]] look"
        )
        assert turn.outcome == "COMPLETED"
        container = docker_client.containers.get(turn.container_id)
        assert not contains(docker_client.api.export(turn.container_id), key.encode()), (
            "the key is in the writable layer"
        )
        pids = [row[1] for row in container.top()["Processes"]]
        assert not any(contains(process_texts(pid), key.encode()) for pid in pids), "the key is in a process"
        logs = "".join(member.log.read_text() for member in fleet.members)
        assert key not in logs
        tool_output = "".join(turn.tool_results)
        assert "ANTHROPIC_BASE_URL" in tool_output, "the tool did not see its environment"
        assert key not in tool_output
    keys_seen = {row["key_sha256"] for row in lab.log.rows() if row["key_sha256"]}
    assert keys_seen == {hashlib.sha256(key.encode()).hexdigest()}


def contains(chunks: Iterable[bytes], wanted: bytes) -> bool:
    """Whether a stream holds these bytes, also across two chunks."""
    tail = b""
    for chunk in chunks:
        if wanted in tail + chunk:
            return True
        tail = chunk[-len(wanted) :]
    return False


def process_texts(pid: str) -> list[bytes]:
    """Environment and command line of a process of the container, as the host sees them."""
    return [Path(f"/proc/{pid}/{name}").read_bytes() for name in ("environ", "cmdline")]
