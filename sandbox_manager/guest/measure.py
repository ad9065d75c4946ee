"""What this sandbox consists of, as measured here and now, not as labelled.

Digests of the supervisor's own files and of the CLIs, the versions the CLIs print, and probes of what must hold:
process 1 reaps, the gate and siblings' homes are closed to a slot, a slot has no capability.
"""

import asyncio
import contextlib
import errno
import functools
import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from . import PROTOCOL_VERSION, SUPERVISOR_VERSION
from .bridge_program import bridge_command
from .errors import OperationError
from .executable_check import sha256_of
from .layout import Layout, SlotPlace
from .processes import read_process
from .reaper import ExitStatus, Reaper
from .spawn import Program, become, fork_program, read_failure, run_forked

_VERSION_TIMEOUT_S = 90.0  # a server of 180 MB that must be paged in, beside a busy test run
_PROBE_TIMEOUT_S = 3.0
_VERSION_BYTES_MAX = 4096
_NOBODY = 65534
_VERSION = re.compile(r"\d+\.\d+\.\d+[-+.\w]*")


def own_digest() -> str:
    """One digest over the supervisor's files: their names below the package, and their content."""
    package = Path(__file__).parent
    whole = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        whole.update(
            f"{file.relative_to(package).as_posix()}\0{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode()
        )
    return "sha256:" + whole.hexdigest()


async def measure(
    layout: Layout,
    reaper: Reaper,
    printed_before: Mapping[str, str] | None = None,
    probing: contextlib.AbstractContextManager[object] | None = None,
) -> dict[str, object]:
    """Returns the measurement as a JSON object. Digests are `sha256:<hex>`; `version` is None if nothing was printed.

    `printed_before`: by digest, what a CLI of exactly these bytes printed when it was run before. It is hashed all the same, but not
    run again: that would cost a second at every start of a sandbox and could say nothing else.
    `probing` is entered, before anything else is awaited, for as long as the probes' own processes may live. They come first, so that
    the long part, the digests, can go on beside programs that are being started.
    """
    with probing or contextlib.nullcontext():
        probes = await _probe(layout, reaper)
    bridge = await _measure_bridge(layout, reaper)
    return {
        "guest_protocol": PROTOCOL_VERSION,
        "supervisor": {"version": SUPERVISOR_VERSION, "digest": await asyncio.to_thread(own_digest)},
        "helper": bridge.get("helper"),
        "bridge": bridge,
        "python_version": platform.python_version(),
        "layout": layout.kind,
        "is_isolated": layout.is_isolated,
        "slots": sorted(layout.slots),
        "agents": await _measure_agents(layout, reaper, printed_before or {}),
        "probes": probes,
    }


def folder_digest(folder: Path) -> str:
    """One digest over a CLI that is a folder: names, whether they may be run, and content. Hex, without a prefix."""
    whole = hashlib.sha256()
    for file in sorted(item for item in folder.rglob("*") if item.is_file()):
        is_executable = "x" if file.stat().st_mode & 0o111 else "-"
        whole.update(f"{file.relative_to(folder).as_posix()}\0{is_executable}\0{sha256_of(file)}\n".encode())
    return whole.hexdigest()


def _program_of(executable: Path) -> tuple[str, ...]:
    """What a runtime is given to run, where the executable is one: the file `program` beside it names it."""
    named = executable.parent / "program"
    return (str(executable.parent / named.read_text().strip()),) if named.is_file() else ()


def _is_one_of_several(executable: Path) -> bool:
    return sum(1 for item in executable.parent.iterdir() if item.is_file() and item.stat().st_mode & 0o111) > 1


async def _measure_agents(layout: Layout, reaper: Reaper, printed_before: Mapping[str, str]) -> dict[str, object]:
    """One entry for each folder below `agents` that has an executable directly in it.

    With a `program` beside it the executable is only a runtime, and one of several programs starts the others: what is measured then is
    the whole folder.
    """
    agents: dict[str, object] = {}
    for name, executable in await asyncio.to_thread(_executables, layout.agents):
        facts = await asyncio.to_thread(os.stat, executable)
        program = await asyncio.to_thread(_program_of, executable)
        is_folder = bool(program) or await asyncio.to_thread(_is_one_of_several, executable)
        measured = executable.parent if is_folder else executable
        digest = "sha256:" + await asyncio.to_thread(folder_digest if is_folder else sha256_of, measured)
        argv = (str(executable), *program, "--version")
        printed = printed_before.get(digest) or await _printed(layout, reaper, argv)
        match = _VERSION.search(printed or "")
        agents[name] = {
            "version": match.group() if match else None,
            "printed": printed,
            "digest": digest,
            "path": str(executable),
            "size": facts.st_size,
            "mode": f"{stat.S_IMODE(facts.st_mode):04o}",
            "owner": facts.st_uid,
        }
    return agents


def _executables(agents: Path) -> list[tuple[str, Path]]:
    folders = sorted(folder for folder in agents.iterdir() if folder.is_dir()) if agents.is_dir() else []
    found = [
        (folder.name, item)
        for folder in folders
        for item in sorted(folder.iterdir())
        if item.is_file() and item.stat().st_mode & 0o111
    ]
    return list(dict(reversed(found)).items())[::-1]


async def _measure_bridge(layout: Layout, reaper: Reaper) -> dict[str, object]:
    """`helper` as the bridge's `--version` prints it, and its digest as it measures itself; None for what it does not say."""
    helper = await _printed(layout, reaper, (*bridge_command(), "--version"))
    said = await _printed(layout, reaper, (*bridge_command(), "--measure"))
    try:
        measured = json.loads(said or "{}")
    except ValueError:
        measured = {}
    return {"helper": helper, "digest": measured.get("digest") if isinstance(measured, dict) else None}


