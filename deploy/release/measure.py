"""Has the supervisor measure itself and the CLIs beside it, where they will run, and reads its answer.

A version is what the CLI printed, a digest what its bytes gave: no label and no pin is taken for either.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError, ContainerError

from deploy.release.context import REPO
from deploy.release.errors import BuildError
from deploy.release.manifest import Measured, Measurement
from deploy.release.pins import AgentPin
from sandbox_manager.guest.bridge import HELPER

_TIMEOUT_S = 120


def measured_image(client: docker.DockerClient, image_id: str, pins: Sequence[AgentPin]) -> Measurement:
    """Runs the exact image without network and with the capabilities of a sandbox, and returns what it says of itself."""
    try:
        printed = client.containers.run(
            image_id,
            ["measure", "--layout", "container"],
            network_mode="none",
            cap_drop=["ALL"],
            cap_add=["SETUID", "SETGID", "KILL"],
            security_opt=["no-new-privileges:true"],
            labels={"standfast.measure": "1"},
            remove=True,
            stdout=True,
            stderr=False,
        )
    except (APIError, ContainerError) as error:
        raise BuildError(f"the image {image_id} could not measure itself: {error}") from error
    return parsed(printed, pins)


def measured_tools(tools: Path, pins: Sequence[AgentPin]) -> Measurement:
    """The same for a tool folder, by the supervisor of this tree in a retained folder made for it."""
    with tempfile.TemporaryDirectory() as root:
        for folder in ("members/1/home", "run/slots/1", "sf/host", "workspace"):
            (Path(root) / folder).mkdir(parents=True)
        command = [sys.executable, "-m", "sandbox_manager.guest", "measure", "--layout", "local"]
        command += ["--root", root, "--agents", str(tools)]
        done = subprocess.run(command, cwd=REPO, capture_output=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise BuildError(
            f"measuring {tools} ended with {done.returncode}: {done.stderr.decode(errors='replace').strip()}"
        )
    return parsed(done.stdout, pins)


def parsed(printed: bytes, pins: Sequence[AgentPin]) -> Measurement:
    """Reads the JSON of `guest measure` and holds it against the pins; anything else than the pinned CLIs raises `BuildError`."""
    try:
        answer = json.loads(printed)
        supervisor = _item(answer["supervisor"])
        helper = str(answer["helper"])
        agents = {str(name): _item(item) for name, item in answer["agents"].items()}
        failed = sorted(name for name, verdict in answer["probes"].items() if verdict is False)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BuildError(f"the self-measurement is not the expected JSON ({error!r}): {printed[:300]!r}") from error
    expected = {pin.agent: Measured(pin.version, f"sha256:{pin.member_sha256}") for pin in pins}
    if agents != expected:
        raise BuildError(f"expected the CLIs {expected}, measured {agents}; deploy/pins.json and what was built differ")
    if failed:
        raise BuildError(f"the self-measurement found that this does not hold: {', '.join(failed)}")
    if helper != HELPER:
        raise BuildError(f"expected the helper {HELPER}, the bridge says {helper}")
    return Measurement(supervisor, agents, helper)


def _item(found: dict[str, Any]) -> Measured:
    return Measured(str(found["version"]), str(found["digest"]))
