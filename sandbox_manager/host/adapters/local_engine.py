"""The `local` engine: a sandbox is a retained folder and plain processes. No isolation: for a first try and for tests.

The same semantics as a container's: create, start, stop, inspect; an id and an image id; what a stop ends and what it keeps. Members
share the user of the host agent, and can read each other and more; nothing else is claimed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import sandbox_manager
from sandbox_manager.host.adapters import local_processes
from sandbox_manager.host.adapters.engine import ContainerState, EngineVersion, Inspect, SandboxSpec, absent
from sandbox_manager.host.adapters.engine_errors import (
    EngineRefusedError,
    ImageMissingError,
    SandboxAbsentError,
    SupervisorMissingError,
)
from sandbox_manager.host.adapters.guest_connection import ExpectedPeer
from sandbox_manager.host.adapters.local_folder import Created, LocalFolder, Run, now

_MEASURE_TIMEOUT_S = 120.0
_KILL_TIMEOUT_S = 5.0
_POLL_S = 0.005
_SIGKILL_CODE = 128 + signal.SIGKILL

Result = TypeVar("Result")


class LocalEngine:
    """Keeps retained folders below `groups`. `agents`: the tool folder, one folder an agent with its executable."""

    name = "local"
    is_isolated = False

    def __init__(self, groups: Path, agents: Path) -> None:
        self._groups = groups
        self._agents = agents
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="local-engine")
        # Supervisors this process started: their parent must reap them, and only the parent learns the exit code.
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._locks: dict[str, threading.RLock] = {}
        self._locks_lock = threading.Lock()
        self._measured: tuple[object, dict[str, object]] | None = None

    async def version(self) -> EngineVersion:
        """Always answers."""
        return EngineVersion("local", sys.version.split()[0], "plain processes in retained folders: no isolation")

    async def image_id(self, reference: str) -> str:
        """The digest of the tool folder and the supervisor. `reference` is the id itself, or `local` for what is there now."""
        found = _image_id(await self._run(self._measure))
        if reference not in ("local", found):
            raise ImageMissingError(
                f"local: expected the tools of {reference}, found {found} in {self._agents}",
                {"expected": reference, "found": found},
            )
        return found

    async def create(self, spec: SandboxSpec) -> str:
        """Makes the retained folder."""
        await self.image_id(spec.image_id)

        def create() -> str:
            self._groups.mkdir(parents=True, exist_ok=True, mode=0o700)
            created = LocalFolder.create(self._groups, spec, self._agents.resolve()).created()
            if created is None:
                raise EngineRefusedError(f"local: {spec.name} is gone right after it was made")
            return created.container_id

        return await self._run(create)

    async def start(self, container_id: str) -> None:
        """Starts the supervisor."""
        await self._run(lambda: self._start(container_id))

    async def stop(self, container_id: str, timeout_s: float) -> None:
        """SIGTERM, then all of it is killed after the timeout."""
        await self._run(lambda: self._stop(container_id, timeout_s))

    async def kill(self, container_id: str) -> None:
        """Ends the supervisor and all that carries the folder's marker or descends from the supervisor."""
        await self._run(lambda: self._kill(container_id))

    async def inspect(self, container: str) -> Inspect:
        """By container id or name."""
        return await self._run(lambda: self._inspect(container))

    async def remove(self, container_id: str) -> None:
        """Ends it and removes the folder."""

        def remove() -> None:
            found = self._find(container_id)
            if found is not None:
                self._kill(container_id)
                self._children.pop(found[1].container_id, None)
                # Also one that no record names; the folder must not go from under it.
                unrecorded = local_processes.supervisors(found[1].container_id)
                local_processes.end_all(found[0].marker, unrecorded, _KILL_TIMEOUT_S)
                found[0].remove()
                self._locks.pop(found[1].container_id, None)

        await self._run(remove)

    async def list_sandboxes(self, labels: Mapping[str, str]) -> list[Inspect]:
        """All retained folders with these labels."""

        def search() -> list[Inspect]:
            rows = [self._describe(folder, created) for folder, created in self._all()]
            return [row for row in rows if labels.items() <= row.labels.items()]

        return await self._run(search)

    async def run_measure(self, image_id: str) -> dict[str, object]:
        """Measures the tool folder and the supervisor as they are now."""
        await self.image_id(image_id)
        return await self._run(self._measure)

    async def size_bytes(self, container_id: str) -> int:
        """What homes and workspace hold."""
        return await self._run(lambda: self._need(container_id)[0].size_bytes())

    def expected_peer(self, found: Inspect) -> ExpectedPeer:
        """The supervisor, under this process's own user."""
        return ExpectedPeer(found.pid, os.getuid())

    async def close(self) -> None:
        """Sandboxes go on."""
        self._pool.shutdown(wait=False)

    # --- blocking, in the pool ----------------------------------------------------------------------------------

    async def _run(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def _all(self) -> list[tuple[LocalFolder, Created]]:
        if not self._groups.is_dir():
            return []
        folders = [LocalFolder(path) for path in sorted(self._groups.iterdir()) if not path.name.startswith(".")]
        return [(folder, created) for folder in folders if (created := folder.created()) is not None]

    def _find(self, container: str) -> tuple[LocalFolder, Created] | None:
        for folder, created in self._all():
            if container in (created.container_id, created.name):
                return folder, created
        return None

    def _need(self, container: str) -> tuple[LocalFolder, Created]:
        found = self._find(container)
        if found is None:
            raise SandboxAbsentError("local", container)
        return found

    def _lock(self, created: Created) -> threading.RLock:
        """Held while a folder's record is read and acted on: a heartbeat's look at an ended run must not meet the next start,
        whose supervisor it would end and whose record it would write over."""
        with self._locks_lock:
            return self._locks.setdefault(created.container_id, threading.RLock())

    def _start(self, container_id: str) -> None:
        folder, created = self._need(container_id)
        with self._lock(created):
            self._start_locked(folder, created)

    def _start_locked(self, folder: LocalFolder, created: Created) -> None:
        if self._describe(folder, created).state is ContainerState.RUNNING:
            return
        for pid, start_time in local_processes.supervisors(created.container_id):
            # A host agent died between this start and its record: it runs all the same.
            folder.write_run(Run(pid, start_time, now()))
            return
        folder.prepare_start()
        source = Path(sandbox_manager.__file__).parent.parent
        command = [sys.executable, "-s", "-S", "-m", "sandbox_manager.guest", "--layout", "local"]
        command += ["--root", str(folder.path), "--socket-dir", created.socket_dir, "--agents", created.agents]
        env = {"PATH": os.defpath, "LANG": "C.UTF-8", "PYTHONPATH": str(source)}
        env[local_processes.SUPERVISOR_VARIABLE] = created.container_id
        with (folder.path / "sf" / "supervisor.log").open("ab") as log:
            child = subprocess.Popen(
                command, cwd="/", env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._children[created.container_id] = child
        began = local_processes.start_time(child.pid)
        folder.write_run(Run(child.pid, -1 if began is None else began, now()))

    def _describe(self, folder: LocalFolder, created: Created) -> Inspect:
        with self._lock(created):
            return self._describe_locked(folder, created)

    def _describe_locked(self, folder: LocalFolder, created: Created) -> Inspect:
        run = folder.run()
        state = ContainerState.CREATED
        if run is not None:
            state = ContainerState.RUNNING
            if run.finished_at is not None or not local_processes.is_alive(run.pid, run.start_time):
                state = ContainerState.EXITED
        if run is not None and state is ContainerState.EXITED and run.finished_at is None:
            # A container ends as a whole: what the supervisor left running is ended before anyone hears of the exit.
            local_processes.end_all(folder.marker, set(), _KILL_TIMEOUT_S)
            run = folder.finish(run, self._exit_code(created.container_id))
        return Inspect(
            container_id=created.container_id,
            name=created.name,
            image_id=created.image_id,
            state=state,
            pid=run.pid if run is not None and state is ContainerState.RUNNING else None,
            started_at=None if run is None else run.started_at,
            finished_at=None if run is None else run.finished_at,
            exit_code=None if run is None else run.exit_code,
            labels=created.labels,
            mounts=(created.socket_dir,),
        )

    def _exit_code(self, container_id: str) -> int | None:
        child = self._children.pop(container_id, None)
        if child is None:
            return None
        code = child.wait(_KILL_TIMEOUT_S)
        return 128 - code if code < 0 else code

    def _inspect(self, container: str) -> Inspect:
        found = self._find(container)
        return absent(container) if found is None else self._describe(*found)

    def _stop(self, container_id: str, timeout_s: float) -> None:
        folder, created = self._need(container_id)
        run = folder.run()
        if self._describe(folder, created).state is not ContainerState.RUNNING or run is None:
            return
        local_processes.send(run.pid, run.start_time, signal.SIGTERM)
        deadline = time.monotonic() + timeout_s
        while local_processes.is_alive(run.pid, run.start_time):
            if time.monotonic() > deadline:
                self._kill(container_id)
                return
            time.sleep(_POLL_S)
        self._describe(folder, created)

    def _kill(self, container_id: str) -> None:
        folder, created = self._need(container_id)
        with self._lock(created):
            self._kill_locked(folder, created)

    def _kill_locked(self, folder: LocalFolder, created: Created) -> None:
        run = folder.run()
        if run is None or self._describe(folder, created).state is not ContainerState.RUNNING:
            return
        # Before the supervisor goes: afterwards its descendants are init's.
        belonging = local_processes.descendants(run.pid)
        rest = local_processes.end_all(folder.marker, belonging | {(run.pid, run.start_time)}, _KILL_TIMEOUT_S)
        if rest:
            raise EngineRefusedError(
                f"local: {len(rest)} processes of {created.name} did not end", {"pids": sorted(pid for pid, _ in rest)}
            )
        code = self._exit_code(created.container_id)
        folder.finish(run, _SIGKILL_CODE if code is None else code)

    def _measure(self) -> dict[str, object]:
        source = Path(sandbox_manager.__file__).parent.parent
        facts = _file_facts(self._agents, source / "sandbox_manager" / "guest")
        if self._measured is not None and self._measured[0] == facts:
            return self._measured[1]
        if not self._agents.is_dir():
            raise ImageMissingError(
                f"local: expected a tool folder at {self._agents}, found none; run scripts/local_tools",
                {"path": self._agents},
            )
        command = [sys.executable, "-s", "-S", "-m", "sandbox_manager.guest", "measure", "--agents", str(self._agents)]
        try:
            done = subprocess.run(
                command,
                cwd="/",
                env={"PATH": os.defpath, "LANG": "C.UTF-8", "PYTHONPATH": str(source)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_MEASURE_TIMEOUT_S,
                check=True,
            )
            measured = json.loads(done.stdout)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            raise SupervisorMissingError(
                f"local: the supervisor could not measure {self._agents}: {type(error).__name__}",
                {"path": self._agents},
            ) from error
        self._measured = facts, measured
        return dict(measured)


def _image_id(measured: Mapping[str, object]) -> str:
    """sha256 over one line for the supervisor's digest and one for each CLI's, sorted by name: as the release's build writes it."""
    supervisor, agents = measured["supervisor"], measured["agents"]
    if not isinstance(supervisor, dict) or not isinstance(agents, dict):
        raise SupervisorMissingError("local: the measurement has no supervisor or no agents")
    lines = [f"supervisor {supervisor['digest']}\n"]
    lines += [f"{name} {found['digest']}\n" for name, found in sorted(agents.items())]
    return "sha256:" + hashlib.sha256("".join(lines).encode()).hexdigest()


def _file_facts(*folders: Path) -> object:
    """Changes when a file changes; only to know when to measure again, never as evidence."""
    files = [path for folder in folders for path in sorted(folder.rglob("*")) if path.suffix != ".pyc"]
    return [
        (str(path), facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
        for path in files
        if path.is_file()
        for facts in [path.stat()]
    ]
