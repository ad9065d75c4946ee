"""The raw bytes a process printed, numbered from 0, kept in a ring of bounded size.

The ring lies in an unlinked file: nothing of it is left after a crash, and nothing is in a commit. When the file
system is full it moves to anonymous memory of a smaller bound. Bytes are lost only where nobody who is connected
still needs them (`floor`), and a loss is seen: `start` is then past what the reader had.
"""

import errno
import os
import tempfile
from pathlib import Path

DEFAULT_CAPACITY_BYTES = 64 << 20
MEMORY_CAPACITY_BYTES = 4 << 20


class Tap:
    """A ring of the newest `capacity` bytes. `start` and `end` are offsets in the whole stream."""

    def __init__(self, folder: Path, capacity: int = DEFAULT_CAPACITY_BYTES) -> None:
        self.capacity = capacity
        self.start = 0
        self.end = 0
        self.floor: int | None = None
        self.acknowledged = 0
        self.is_in_memory = False
        self._fd = self._open(folder)

    def _open(self, folder: Path) -> int:
        try:
            fd, name = tempfile.mkstemp(prefix="tap-", dir=folder)
        except OSError:
            return self._open_memory()
        os.unlink(name)
        return fd

    def _open_memory(self) -> int:
        self.is_in_memory = True
        self.capacity = min(self.capacity, MEMORY_CAPACITY_BYTES)
        return os.memfd_create("tap")

    @property
    def has_lost_unread(self) -> bool:
        """Whether bytes were dropped that no host has acknowledged."""
        return self.start > self.acknowledged

    @property
    def room(self) -> int:
        """How many bytes can be taken without losing what the connected host still needs."""
        if self.floor is None:
            return self.capacity
        return self.capacity - (self.end - max(self.floor, self.start))

    def append(self, data: bytes) -> None:
        """Takes the next bytes of the stream."""
        try:
            self._place(data)
        except OSError as error:
            if self.is_in_memory or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG):
                raise
            self._move_to_memory()
            self._place(data)

    def _place(self, data: bytes) -> None:
        kept = data[-self.capacity :]
        at = self.end + len(data) - len(kept)
        view = memoryview(kept)
        while view:
            place = at % self.capacity
            taken = os.pwrite(self._fd, view[: self.capacity - place], place)
            at += taken
            view = view[taken:]
        self.end += len(data)
        self.start = max(self.start, self.end - self.capacity)

    def _move_to_memory(self) -> None:
        kept = self.read(max(self.start, self.end - MEMORY_CAPACITY_BYTES), MEMORY_CAPACITY_BYTES)
        os.close(self._fd)
        self._fd = self._open_memory()
        self.end -= len(kept)
        self.start = self.end
        self._place(kept)

    def read(self, offset: int, length: int) -> bytes:
        """Returns up to `length` bytes from `offset`, which must lie in [start, end]."""
        if not self.start <= offset <= self.end:
            raise ValueError(f"offset {offset} outside [{self.start}, {self.end}]")
        wanted = min(length, self.end - offset)
        parts: list[bytes] = []
        while wanted:
            place = offset % self.capacity
            part = os.pread(self._fd, min(wanted, self.capacity - place), place)
            parts.append(part)
            offset += len(part)
            wanted -= len(part)
        return b"".join(parts)

    def acknowledge(self, offset: int) -> None:
        """Records that a host holds everything before `offset`."""
        self.acknowledged = max(self.acknowledged, min(offset, self.end))
        if self.floor is not None:
            self.floor = max(self.floor, min(offset, self.end))

    def close(self) -> None:
        """Gives the ring's memory back; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
