"""Fails a test session that leaves containers or processes behind, names them, and ends them.

What belongs to the session is known by two marks: the variable STANDFAST_TEST_SESSION in a process's environment (or the label
`standfast.test` of a container), and the session's temporary folder in an environment, command line, working folder or bind mount:
a CLI is started with an environment of its own, but its home lies in that folder.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import docker
import pytest
from docker.errors import DockerException, NotFound

SESSION_VARIABLE = "STANDFAST_TEST_SESSION"


def add_leftover_options(parser: pytest.Parser) -> None:
    parser.getgroup("standfast").addoption(
        "--leftovers-patience-s",
        type=float,
        default=10.0,
        help="how long what the session started may take to end after the last test (default: %(default)s)",
    )


def marked_processes(marks: list[bytes], proc: Path = Path("/proc")) -> dict[int, str]:
    """Living processes that carry a mark, by pid, with their command line. This process and its ancestors do not count."""
    spared = _self_and_ancestors(proc)
    found = {}
    for folder in proc.iterdir():
        if not folder.name.isdecimal() or int(folder.name) in spared:
            continue
        try:
            if (folder / "stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                continue
            command = (folder / "cmdline").read_bytes()
            place = os.fsencode(os.readlink(folder / "cwd"))
            environment = (folder / "environ").read_bytes()
        except OSError:  # it has ended, or it is another user's
            continue
        if any(mark in text for mark in marks for text in (command, place, environment)):
            found[int(folder.name)] = command.replace(b"\0", b" ").decode(errors="replace").strip()
    return found


def _self_and_ancestors(proc: Path) -> set[int]:
    spared = set()
    pid = os.getpid()
    while pid > 0 and pid not in spared:
        spared.add(pid)
        try:
            pid = int((proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
    return spared


def marked_containers(session: str, folder: str) -> dict[str, str]:
    """Containers, running or not, that carry the session's label or bind a folder of it: id and name."""
    try:
        client = docker.from_env(timeout=30)
    except DockerException:
        return {}
    try:
        found = {}
        for container in client.api.containers(all=True):
            is_labelled = (container.get("Labels") or {}).get("standfast.test") == session
            mounts = [mount.get("Source") or "" for mount in container.get("Mounts") or []]
            if is_labelled or any(source.startswith(folder + "/") for source in mounts):
                found[container["Id"]] = ", ".join(container.get("Names") or [])
        return found
    except DockerException:
        return {}  # the engine has ended in the meantime, and its containers with it
    finally:
        client.close()


def _end(processes: dict[int, str], containers: dict[str, str]) -> None:
    for pid in processes:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    if containers:
        client = docker.from_env(timeout=30)
        for identity in containers:
            try:
                client.api.remove_container(identity, force=True)
            except NotFound:
                continue
        client.close()


class Leftovers:
    """The plugin. Only the controlling process looks; workers inherit the marks."""

    def __init__(self, config: pytest.Config) -> None:
        self.is_worker = hasattr(config, "workerinput")
        self.report: list[str] = []
        self.own_folder: str | None = None
        if self.is_worker:
            return
        self.session_mark = f"s{os.getpid()}-{time.time_ns():x}"
        os.environ[SESSION_VARIABLE] = self.session_mark
        if config.option.basetemp is None:
            # Short, since paths of unix sockets may have 107 bytes; new, so that it is a mark of this session alone.
            self.own_folder = config.option.basetemp = tempfile.mkdtemp(prefix="sf-")
        self.folder = str(Path(config.option.basetemp).resolve())

    @pytest.hookimpl(trylast=True)  # after xdist has ended its workers
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.is_worker:
            return
        marks = [f"{SESSION_VARIABLE}={self.session_mark}".encode(), os.fsencode(self.folder + "/")]
        deadline = time.monotonic() + float(session.config.getoption("--leftovers-patience-s"))
        while True:
            processes = marked_processes(marks)
            containers = marked_containers(self.session_mark, self.folder)
            if not (processes or containers) or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        self.report += [f"process {pid}: {command}" for pid, command in processes.items()]
        self.report += [f"container {identity[:12]}: {name}" for identity, name in containers.items()]
        if self.report:
            _end(processes, containers)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self.own_folder and session.exitstatus == pytest.ExitCode.OK:
            shutil.rmtree(self.own_folder, ignore_errors=True)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.report:
            terminalreporter.write_line("FAILED: the session left these behind (they were ended now):", red=True)
            for line in self.report:
                terminalreporter.write_line(f"  {line}", red=True)
        if self.own_folder and Path(self.own_folder).exists():
            terminalreporter.write_line(f"temporary files are kept in {self.own_folder}")
