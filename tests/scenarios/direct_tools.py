"""A tool folder for the `local` engine with the built-in agent in it, started from this tree."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from deploy.release.context import REPO
from deploy.release.manifest import manifest_of, release_sha, write_manifest
from deploy.release.measure import measured_tools
from deploy.release.pins import AgentPin
from deploy.release.tool_folder import local_image_id
from direct_agent.settings import VERSION
from tests.stub_cli.tool_folder import ToolFolder


def make_direct_folder(folder: Path) -> ToolFolder:
    """FOLDER/tools/direct/direct and the manifest that belongs to it, measured by the supervisor of this tree."""
    made = ToolFolder(folder / "tools", folder / "manifest.json")
    executable = made.tools / "direct" / "direct"
    executable.parent.mkdir(parents=True)
    # -P: a module in the workspace, which the agent's own tools can write, is none of the agent's.
    executable.write_text(f'#!/bin/sh\nPYTHONPATH={REPO} exec {sys.executable} -P -m direct_agent "$@"\n')
    executable.chmod(0o755)
    pin = AgentPin(
        agent="direct",
        version=VERSION,
        package="",
        integrity="",
        member="",
        member_sha256=hashlib.sha256(executable.read_bytes()).hexdigest(),
        executable=executable.name,
    )
    measured = measured_tools(made.tools, [pin])
    write_manifest(made.manifest, manifest_of(local_image_id(measured), measured, release_sha(REPO), None))
    return made
