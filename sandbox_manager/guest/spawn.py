"""Starts processes: fork here, so that the order in the child is ours.

Order: limits, oom_score_adj, umask, setgroups, setresgid, setresuid, files, cwd, exec. After the user switch the child
is undumpable and its own /proc files belong to root: what writes there must come before.
"""

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import json
import os
import resource
import signal
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from .errors import OperationError
from .layout import SlotPlace
from .reaper import ExitStatus, Reaper

_PR_SET_PDEATHSIG = 1
_OPEN_FILES = 65536
_ALL_SIGNALS = set(signal.Signals)
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class FileToWrite:
    """A file the slot's own process writes before its program starts; `components` are below `base`."""

    base: Path
    components: tuple[str, ...]
    mode: int
    content: bytes


@dataclass(frozen=True)
class Program:
    """What to run and how. `oom_score_adj`: the kernel's scale, -1000 to 1000."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    files: tuple[FileToWrite, ...] = ()
    oom_score_adj: int = 500
    umask: int = 0o007
    dies_with_supervisor: bool = False


@dataclass(frozen=True)
class Forked:
    """A child before its exec is known to have worked."""

    pid: int
    failure_fd: int


def become(place: SlotPlace) -> None:
    """Switches this (forked) process to the slot's user for good; does nothing where slots share ours."""
    if place.uid is None or place.gid is None:
        return
    os.setgroups(place.groups)
    os.setresgid(place.gid, place.gid, place.gid)
    os.setresuid(place.uid, place.uid, place.uid)


def fork_program(
    place: SlotPlace,
    program: Program,
    stdio: tuple[int, ...],
    reaper: Reaper,
    on_exit: Callable[[ExitStatus], None],
    is_helper: bool = False,
) -> Forked:
    """Forks a child that becomes the slot and runs the program; its failure can be read from `failure_fd`."""
    read_end, write_end = os.pipe()
    try:
        pid = _fork_with_signals_held()
    except OSError as error:
        os.close(read_end)
        os.close(write_end)
        raise OperationError("SPAWN_FAILED", f"fork: {error.strerror}", stage="fork", errno=error.errno) from error
    if pid == 0:
        _run_child(place, program, stdio, write_end)
    reaper.watch(pid, on_exit, is_helper)
    os.close(write_end)
    return Forked(pid, read_end)


def run_forked(work: Callable[[], None]) -> int:
    """Forks a child that does `work` and exits 0, or with the errno of its OSError; returns its pid."""
    pid = _fork_with_signals_held()
    if pid:
        return pid
    code = 255
    try:
        _reset_signals()
        work()
        code = 0
    except OSError as error:
        code = min(error.errno or 255, 255)
    finally:
        os._exit(code)


def _fork_with_signals_held() -> int:
    # A signal between fork and reset would be written into the wake-up socket that parent and child share.
    held = signal.pthread_sigmask(signal.SIG_BLOCK, _ALL_SIGNALS)
    try:
        pid = os.fork()
    except BaseException:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        raise
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
    return pid


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in _ALL_SIGNALS - {signal.SIGKILL, signal.SIGSTOP}:
        try:
            signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):
            continue
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


def _run_child(place: SlotPlace, program: Program, stdio: tuple[int, ...], failure_fd: int) -> NoReturn:
    stage = "prepare"
    try:
        _reset_signals()
        os.setsid()
        if program.dies_with_supervisor:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        stage = "limits"
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(_OPEN_FILES, hard) if hard > 0 else _OPEN_FILES, hard))
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(str(program.oom_score_adj))
        os.umask(program.umask)
        stage = "user"
        become(place)
        stage = "files"
        for item in program.files:
            write_below(item)
        stage = "cwd"
        os.chdir(program.cwd)
        stage = "exec"
        # Above all targets first: a descriptor of the program's, or the one to report on, may itself be one of them.
        failure_fd = _above(failure_fd, len(stdio))
        high = [_above(fd, len(stdio)) for fd in stdio]
        for target, fd in enumerate(high):
            os.dup2(fd, target, inheritable=True)
        os.execve(program.argv[0], program.argv, program.env)
    except BaseException as error:  # noqa: BLE001 (a forked child must never return into the parent's loop)
        number = error.errno if isinstance(error, OSError) else None
        text = json.dumps({"stage": stage, "errno": number, "message": f"{type(error).__name__}: {error}"[:500]})
        os.write(failure_fd, text.encode())
    finally:
        os._exit(127)


def _above(fd: int, lowest: int) -> int:
    return fd if fd >= lowest else fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest)


def write_below(item: FileToWrite) -> None:
    """Writes one file as the calling process's user; no link in its path is followed."""
    folder = os.open(item.base, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in item.components[:-1]:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=folder)
        folder = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    last = item.components[-1]
    fresh = f".{last}.standfast-{os.getpid()}"
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    with os.fdopen(fd, "wb") as file:
        file.write(item.content)
        os.fchmod(file.fileno(), stat.S_IMODE(item.mode))
    os.rename(fresh, last, src_dir_fd=folder, dst_dir_fd=folder)


async def read_failure(forked: Forked, timeout_s: float) -> None:
    """Returns once the program runs; raises SPAWN_FAILED with the stage if it could not be started."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(forked.failure_fd, lambda: None if ready.done() else ready.set_result(None))
    try:
        await asyncio.wait_for(ready, timeout_s)
        text = os.read(forked.failure_fd, 4096)
    except TimeoutError:
        raise OperationError("SPAWN_FAILED", f"no exec within {timeout_s} s", stage="exec", errno=errno.ETIME) from None
    finally:
        loop.remove_reader(forked.failure_fd)
        os.close(forked.failure_fd)
    if text:
        failure = json.loads(text)
        raise OperationError(
            "SPAWN_FAILED", f"{failure['stage']}: {failure['message']}", stage=failure["stage"], errno=failure["errno"]
        )
