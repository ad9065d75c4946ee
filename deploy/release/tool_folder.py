"""The tool folder of the `local` engine: the same CLIs as in the image, laid out the same way below one folder.

tools/claude-code/2.1.220/claude    unpacked from the verified package
tools/claude-code/claude            the same file, where an agent's launch spec looks for it
tools/pi                            a link to unpacked/pi/1.6.0: a CLI that is a folder
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from deploy.release.manifest import Measurement
from deploy.release.npm_package import unpacked_folder, unpacked_member
from deploy.release.pins import AgentPin, load_pins


def laid_out_tools(pins: Sequence[AgentPin], cache: Path) -> Path:
    """The tool folder with the pinned CLIs in it."""
    tools = cache / "tools"
    for pin in pins:
        if pin.is_folder:
            _link(tools / pin.agent, unpacked_folder(pin, cache))
            continue
        unpacked = unpacked_member(pin, cache)
        current = tools / pin.agent / pin.executable
        current.parent.mkdir(parents=True, exist_ok=True)
        if not (current.exists() and current.samefile(unpacked)):
            # Renamed over the old one, so that a process which is being started finds one or the other.
            link = current.with_name(current.name + ".new")
            link.unlink(missing_ok=True)
            os.link(unpacked, link)
            os.replace(link, current)
    return tools


def laid_out_before(cache: Path) -> list[str]:
    """The pinned CLIs that the tool folder holds already, by name."""
    return [name for name in load_pins() if (cache / "tools" / name).is_dir()]


def _link(place: Path, folder: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)  # laid out when this CLI was one file
    if place.is_symlink() and place.resolve() == folder.resolve():
        return
    new = place.with_name(place.name + ".new")
    new.unlink(missing_ok=True)
    new.symlink_to(folder)
    os.replace(new, place)


def local_image_id(measured: Measurement) -> str:
    """What stands for an image id on `local`: sha256 over one line for the supervisor's digest and one for each CLI's, sorted by name."""
    lines = [f"supervisor {measured.supervisor.digest}\n"]
    lines += [f"{name} {cli.digest}\n" for name, cli in sorted(measured.agents.items())]
    return "sha256:" + hashlib.sha256("".join(lines).encode()).hexdigest()
