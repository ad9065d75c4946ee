"""Makes a tool folder of the `local` engine with the ticking CLI in it, and the manifest that belongs to it."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import replace
from pathlib import Path

from deploy.release.context import REPO
from deploy.release.manifest import manifest_of, release_sha, write_manifest
from deploy.release.measure import measured_tools
from deploy.release.pins import load_pins
from deploy.release.tool_folder import local_image_id
from standfast_lab.fleet.fleet import Parts

_AGENT = "claude-code"
_SOURCE = Path(__file__).with_name("ticking_cli.py")


def ticking_parts(folder: Path) -> Parts:
    """The parts of a fleet on `local` whose CLI is the ticking one."""
    pin = load_pins()[_AGENT]
    executable = folder / "tools" / _AGENT / pin.executable
    executable.parent.mkdir(parents=True)
    source = _SOURCE.read_text().replace('VERSION = "0.0.0"', f'VERSION = "{pin.version}"')
    executable.write_text(f"#!{Path(sys.executable).resolve()} -ISs\n{source}")
    executable.chmod(0o755)
    digest = hashlib.sha256(executable.read_bytes()).hexdigest()
    measured = measured_tools(folder / "tools", [replace(pin, member_sha256=digest)])
    write_manifest(folder / "manifest.json", manifest_of(local_image_id(measured), measured, release_sha(REPO), None))
    return Parts("local", folder / "manifest.json", tools=folder / "tools")


def executable_of(parts: Parts) -> Path:
    """The CLI, for the bare runs."""
    assert parts.tools is not None
    return parts.tools / _AGENT / "claude"


def stop_file_of(parts: Parts) -> Path:
    """While this file exists, nothing ticks."""
    return executable_of(parts).with_name("stop")