async def _printed(layout: Layout, reaper: Reaper, argv: tuple[str, ...]) -> str | None:
    """What a program prints when nobody runs it, who is no slot; None if it fails or takes too long.

    Its home is a name that nobody can know before: a CLI may want to make one (OpenCode does), and settings that a slot had laid there
    would be obeyed.
    """
    uid = _NOBODY if layout.is_isolated else None
    home = Path("/tmp", f"standfast-{secrets.token_hex(16)}")
    place = SlotPlace(0, uid, uid, home, Path("/tmp"), groups=())
    env = {"HOME": str(home), "TMPDIR": "/tmp", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "TERM": "dumb"}
    started = Program(argv, env, "/")
    loop = asyncio.get_running_loop()
    exit_of: asyncio.Future[ExitStatus] = loop.create_future()
    read_end, write_end = os.pipe()
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    pid = None
    try:
        forked = fork_program(
            place,
            started,
            (null, write_end, null),
            reaper,
            lambda status: None if exit_of.done() else exit_of.set_result(status),
            is_helper=True,
        )
        pid = forked.pid
        await read_failure(forked, _VERSION_TIMEOUT_S)
        status = await asyncio.wait_for(exit_of, _VERSION_TIMEOUT_S)
        os.set_blocking(read_end, False)
        text = os.read(read_end, _VERSION_BYTES_MAX)
        return text.decode(errors="replace").strip() if status.code == 0 else None
    except (OperationError, TimeoutError, BlockingIOError):
        return None
    finally:
        if pid is not None and not exit_of.done():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, 9)
        for fd in (read_end, write_end, null):
            os.close(fd)
        await _remove_home(place, reaper)


async def _remove_home(place: SlotPlace, reaper: Reaper) -> None:
    """By the program's own user: in a sandbox the supervisor may not look into it."""

    def work() -> None:
        become(place)
        shutil.rmtree(place.home, ignore_errors=True)

    with contextlib.suppress(OSError, TimeoutError):
        await asyncio.wait_for(reaper.exit_of(run_forked(work)), _PROBE_TIMEOUT_S)


async def _probe(layout: Layout, reaper: Reaper) -> dict[str, object]:
    probes: dict[str, object] = {"reaps_orphans": await _reaps_orphans(reaper), "supervisor_pid": os.getpid()}
    if layout.is_isolated:
        probes |= await _probe_isolation(layout, reaper)
    return probes


async def _reaps_orphans(reaper: Reaper) -> bool:
    """Whether a grandchild that outlives its parent leaves no zombie behind."""
    read_end, write_end = os.pipe()

    def orphan() -> None:
        pid = os.fork()
        if pid == 0:
            # Inside the grandchild: end after the parent did, so that process 1 inherits it.
            parent, deadline = os.getppid(), time.monotonic() + 1
            while os.getppid() == parent and time.monotonic() < deadline:
                time.sleep(0.001)
            os._exit(0)
        os.write(write_end, str(pid).encode())

    try:
        await asyncio.wait_for(reaper.exit_of(run_forked(orphan)), _PROBE_TIMEOUT_S)
        grandchild = int(os.read(read_end, 32))
    finally:
        os.close(read_end)
        os.close(write_end)
    return await asyncio.to_thread(_is_gone_soon, grandchild)


def _is_gone_soon(pid: int) -> bool:
    deadline = time.monotonic() + _PROBE_TIMEOUT_S
    while read_process(pid) is not None and time.monotonic() < deadline:
        time.sleep(0.005)
    return read_process(pid) is None


async def _probe_isolation(layout: Layout, reaper: Reaper) -> dict[str, object]:
    """Tries, as the first slot, what no slot may do. True is as it must be."""
    place = layout.slots[min(layout.slots)]
    siblings = [other.home for other in layout.slots.values() if other.slot != place.slot]
    executables = [item for _, item in _executables(layout.agents)]
    attempts: dict[str, list[Callable[[], object]]] = {
        "gate_is_closed": [functools.partial(os.listdir, layout.own)],
        "siblings_homes_are_closed": [functools.partial(os.listdir, home) for home in siblings],
        "executables_are_unreadable": [functools.partial(open, item, "rb") for item in executables],
        "supervisor_is_out_of_reach": [functools.partial(os.kill, os.getpid(), 0)],
    }
    checks: dict[str, Callable[[], None]] = {
        name: functools.partial(_must_all_be_refused, tries) for name, tries in attempts.items()
    }
    checks["has_no_capability"] = _must_have_no_capability
    results: dict[str, object] = {}
    for name, check in checks.items():
        pid = run_forked(functools.partial(_as_slot, place, check))
        status = await asyncio.wait_for(reaper.exit_of(pid), _PROBE_TIMEOUT_S)
        results[name] = status.code == 0
    return results


def _as_slot(place: SlotPlace, check: Callable[[], None]) -> None:
    become(place)
    check()


def _must_all_be_refused(attempts: Sequence[Callable[[], object]]) -> None:
    for attempt in attempts:
        try:
            attempt()
        except PermissionError:
            continue
        raise OSError(errno.EPERM, "this was allowed")


def _must_have_no_capability() -> None:
    facts = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    is_bare = all(int(facts[name], 16) == 0 for name in ("CapEff", "CapPrm", "CapInh", "CapAmb"))
    if not is_bare or facts["NoNewPrivs"] != "1" or facts["Seccomp"] != "2":
        raise OSError(errno.EPERM, "a slot has more than it should")
