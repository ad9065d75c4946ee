"""Asks, as the slot itself, whether its native store can still be written.

A CLI may say nothing at all when its transcript cannot be written; the settlement then names the cause.
"""

import errno
import os
from pathlib import Path

from .errors import OperationError
from .layout import SlotPlace
from .spawn import become

_PROBE_BYTES = 4096


def try_writing(place: SlotPlace, base: Path, components: tuple[str, ...]) -> None:
    """Run in a forked child: creates, fills, syncs and removes a small file in the deepest directory that exists."""
    become(place)
    folder = os.open(base, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in components:
        try:
            folder = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        except FileNotFoundError:
            break
    name = f".standfast-probe-{os.getpid()}"
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        view = memoryview(b"\0" * _PROBE_BYTES)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.unlink(name, dir_fd=folder)


def read_answer(code: int | None) -> None:
    """Raises OperationError with ENOSPC or UNWRITABLE for the probe's exit code, which is an errno."""
    if code == 0:
        return
    if code in (errno.ENOSPC, errno.EDQUOT):
        raise OperationError("ENOSPC", "no space left where the native store lies", errno=code)
    name = os.strerror(code) if code is not None else "the probe was killed"
    raise OperationError("UNWRITABLE", f"the native store cannot be written: {name}", errno=code)
