"""The search itself, as a program of its own: a pattern that takes for ever must not stop the agent, and a process can be ended.

Reads one JSON object from stdin: {"fd": folder descriptor, "pattern", "is_literal", "ignore_case", "names", "matches_max"}.
Prints "path:line: text" lines. Standard library only; it is run by its path. Follows no link.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import stat
import sys

_SKIPPED = frozenset({".git", "node_modules", ".venv", "__pycache__"})
_FILE_BYTES_MAX = 8 * 1024 * 1024
_LINE_CHARACTERS_MAX = 400
_DEPTH_MAX = 100


class _Enough(Exception):  # noqa: N818  not an error: the bound on matches
    pass


def main() -> int:
    wanted = json.loads(sys.stdin.read())
    source = re.escape(wanted["pattern"]) if wanted["is_literal"] else wanted["pattern"]
    try:
        pattern = re.compile(source, re.IGNORECASE if wanted["ignore_case"] else 0)
    except (re.error, RecursionError, OverflowError) as error:
        print(f"not a regular expression: {error}")
        return 2
    search = _Search(pattern, wanted["names"], wanted["matches_max"])
    try:
        search.folder(wanted["fd"], "")
    except _Enough:
        print(f"… more than {wanted['matches_max']} matches; give a narrower pattern")
    return 0 if search.found else 1


class _Search:
    def __init__(self, pattern: re.Pattern[str], names: str | None, matches_max: int) -> None:
        self._pattern, self._names, self._matches_max = pattern, names, matches_max
        self.found = 0

    def folder(self, fd: int, prefix: str) -> None:
        if prefix.count("/") > _DEPTH_MAX:
            return
        for name in sorted(os.listdir(fd)):
            try:
                mode = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
                is_folder = stat.S_ISDIR(mode)
                if not is_folder and not stat.S_ISREG(mode):
                    continue
                if is_folder and name in _SKIPPED:
                    continue
                if not is_folder and self._names and not fnmatch.fnmatchcase(name, self._names):
                    continue
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                below = os.open(name, flags | (os.O_DIRECTORY if is_folder else 0), dir_fd=fd)
            except OSError:
                continue
            try:
                if is_folder:
                    self.folder(below, f"{prefix}{name}/")
                else:
                    self._file(below, f"{prefix}{name}")
            finally:
                os.close(below)

    def _file(self, fd: int, path: str) -> None:
        if os.fstat(fd).st_size > _FILE_BYTES_MAX:
            return
        with os.fdopen(os.dup(fd), "rb") as file:
            content = file.read(_FILE_BYTES_MAX)
        if b"\x00" in content:
            return
        for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), start=1):
            if self._pattern.search(line):
                if self.found >= self._matches_max:
                    raise _Enough
                self.found += 1
                print(f"{path}:{number}: {line[:_LINE_CHARACTERS_MAX]}")


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]  # a text stream at run time
    sys.exit(main())
