"""Reads text files of the workspace whole, and puts a planned change on disk. Blocking.

A change is written aside, made durable and renamed over its target, so a kill at any instant leaves the old text or the new one.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from direct_agent.tools.errors import ChangedMeanwhileError, PathError
from direct_agent.tools.port import Change
from direct_agent.tools.text_file import NEW_FILE_ENCODING, TextFile, decode, encode
from direct_agent.tools.workspace import Place, Workspace

FILE_BYTES_MAX = 8 * 1024 * 1024
"""A file above this is not read whole: read it in parts, change it with the shell."""

Reach = Callable[[str], None]


def _nothing(_point: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One text file as it is now. `file` is None when nothing is there."""

    path: str
    resolved_path: str
    file: TextFile | None
    mode: int | None


class Disk:
    """The workspace's files. `staging` is a folder of the agent's own, on the same file system where possible.

    `reach` is told each point between two system calls that change something: tests kill there.
    """

    def __init__(self, workspace: Workspace, staging: Path, *, reach: Reach = _nothing) -> None:
        self.workspace = workspace
        self._staging = staging
        self._reach = reach

    def snapshot(self, path: str) -> Snapshot:
        """Raises PathError for what is no text file, or too large; ConfinementError for what leads out."""
        absolute = self.workspace.absolute(path)
        with self.workspace.walk(path) as place:
            resolved = str(self.workspace.root.joinpath(*place.resolved))
            if not place.exists:
                return Snapshot(absolute, resolved, None, None)
        with self.workspace.open_file(path) as fd:
            facts = os.fstat(fd)
            if facts.st_size > FILE_BYTES_MAX:
                raise PathError(f"{path!r} has {facts.st_size} bytes; at most {FILE_BYTES_MAX} are read whole")
            file = decode(_read_all(fd, path))
        if file is None:
            raise PathError(f"expected a text file (UTF-8 or marked UTF-16) at {path!r}, found other bytes")
        return Snapshot(absolute, resolved, file, facts.st_mode & 0o7777)

    def change(self, path: str, after: str, *, snapshot: Snapshot | None = None) -> Change:
        """The change that gives `path` the text `after`."""
        now = snapshot or self.snapshot(path)
        encoding = now.file.encoding if now.file else NEW_FILE_ENCODING
        try:
            encode(after, encoding)
        except UnicodeEncodeError:
            raise PathError(f"the text for {path!r} holds half a character pair, which no file can hold") from None
        return Change(
            path=now.path,
            resolved_path=now.resolved_path,
            existed=now.file is not None,
            before=now.file.text if now.file else "",
            after=after,
            encoding=encoding,
            mode=now.mode,
        )

    def check_unchanged(self, change: Change) -> None:
        """Raises ChangedMeanwhileError unless the file still is what the change was planned on."""
        now = self.snapshot(change.path)
        as_read = (
            now.resolved_path == change.resolved_path
            and (now.file is not None) == change.existed
            and (now.file is None or (now.file.text == change.before and now.file.encoding == change.encoding))
        )
        if not as_read:
            raise ChangedMeanwhileError(f"{change.path} changed after it was read; nothing was written: read it again")

    def put(self, change: Change) -> None:
        """Writes one change whose intent is durable. Raises ChangedMeanwhileError, PathError; then this file is as it was."""
        self.check_unchanged(change)
        content = encode(change.after, change.encoding)
        self._reach("before folders")
        with self._target(change) as (folder, name):
            self._reach("before staging")
            try:
                self._replace(content, change, folder, name)
            except OSError as error:
                why = os.strerror(error.errno) if error.errno else "no reason given"
                raise PathError(f"{change.path} could not be written: {why}; it is as it was") from None

    def _target(self, change: Change) -> _Target:
        return _Target(self.workspace, change, self._reach)

    def _replace(self, content: bytes, change: Change, folder: int, name: str) -> None:
        aside = self._staging / f"w-{secrets.token_hex(8)}"
        mode = 0o666 if change.mode is None else change.mode
        try:
            _write_new(str(aside), content, mode, change.mode is not None, None)
            self._reach("staged")
            try:
                os.rename(str(aside), name, dst_dir_fd=folder)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                self._replace_beside(content, change, folder, name, mode)
        finally:
            aside.unlink(missing_ok=True)
        self._reach("renamed")
        _sync_folder(folder)
        self._reach("written")

    def _replace_beside(self, content: bytes, change: Change, folder: int, name: str, mode: int) -> None:
        """The staging folder is on another file system: aside means beside."""
        beside = f".{name[:200]}.sf-{secrets.token_hex(4)}"
        _write_new(beside, content, mode, change.mode is not None, folder)
        try:
            os.rename(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            os.unlink(beside, dir_fd=folder)
            raise


class _Target:
    """The folder and name to write at, with the parent folders made. Held open while it is used."""

    def __init__(self, workspace: Workspace, change: Change, reach: Reach) -> None:
        self._workspace, self._change, self._reach = workspace, change, reach
        self._folder = -1

    def __enter__(self) -> tuple[int, str]:
        change = self._change
        with self._workspace.walk(change.path) as place:
            if str(self._workspace.root.joinpath(*place.resolved)) != change.resolved_path:
                raise ChangedMeanwhileError(f"{change.path} leads elsewhere than when it was read; nothing was written")
            if place.exists and place.name is None:
                raise PathError(f"expected a file at {change.path}, found a folder")
            self._folder = self._made(place)
            return self._folder, place.resolved[-1]

    def __exit__(self, *_: object) -> None:
        if self._folder >= 0:
            os.close(self._folder)

    def _made(self, place: Place) -> int:
        folder = os.dup(place.folder)
        for name in place.missing[:-1]:
            self._reach("before folder")
            try:
                os.mkdir(name, dir_fd=folder)
                below = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            except OSError as error:
                os.close(folder)
                why = os.strerror(error.errno) if error.errno else "no reason given"
                raise PathError(f"the folder {name!r} of {self._change.path} could not be made: {why}") from None
            os.close(folder)
            folder = below
        return folder


def _read_all(fd: int, path: str) -> bytes:
    parts, size = [], 0
    while chunk := os.read(fd, 1 << 20):
        parts.append(chunk)
        size += len(chunk)
        if size > FILE_BYTES_MAX:
            raise PathError(f"{path!r} grew above {FILE_BYTES_MAX} bytes while it was read")
    return b"".join(parts)


def _write_new(name: str, content: bytes, mode: int, exact_mode: bool, folder: int | None) -> None:
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=folder)
    try:
        if exact_mode:
            os.fchmod(fd, mode)
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    except OSError:
        os.unlink(name, dir_fd=folder)
        raise
    finally:
        os.close(fd)


def _sync_folder(folder: int) -> None:
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
