"""What is installed fits together: a second owner of `opentelemetry/proto` (grpcio-admin brings one) breaks the export."""

from __future__ import annotations

from collections import defaultdict
from importlib import metadata
from pathlib import Path


def _owners() -> dict[str, set[str]]:
    """File, relative to site-packages → distributions that list it."""
    owners: dict[str, set[str]] = defaultdict(set)
    for distribution in metadata.distributions():
        for file in distribution.files or ():
            owners[str(file)].add(str(distribution.metadata["Name"]))
    return owners


def test_exactly_one_distribution_owns_opentelemetry_proto() -> None:
    owners = {name for file, names in _owners().items() if file.startswith("opentelemetry/proto/") for name in names}
    assert owners == {"opentelemetry-proto"}


def test_no_module_has_two_owners() -> None:
    shared = {
        file: names
        for file, names in _owners().items()
        if len(names) > 1 and file.endswith(".py") and not Path(file).parts[0].startswith("..")
    }
    assert shared == {}
