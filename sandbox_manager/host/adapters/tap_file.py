"""One activation's raw stdout, kept outside the sandbox. It knows offsets and bytes, nothing of what they mean."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

CHUNK_BYTES = 256 * 1024


class TapFile:
    """An append-only file whose first byte is the process's tap offset `start`.

    `limit_bytes` bounds it: what comes after is counted, not kept, and `overflowed` says so.
    """

    def __init__(self, path: Path, start: int, *, limit_bytes: int) -> None:
        self.path = path
        self.start = start
        self.length = 0
        self.overflowed = False
        self._limit_bytes = limit_bytes
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.length = os.fstat(self._fd).st_size

    @property
    def end(self) -> int:
        """The tap offset just after the last byte kept."""
        return self.start + self.length

    def append(self, data: bytes) -> None:
        """Appends the next bytes, up to the limit. Raises OSError (no space) with nothing half known: `length` is what is there."""
        room = self._limit_bytes - self.length
        if len(data) > room:
            self.overflowed = True
            data = data[: max(room, 0)]
        view = memoryview(data)
        while view:
            written = os.write(self._fd, view)
            self.length += written
            view = view[written:]

    def sync(self) -> None:
        """Makes what was appended durable. Blocking: to be called in a worker thread."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_chunks(path: Path, start: int, from_offset: int) -> Iterator[tuple[int, bytes]]:
    """Yields (tap offset, bytes) from `from_offset` on; from the file's first byte when that is lower than `start`."""
    offset = max(from_offset, start)
    try:
        with path.open("rb") as file:
            file.seek(offset - start)
            while data := file.read(CHUNK_BYTES):
                yield offset, data
                offset += len(data)
    except FileNotFoundError:
        return
