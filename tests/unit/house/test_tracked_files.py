"""What belongs to one machine is found in a text, with its line; what belongs to the product is not."""

from __future__ import annotations

import pytest

from scripts.house.distributions import FOLDER, owners_of
from scripts.house.tracked_files import found_in

# Put together here, so that this file does not hold them itself.
MACHINE = [
    "https://" + "registry." + "npmjs" + ".org/x",
    "http://" + "deb." + "debian" + ".org/debian",
    "files." + "python" + "hosted" + ".org",
    "cd /wor" + "k/main && ls",
    "see ../" + "shared" + "/facts/docker.md",
    "/home" + "/someone/project",
    "/root/" + ".pyenv/bin",
]


@pytest.mark.parametrize("words", MACHINE)
def test_a_registry_host_or_a_machines_folder_is_found_with_its_line(words: str) -> None:
    ((line, _),) = found_in(f"one\ntwo {words} three\n")
    assert line == 2


@pytest.mark.parametrize(
    "words",
    [
        "/workspace/CLAUDE.md",
        "docker.io iptables",
        "http://127.0.0.1:8377",
        "/members/1/home",
        "a shared/folder",
        "/home/agent/x",
    ],
)
def test_what_belongs_to_the_product_is_let_through(words: str) -> None:
    assert found_in(words) == []


def test_exactly_one_distribution_owns_the_otlp_messages() -> None:
    assert owners_of(FOLDER) == ["opentelemetry-proto"]
