"""The import contract names every import it does not permit, and holds for folders that have no module yet."""

from __future__ import annotations

import pytest
from grimp import ImportGraph

from scripts.house.permitted_imports import PermittedImports

ROOTS = ["runner", "standfast_chassis"]


def broken(imported: str, importer: str = "runner.core.turn", **options: object) -> list[str]:
    """What the contract says about one import."""
    graph = ImportGraph()
    for module in {
        "runner",
        "runner.core",
        "runner.core.turn",
        "runner.adapters",
        "standfast_chassis",
        importer,
        imported,
    }:
        graph.add_module(module)
    graph.add_import(importer=importer, imported=imported, line_number=7, line_contents="")
    contract = PermittedImports(
        name="a contract",
        session_options={"root_packages": ROOTS},
        contract_options={"sources": ["runner.core"], "own": ["standfast_chassis.errors"], **options},
    )
    check = contract.check(graph, verbose=False)
    assert check.kept == (not check.metadata.get("broken"))
    return list(check.metadata["broken"])


@pytest.mark.parametrize(
    "imported", ["runner.core.events", "standfast_chassis.errors", "standfast_chassis", "runner", "json"]
)
def test_a_permitted_import_is_kept(imported: str) -> None:
    assert broken(imported, never="pure") == []


@pytest.mark.parametrize(
    "imported", ["runner.adapters", "runner.conductor", "standfast_chassis.database", "runner.corex"]
)
def test_another_folder_is_refused_with_the_line(imported: str) -> None:
    (line,) = broken(imported)
    assert line.startswith(
        f"runner.core.turn imports {imported}: only runner.core, standfast_chassis.errors are permitted"
    )
    assert line.endswith("(line 7)")


@pytest.mark.parametrize(
    "imported", ["asyncio", "grpc", "time", "random", "os", "socket", "subprocess", "docker", "standfast"]
)
def test_a_pure_module_does_not_touch_the_world(imported: str) -> None:
    assert len(broken(imported, never="pure")) == 1
    assert broken(imported) == []


def test_a_folder_of_the_standard_library_alone_refuses_others() -> None:
    assert broken("json", never="not in the standard library") == []
    assert len(broken("docker", never="not in the standard library")) == 1


def test_modules_outside_the_sources_may_import_what_they_like() -> None:
    assert broken("grpc", importer="runner.service", never="pure") == []


def test_a_contract_about_a_folder_that_is_not_there_is_kept() -> None:
    assert broken("grpc", never="pure", sources=["runner.drivers"]) == []
