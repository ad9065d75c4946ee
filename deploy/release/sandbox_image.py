"""Builds the sandbox image, unless the engine already has the one that these files give."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import docker

from deploy.release.base_image import chosen_base, image_id_if_present
from deploy.release.base_system import PACKAGES
from deploy.release.context import ContextFile, digest_of, image_files, source_file, supervisor_files, write_context
from deploy.release.errors import BuildError
from deploy.release.npm_package import unpacked_folder, unpacked_member
from deploy.release.pins import AgentPin
from sandbox_manager.guest import PROTOCOL_VERSION
from sandbox_manager.guest.bridge import HELPER

RECIPE_LABEL = "standfast.recipe"
AGENTS_FOLDER = "/opt/standfast/agents"
_BUILD_TIMEOUT_S = 900


def built_image(
    client: docker.DockerClient, pins: Sequence[AgentPin], tag: str, base: str, cache: Path
) -> tuple[str, bool]:
    """The image's id, and whether it had to be built.

    The image has a name of its own, made from the digest of all that went in, beside `tag`. It keeps that name when `tag` moves on
    to the next build, so that nobody's clean-up of nameless images takes one that retained conversations run in.
    """
    architecture = client.info()["Architecture"]
    if architecture != "x86_64":
        raise BuildError(f"the pinned CLIs are for x86_64; this engine runs on {architecture}")
    base_id = chosen_base(client, base, cache)
    labels = {
        "standfast.agents": ",".join(f"{pin.agent}={pin.version}" for pin in pins),
        "standfast.helper": HELPER,
        "standfast.protocol": str(PROTOCOL_VERSION),
    }
    files = [*image_files(), *supervisor_files()]
    for pin in pins:
        if pin.is_folder:
            files += _folder_files(pin, unpacked_folder(pin, cache))
            continue
        # The digest needs no bytes: the pin says what they are, and unpacking checks it.
        files.append(ContextFile(f"agents/{pin.agent}/{pin.executable}", Path(), 0o711, pin.member_sha256))
    recipe = digest_of(files, base_id, *PACKAGES, *(f"{key}={value}" for key, value in labels.items()))
    own_name = f"{_repository_of(tag)}:{recipe[:12]}"
    is_new = image_id_if_present(client, own_name) is None
    if is_new:
        unpacked = {
            f"agents/{pin.agent}/{pin.executable}": unpacked_member(pin, cache) for pin in pins if not pin.is_folder
        }
        files = [replace(file, path=unpacked.get(file.name, file.path)) for file in files]
        _build(client, files, {**labels, RECIPE_LABEL: recipe}, own_name, base_id)
    image = client.images.get(own_name)
    image.tag(tag)
    return str(image.id), is_new


def _folder_files(pin: AgentPin, folder: Path) -> list[ContextFile]:
    """The files of a CLI that is a folder. Its programs may not be read; what a runtime reads as the slot's user may."""
    return [
        source_file(f"agents/{pin.agent}/{name}", path, 0o711 if path.stat().st_mode & 0o111 else 0o644)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and (name := path.relative_to(folder).as_posix())
    ]


def _repository_of(tag: str) -> str:
    """The name without its tag. A colon before the last slash is a registry's port."""
    path, slash, last = tag.rpartition("/")
    return path + slash + last.partition(":")[0]


def _build(
    client: docker.DockerClient, files: Sequence[ContextFile], labels: dict[str, str], name: str, base_id: str
) -> None:
    with tempfile.TemporaryFile() as context:
        write_context(files, context)
        context.seek(0)
        output = client.api.build(
            fileobj=context,
            custom_context=True,
            tag=name,
            buildargs={"BASE": base_id, "PACKAGES": " ".join(PACKAGES)},
            labels=labels,
            rm=True,
            forcerm=True,
            decode=True,
            timeout=_BUILD_TIMEOUT_S,
        )
        said: list[str] = []
        for chunk in output:
            said.append(str(chunk.get("stream", "")))
            if "error" in chunk:
                raise BuildError(f"the image build failed: {chunk['error']}\n{''.join(said)[-2000:]}")
