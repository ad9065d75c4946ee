"""Chooses the image that the sandbox image stands on: one that is there, one made from the machine's mirror, one pulled."""

from __future__ import annotations

import os
from pathlib import Path

import docker
from docker.errors import APIError, ImageNotFound

from deploy.release.apt_sources import debian_sources
from deploy.release.base_system import SUITE, base_key, base_tarball
from deploy.release.errors import BuildError

PUBLIC_BASE = f"debian:{SUITE}-slim"
_OWN_REPOSITORY = "standfast/base"


def image_id_if_present(client: docker.DockerClient, name: str) -> str | None:
    try:
        return client.images.get(name).id
    except ImageNotFound:
        return None


def chosen_base(client: docker.DockerClient, choice: str, cache: Path) -> str:
    """The base image's id for `auto`, `debootstrap`, or the name of an image (pulled if the engine does not have it)."""
    if choice == "debootstrap":
        return _own_base(client, cache)
    if choice != "auto":
        return image_id_if_present(client, choice) or _pulled(client, choice)
    sources = debian_sources(SUITE)
    names = ([f"{_OWN_REPOSITORY}:{base_key(sources)}"] if sources else []) + [PUBLIC_BASE]
    for name in names:
        if present := image_id_if_present(client, name):
            return present
    if sources and os.geteuid() == 0:
        return _own_base(client, cache)
    return _pulled(client, PUBLIC_BASE)


def _own_base(client: docker.DockerClient, cache: Path) -> str:
    sources = debian_sources(SUITE)
    if not sources or os.geteuid() != 0:
        raise BuildError(
            f"debootstrap needs root on Debian with an apt source for {SUITE}; "
            f"found uid {os.geteuid()} and {len(sources)} sources. Use --base with an image that the engine has"
        )
    name = f"{_OWN_REPOSITORY}:{base_key(sources)}"
    if present := image_id_if_present(client, name):
        return present
    tarball = base_tarball(sources, cache)
    repository, _, tag = name.partition(":")
    client.api.import_image_from_file(str(tarball), repository=repository, tag=tag)
    return str(client.images.get(name).id)


def _pulled(client: docker.DockerClient, name: str) -> str:
    try:
        repository, _, tag = name.partition(":")
        return str(client.images.pull(repository, tag=tag or "latest").id)
    except APIError as error:
        raise BuildError(
            f"the base image {name} is not in the engine and cannot be pulled ({error.explanation or error}); "
            "as root on Debian use --base debootstrap, elsewhere --base with an image that the engine has"
        ) from error
