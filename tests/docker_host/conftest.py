"""One container of the image for all tests that only look."""

from __future__ import annotations

from collections.abc import Iterator

import docker
import pytest

from tests.docker_host.sandbox_container import SandboxContainer, sandbox_container


@pytest.fixture(scope="module")
def sandbox(
    docker_client: docker.DockerClient, sandbox_image_id: str, test_labels: dict[str, str]
) -> Iterator[SandboxContainer]:
    with sandbox_container(docker_client, sandbox_image_id, test_labels) as container:
        yield container


@pytest.fixture(scope="module")
def open_sandbox(
    docker_client: docker.DockerClient, sandbox_image_id: str, test_labels: dict[str, str]
) -> Iterator[SandboxContainer]:
    """The same with all of root's capabilities: it sees what is in the image, whatever the modes."""
    with sandbox_container(docker_client, sandbox_image_id, test_labels, is_confined=False) as container:
        yield container
