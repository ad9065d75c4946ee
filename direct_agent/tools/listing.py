"""The list tool: the entries of a folder, or of the tree below it."""

from __future__ import annotations

import asyncio
import fnmatch
import os
import stat

from direct_agent.tools.port import Arguments, Output, ToolSpec
from direct_agent.tools.workspace import Workspace

ENTRIES_MAX = 1000
DEPTH_MAX = 20
_SKIPPED_BELOW = frozenset({".git", "node_modules", ".venv", "__pycache__"})


class List:
    """Implements PlainTool. Links are named, never followed."""

    spec = ToolSpec(
        name="list",
        description="Lists a folder of the workspace. Folders end in '/'. With depth above 1 also what is below, "
        "without .git, node_modules, .venv and __pycache__.",
        parameters={
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "depth": {"type": "integer", "minimum": 1, "maximum": DEPTH_MAX},
                "pattern": {"type": "string", "description": "Only names like this, e.g. *.py"},
            },
            "required": [],
            "additionalProperties": False,
        },
        is_read_only=True,
    )

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def subjects(self, arguments: Arguments) -> tuple[str, ...]:
        return (arguments.get("path", "."),)

    async def run(self, arguments: Arguments) -> Output:
        return await asyncio.to_thread(self._list, arguments)

    def _list(self, arguments: Arguments) -> Output:
        found: list[str] = []
        pattern = arguments.get("pattern")
        with self._workspace.open_folder(arguments.get("path", ".")) as fd:
            is_cut = not _collect(fd, "", arguments.get("depth", 1), pattern, found)
        if not found:
            return Output("(nothing)")
        if is_cut:
            found.append(f"… more than {ENTRIES_MAX} entries; list a folder below, or give a pattern")
        return Output("\n".join(found))


def _collect(fd: int, prefix: str, depth: int, pattern: str | None, found: list[str]) -> bool:
    """False when there was more than fits."""
    for name in sorted(os.listdir(fd)):
        try:
            mode = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
        except OSError:
            continue  # gone meanwhile
        is_folder = stat.S_ISDIR(mode)
        if pattern is None or fnmatch.fnmatchcase(name, pattern):
            if len(found) >= ENTRIES_MAX:
                return False
            mark = "/" if is_folder else "@" if stat.S_ISLNK(mode) else ""
            found.append(f"{prefix}{name}{mark}")
        if is_folder and depth > 1 and name not in _SKIPPED_BELOW:
            try:
                below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            except OSError:
                continue
            try:
                if not _collect(below, f"{prefix}{name}/", depth - 1, pattern, found):
                    return False
            finally:
                os.close(below)
    return True
