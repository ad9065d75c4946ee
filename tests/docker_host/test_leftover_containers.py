"""A session's leftover containers are known by its label, or by a bind mount of its temporary folder; another session's are not."""

from __future__ import annotations

from pathlib import Path

import docker
import pytest
from docker.types import Mount

from tests.house.leftovers import marked_containers

pytestmark = pytest.mark.engine("docker")


def test_a_container_that_does_not_run_is_known_by_its_label_or_its_mount(
    docker_client: docker.DockerClient, sandbox_image_id: str, test_labels: dict[str, str], tmp_path: Path
) -> None:
    session = f"{test_labels['standfast.test']}-inner"
    bound = tmp_path / "bound"
    bound.mkdir()
    labels = [{"standfast.test": session}, test_labels, test_labels]
    mounts: list[list[Mount]] = [[], [Mount("/sf/host", str(bound), type="bind")], []]
    made = [
        docker_client.containers.create(sandbox_image_id, network_mode="none", labels=label, mounts=mount)
        for label, mount in zip(labels, mounts, strict=True)
    ]
    try:
        assert set(marked_containers(session, str(tmp_path))) == {made[0].id, made[1].id}
    finally:
        for container in made:
            container.remove(force=True)
