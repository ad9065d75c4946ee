"""Has the supervisor measure itself and the CLIs beside it, where they will run, and reads its answer.

A version is what the CLI printed, a digest what its bytes gave: no label and no pin is taken for either.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError, ContainerError

from deploy.release.context import REPO
from deploy.release.errors import BuildError
from deploy.release.manifest import Measured, Measurement
from deploy.release.pins import AgentPin

_TIMEOUT_S = 120


def measured_image(client: docker.DockerClient, image_id: str) -> Measurement:
    """Runs the exact image without network and with no capability, and returns what it says of itself."""
    try:
        printed = client.containers.run(
            image_id,
            ["measure"],
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
    return parsed(printed)


def measured_tools(tools: Path) -> Measurement:
    """The same for a tool folder, by the supervisor of this tree."""
    command = [sys.executable, "-m", "sandbox_manager.guest", "measure", "--agents", str(tools)]
    done = subprocess.run(command, cwd=REPO, capture_output=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise BuildError(
            f"measuring {tools} ended with {done.returncode}: {done.stderr.decode(errors='replace').strip()}"
        )
    return parsed(done.stdout)


def parsed(printed: bytes) -> Measurement:
    """Reads the JSON line of `guest measure`. Anything else raises `BuildError`."""
    try:
        found = json.loads(printed)
        supervisor = _item(found["supervisor"])
        agents = {str(name): _item(item) for name, item in found["agents"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BuildError(f"the self-measurement is not the expected JSON ({error!r}): {printed[:300]!r}") from error
    return Measurement(supervisor, agents)


def _item(found: dict[str, Any]) -> Measured:
    return Measured(str(found["version"]), str(found["digest"]))


def check_against_pins(measured: Measurement, pins: Sequence[AgentPin]) -> None:
    """The CLIs found must be the pinned ones: the same set, each printing its pinned version."""
    expected = {pin.agent: pin.version for pin in pins}
    found = {name: cli.version for name, cli in measured.agents.items()}
    if found != expected:
        raise BuildError(f"expected the CLIs {expected}, measured {found}; build again, or correct deploy/pins.json")
