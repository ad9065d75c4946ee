"""The plugins of this test tree: leftovers fail a session and are ended, and tests are counted by their engine.

Each claim is tried on a session of its own, run in another process on a folder with a conftest that registers the same plugins.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

REPO = Path(__file__).parent.parent.parent.parent
CONFTEST = """
import pytest
from tests.house.engines import EngineCount, add_engine_options
from tests.house.leftovers import Leftovers, add_leftover_options

def pytest_addoption(parser):
    add_engine_options(parser)
    add_leftover_options(parser)

@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    config.addinivalue_line("markers", "full: long")
    config.addinivalue_line("markers", "engine(name): engine")
    config.pluginmanager.register(EngineCount(config))
    config.pluginmanager.register(Leftovers(config))
"""
LEAK = """
import subprocess, sys
import pytest

@pytest.mark.parametrize("how", ["variable", "home", "folder", "argument"])
def test_leak(tmp_path, how):
    command = [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(300)", how]
    if how == "argument":
        command.append(str(tmp_path))
    env = {"variable": None, "home": {"HOME": str(tmp_path)}}.get(how, {})
    cwd = tmp_path if how == "folder" else "/"
    child = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, env=env, cwd=cwd)
    assert child.stdout.readline()
"""


@dataclass(frozen=True, slots=True)
class Session:
    code: int
    output: str


def session(folder: Path, test: str, *arguments: str) -> Session:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(test)
    # The session under test must be known by its own marks, not by this one's.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("STANDFAST_TEST", "PYTEST"))
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        "--rootdir",
        str(folder),
        *arguments,
    ]
    done = subprocess.run(
        [*command, str(folder)],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(REPO)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return Session(done.returncode, done.stdout + done.stderr)


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_processes_that_are_left_behind_fail_the_session_and_are_ended(tmp_path: Path) -> None:
    found = session(tmp_path, LEAK, "--engines", "local", "--leftovers-patience-s", "0.5")
    assert "4 passed" in found.output
    assert found.code == 1
    left = re.findall(r"process (\d+): .*time.sleep\(300\) (\w+)", found.output)
    # Known by the session's variable, by a home, a working folder and an argument in its temporary folder.
    assert sorted(how for _, how in left) == ["argument", "folder", "home", "variable"]
    assert all(has_ended(int(pid)) for pid, _ in left)


def test_a_session_that_leaves_nothing_passes_and_removes_its_temporary_folder(tmp_path: Path) -> None:
    found = session(tmp_path, "def test_it(tmp_path):\n    print('folder', tmp_path)\n", "-s", "--engines", "local")
    assert found.code == 0, found.output
    (folder,) = re.findall(r"folder (\S+)", found.output)
    assert not Path(folder).parent.exists()


COUNTED = """
import pytest
@pytest.mark.engine("docker")
def test_d(): pass
@pytest.mark.parametrize("engine_kind", ["docker", "local"])
def test_both(engine_kind): pass
@pytest.mark.engine("local")
def test_l(): pass
def test_none(): pass
@pytest.mark.full
def test_long(): pass
"""


@pytest.mark.parametrize("workers", [[], ["-n", "2", "--dist", "loadgroup"]], ids=["serial", "workers"])
def test_tests_are_counted_by_engine(tmp_path: Path, workers: list[str]) -> None:
    counts = tmp_path / "counts.json"
    found = session(
        tmp_path, COUNTED, "--engines", "docker,local", "--engine-counts", str(counts), "--require-docker", *workers
    )
    assert found.code == 0, found.output
    assert "tests by engine: docker 2, local 2, none 1" in found.output
    assert json.loads(counts.read_text()) == {"docker": 2, "local": 2, "none": 1}


def test_tests_of_an_engine_that_is_not_there_are_left_out_loudly(tmp_path: Path) -> None:
    found = session(tmp_path, COUNTED, "--engines", "local")
    assert found.code == 0, found.output
    assert "3 passed, 3 deselected" in found.output
    assert "NO TEST RAN ON DOCKER" in found.output


def test_a_session_that_must_use_docker_and_did_not_fails(tmp_path: Path) -> None:
    assert session(tmp_path, COUNTED, "--engines", "local", "--require-docker").code == 1


def test_long_tests_run_when_asked(tmp_path: Path) -> None:
    assert (
        "tests by engine: docker 2, local 2, none 2"
        in session(tmp_path, COUNTED, "--engines", "docker,local", "--full").output
    )


def test_an_engine_nobody_knows_is_refused(tmp_path: Path) -> None:
    wrong = "import pytest\n@pytest.mark.engine('podman')\ndef test_it(): pass\n"
    found = session(tmp_path, wrong, "--engines", "local")
    assert found.code != 0
    assert "takes docker or local, found 'podman'" in found.output
