"""Walks a workspace component by component, so that no path leaves it, whatever a link or a racing tool does.

Every step is an `openat` that follows no link; the descriptor of each folder is held while the next one is opened. A symbolic link is
read and its target walked in the same way from the folder it stands in (from the root, when it is absolute and lies in the workspace).
So links inside the workspace work, and one that points out of it is refused, also when it is exchanged while the walk is under way.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from direct_agent.tools.errors import ConfinementError, PathError

_LINKS_MAX = 40
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PATH_LENGTH_MAX = 4096


@dataclass(frozen=True, slots=True)
class Place:
    """Where a path leads, while the folder is held open.

    `folder` is the descriptor of the deepest folder that exists on the way. `resolved` are the components with every link resolved,
    relative to the root. `missing` are the components below `folder` that do not exist; empty when all exist, and then `name` is the
    entry in `folder` (None: the path is the root itself).
    """

    folder: int
    name: str | None
    resolved: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def exists(self) -> bool:
        return not self.missing


class Workspace:
    """One workspace folder. `kept_out` are absolute folders inside it that no tool may touch (the agent's own session store)."""

    def __init__(self, root: Path, *, kept_out: tuple[Path, ...] = ()) -> None:
        self.given = Path(os.path.normpath(root))
        self.root = root.resolve(strict=True)
        self._fd = os.open(self.root, _FOLDER)
        self._kept_out = tuple(
            path.parts[len(self.root.parts) :] for path in kept_out if path.resolve().is_relative_to(self.root)
        )

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def absolute(self, path: str) -> str:
        """The path as an absolute one, with no link resolved."""
        return str(self.root.joinpath(*self._components(path)))

    def relative(self, path: str) -> str:
        """The path from the root on, '/'-separated and without '.' and '..'; "." for the root itself."""
        normal = os.path.normpath("/".join(self._components(path)) or ".")
        if normal.split("/")[0] == "..":
            raise ConfinementError(f"expected a path inside the workspace {self.root}, found {path!r}")
        return normal

    def resolved_path(self, path: str) -> str:
        """The absolute path with links resolved; for what does not exist, its nearest existing parent resolved and the rest."""
        with self.walk(path) as place:
            return str(self.root.joinpath(*place.resolved))

    @contextmanager
    def walk(self, path: str) -> Iterator[Place]:
        """Walks to `path`, following links inside the workspace. Raises ConfinementError or PathError."""
        walk = _Walk(self._fd, self.root, self.given, path)
        try:
            place = walk.to(self._components(path))
            for kept_out in self._kept_out:
                if place.resolved[: len(kept_out)] == kept_out:
                    raise ConfinementError(f"{path!r} belongs to the agent itself and is not for tools")
            yield place
        finally:
            walk.close()

    @contextmanager
    def open_file(self, path: str) -> Iterator[int]:
        """A read descriptor of the plain file at `path`. Devices, pipes and folders are refused without being read."""
        with self.walk(path) as place:
            if not place.exists:
                raise PathError(f"expected a file at {path!r}, found nothing there")
            if place.name is None:
                raise PathError(f"expected a file at {path!r}, found a folder")
            fd = _open(place.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, place.folder, path)
            try:
                mode = os.fstat(fd).st_mode
                if not stat.S_ISREG(mode):
                    kind = "a folder" if stat.S_ISDIR(mode) else "a device, pipe or socket"
                    raise PathError(f"expected a plain file at {path!r}, found {kind}")
                yield fd
            finally:
                os.close(fd)

    @contextmanager
    def open_folder(self, path: str) -> Iterator[int]:
        """A descriptor of the folder at `path` that can be listed."""
        with self.walk(path) as place:
            if not place.exists:
                raise PathError(f"expected a folder at {path!r}, found nothing there")
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = _open(place.name or ".", flags, place.folder, path)
            try:
                yield fd
            finally:
                os.close(fd)

    def _components(self, path: str) -> tuple[str, ...]:
        if not path or "\x00" in path or len(path) > _PATH_LENGTH_MAX:
            raise ConfinementError(f"expected a path of 1 to {_PATH_LENGTH_MAX} characters without NUL")
        if not path.startswith("/"):
            return tuple(path.split("/"))
        below = _below(path, self.root, self.given)
        if below is None:
            raise ConfinementError(f"expected a path inside the workspace {self.root}, found {path!r}")
        return below


class _Walk:
    """One walk: the stack of folders it holds open."""

    def __init__(self, root_fd: int, root: Path, given: Path, path: str) -> None:
        self._root, self._given, self._path = root, given, path
        self._root_fd = root_fd
        self._stack: list[tuple[int, str]] = []  # below the root: descriptor and name

    def close(self) -> None:
        while self._stack:
            os.close(self._stack.pop()[0])

    def to(self, components: tuple[str, ...]) -> Place:
        todo, links = deque(components), 0
        while todo:
            name = todo.popleft()
            if name in ("", "."):
                continue
            if name == "..":
                self._up()
                continue
            try:
                mode = os.stat(name, dir_fd=self._folder, follow_symlinks=False).st_mode
            except FileNotFoundError:
                return self._missing((name, *todo))
            except OSError as error:
                raise PathError(f"{self._path!r} cannot be looked at: {_words(error)}") from None
            if stat.S_ISLNK(mode):
                links += 1
                if links > _LINKS_MAX:
                    raise ConfinementError(f"{self._path!r} goes through more than {_LINKS_MAX} links")
                todo.extendleft(reversed(self._target(name)))
            elif stat.S_ISDIR(mode):
                self._stack.append((_open(name, _FOLDER, self._folder, self._path), name))
            elif any(rest not in ("", ".") for rest in todo):
                raise PathError(f"{name!r} in {self._path!r} is a file, not a folder")
            else:
                return Place(self._folder, name, (*self._names, name), ())
        return self._folder_place()

    @property
    def _folder(self) -> int:
        return self._stack[-1][0] if self._stack else self._root_fd

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(name for _, name in self._stack)

    def _up(self) -> None:
        if not self._stack:
            raise ConfinementError(f"expected a path inside the workspace {self._root}, found {self._path!r}")
        os.close(self._stack.pop()[0])

    def _target(self, name: str) -> tuple[str, ...]:
        try:
            target = os.readlink(name, dir_fd=self._folder)
        except OSError:
            raise ConfinementError(f"{name!r} in {self._path!r} was exchanged while it was looked at") from None
        if not target.startswith("/"):
            return tuple(target.split("/"))
        below = _below(target, self._root, self._given)
        if below is None:
            raise ConfinementError(f"{name!r} in {self._path!r} is a link that leads out of the workspace")
        self.close()
        return below

    def _missing(self, rest: tuple[str, ...]) -> Place:
        kept = tuple(name for name in rest if name not in ("", "."))
        if ".." in kept:
            raise PathError(f"{self._path!r} goes up from a folder that does not exist")
        return Place(self._folder, None, (*self._names, *kept), kept)

    def _folder_place(self) -> Place:
        if not self._stack:
            return Place(self._root_fd, None, (), ())
        # The folder itself is the entry: callers see it as one of its parent's.
        name = self._stack[-1][1]
        parent = self._stack[-2][0] if len(self._stack) > 1 else self._root_fd
        return Place(parent, name, self._names, ())


def _below(path: str, *roots: Path) -> tuple[str, ...] | None:
    for root in roots:
        prefix = str(root).rstrip("/")
        if path == prefix or path.startswith(prefix + "/"):
            return tuple(path[len(prefix) :].split("/"))
    return None


def _open(name: str, flags: int, folder: int, path: str) -> int:
    try:
        return os.open(name, flags, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENOENT):
            raise ConfinementError(f"{path!r} was exchanged while it was looked at, or is of another kind") from None
        raise PathError(f"{path!r} cannot be opened: {_words(error)}") from None


def _words(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else "no reason given"
