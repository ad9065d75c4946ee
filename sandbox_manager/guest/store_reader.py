"""Reads one file of a slot's native store, with the slot's eyes and without following a link.

The reading thread takes the slot's file-system identity (setfsgid, setfsuid: per thread, SETUID and SETGID are
enough) and ends afterwards. The file is opened component by component; what it holds is digested from byte 0, since
neither a running hash, nor the inode, nor the mtime shows that an old byte was changed.
"""

import ctypes
import errno
import hashlib
import os
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from .errors import OperationError
from .layout import WORKSPACE_GID, Layout

_CHUNK_BYTES = 1 << 20
_libc = ctypes.CDLL(None, use_errno=True)
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Result = TypeVar("Result")


@dataclass(frozen=True)
class StoreAsk:
    """Which file. `prefix_length`: how much of it is digested apart; the tail begins there."""

    slot: int
    base: str
    components: tuple[str, ...]
    prefix_length: int
    tail_bytes_max: int


@dataclass(frozen=True)
class StoreReading:
    """What the file held. `prefix_sha256` is None if the file is shorter than the prefix.

    `length` is what was digested: the file's length when it was opened, so that a writer who goes on does not matter.
    """

    length: int
    sha256: str
    prefix_sha256: str | None
    tail: bytes
    tail_is_cut: bool
    free_bytes: int


def read_store(layout: Layout, ask: StoreAsk) -> StoreReading:
    """Reads in a thread of its own and waits for it; raises OperationError with the reason."""
    check_components(ask.components)
    return in_own_thread(lambda: _as_slot(layout, ask, lambda: _read(layout, ask)))


def check_components(components: tuple[str, ...]) -> None:
    if not components or any(name in ("", ".", "..") or "/" in name or "\0" in name for name in components):
        raise OperationError("BAD_PATH", "expected plain path components", components=list(components))


def in_own_thread(work: Callable[[], Result]) -> Result:
    """Runs `work` in a fresh thread, because its file-system identity must not leak into a pooled one."""
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 (handed to the waiting thread below)
            errors.append(error)

    thread = threading.Thread(target=run, name="store-reader")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _as_slot(layout: Layout, ask: StoreAsk, work: Callable[[], Result]) -> Result:
    place = layout.slots[ask.slot]
    if place.uid is not None and place.gid is not None:
        # Files of the shared workspace are open to its group, which is not the slot's own.
        gid = WORKSPACE_GID if ask.base == "workspace" else place.gid
        _libc.setfsgid(gid)
        _libc.setfsuid(place.uid)
        # Neither call reports an error; asking again without a change tells what holds now.
        if _libc.setfsuid(ctypes.c_uint(0xFFFFFFFF)) != place.uid:
            raise OperationError("UNREADABLE", "the slot's file-system identity was refused", errno=errno.EPERM)
    return work()


def _read(layout: Layout, ask: StoreAsk) -> StoreReading:
    fd = open_store(layout, ask)
    with os.fdopen(fd, "rb", buffering=0) as file:
        facts = os.fstat(file.fileno())
        check_file(layout, ask, facts)
        return measured(file.fileno(), facts.st_size, ask)


def measured(fd: int, size: int, ask: StoreAsk) -> StoreReading:
    """Digests the first `size` bytes of a file from byte 0; raises OperationError."""
    whole, prefix, tail, length = hashlib.sha256(), None, bytearray(), 0
    if ask.prefix_length == 0:
        prefix = whole.hexdigest()
    while length < size:
        wanted = min(_CHUNK_BYTES, size - length)
        if length < ask.prefix_length:
            wanted = min(wanted, ask.prefix_length - length)
        chunk = _read_some(fd, wanted)
        if not chunk:
            break
        whole.update(chunk)
        if length >= ask.prefix_length:
            tail += chunk[: max(0, ask.tail_bytes_max - len(tail))]
        length += len(chunk)
        if length == ask.prefix_length:
            prefix = whole.hexdigest()
    space = os.fstatvfs(fd)
    return StoreReading(
        length,
        whole.hexdigest(),
        prefix,
        bytes(tail),
        length - ask.prefix_length > len(tail),
        space.f_bavail * space.f_frsize,
    )


def _read_some(fd: int, wanted: int) -> bytes:
    try:
        return os.read(fd, wanted)
    except OSError as error:
        raise _refusal(error, "reading") from error


def open_store(layout: Layout, ask: StoreAsk) -> int:
    """A descriptor of the file, opened component by component, no link followed. Raises OperationError."""
    base = layout.base(ask.slot, ask.base)
    folder = -1
    try:
        # The base is root's and the slot's own; the links it may hold itself begin below it.
        folder = os.open(base, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        for name in ask.components[:-1]:
            below = os.open(name, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = below
        last = ask.components[-1]
        facts = os.stat(last, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISLNK(facts.st_mode):
            raise OperationError("SYMLINK", f"{last!r} is a symbolic link", component=last)
        if not stat.S_ISREG(facts.st_mode):
            raise OperationError("NOT_REGULAR", f"{last!r} is not a regular file", component=last)
        # O_NONBLOCK: it may have become a FIFO since; the facts that count are those of the open descriptor.
        return os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        raise _refusal(error, "opening", folder, ask.components) from error
    finally:
        if folder >= 0:
            os.close(folder)


def _refusal(error: OSError, doing: str, folder: int = -1, components: tuple[str, ...] = ()) -> OperationError:
    number = error.errno or 0
    if number == errno.ENOENT:
        reason = "ABSENT"
    elif number == errno.ELOOP or (number == errno.ENOTDIR and _some_is_link(folder, components)):
        reason = "SYMLINK"
    elif number in (errno.ENOTDIR, errno.ENXIO):
        reason = "NOT_REGULAR"
    elif number in (errno.ENOSPC, errno.EDQUOT):
        reason = "ENOSPC"
    else:
        reason = "UNREADABLE"
    return OperationError(reason, f"{doing}: {error.strerror}", errno=number)


def _some_is_link(folder: int, components: tuple[str, ...]) -> bool:
    for name in components:
        try:
            if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                return True
        except OSError:
            continue
    return False


def check_file(layout: Layout, ask: StoreAsk, facts: os.stat_result) -> None:
    """Raises OperationError unless it is a plain file of the slot's own with no other name."""
    if not stat.S_ISREG(facts.st_mode):
        raise OperationError("NOT_REGULAR", "the opened file is not a regular one")
    uids = {place.uid for place in layout.slots.values()} if ask.base == "workspace" else {layout.slots[ask.slot].uid}
    expected = {os.getuid() if uid is None else uid for uid in uids}
    if facts.st_uid not in expected:
        raise OperationError(
            "OWNER",
            f"the file belongs to {facts.st_uid}, expected {sorted(expected)}",
            expected=sorted(expected),
            found=facts.st_uid,
        )
    if facts.st_nlink != 1:
        raise OperationError("NLINK", f"the file has {facts.st_nlink} names, expected 1", found=facts.st_nlink)
