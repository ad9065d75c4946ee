"""Says which engines the tests of this run may use, and counts how many tests ran on each.

A test belongs to an engine by the marker `engine("docker")`, or by a parameter whose name holds `engine` and whose value is
`docker` or `local`. Tests of an engine that is not there are deselected and the run says so: it proves nothing about that engine.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import docker
import pytest
from docker.errors import DockerException

ENGINES = ("docker", "local")


def add_engine_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("standfast")
    group.addoption("--full", action="store_true", help="run the tests marked `full` too")
    group.addoption("--engines", default="auto", help="auto, or a list of docker,local (default: %(default)s)")
    group.addoption("--require-docker", action="store_true", help="fail when no test ran on docker")
    group.addoption(
        "--engine-counts", type=Path, default=None, help="write the number of tests by engine to this file, as JSON"
    )


def engine_of(item: pytest.Item) -> str | None:
    """The engine a test needs, or None."""
    if marker := item.get_closest_marker("engine"):
        name = str(marker.args[0])
        if name not in ENGINES:
            raise pytest.UsageError(f"{item.nodeid}: the marker engine() takes docker or local, found {name!r}")
        return name
    callspec = getattr(item, "callspec", None)
    for name, value in (callspec.params if callspec else {}).items():
        if "engine" in name and value in ENGINES:
            return str(value)
    return None


def docker_answers() -> bool:
    try:
        client = docker.from_env(timeout=5)
        try:
            return bool(client.ping())
        finally:
            client.close()
    except DockerException:
        return False


class EngineCount:
    """The plugin: deselects, groups and counts."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        wanted = config.getoption("--engines")
        if wanted == "auto":
            # Decided once: workers of the same run inherit the answer.
            wanted = os.environ.setdefault("STANDFAST_TEST_ENGINES", "docker,local" if docker_answers() else "local")
        self.available = set(wanted.split(","))
        self.ran: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        kept, deselected = [], []
        for item in items:
            engine = engine_of(item)
            if item.get_closest_marker("full") and not self.config.getoption("--full"):
                deselected.append(item)
            elif engine and engine not in self.available:
                self.left_out[engine] += 1
                deselected.append(item)
            else:
                kept.append(item)
                item.user_properties.append(("engine", engine or "none"))
        if deselected:
            self.config.hook.pytest_deselected(items=deselected)
            items[:] = kept

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or (report.when == "setup" and report.failed):
            self.ran[str(dict(report.user_properties).get("engine", "none"))] += 1

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(self.config, "workerinput"):
            return
        counts = {name: self.ran[name] for name in (*ENGINES, "none")}
        if path := self.config.getoption("--engine-counts"):
            path.write_text(json.dumps(counts) + "\n")
        if self.config.getoption("--require-docker") and not counts["docker"]:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        write = terminalreporter.write_line
        write("tests by engine: " + ", ".join(f"{name} {self.ran[name]}" for name in (*ENGINES, "none")))
        for name in ENGINES:
            if name not in self.available:
                write(f"NO TEST RAN ON {name.upper()}: that engine was not there or not asked for", red=True)
        if self.config.getoption("--require-docker") and not self.ran["docker"]:
            write("FAILED: at least one test on docker is required here, and none ran", red=True)
